package redisbackend_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil"
)

// A failed Acquire returns at its deadline, also if a node that granted hangs afterwards.
func TestRegression_QuorumAcquireDeadline(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	f := newFilter(t, nodes[0].Addr())
	c := redisbackend.New(proxied(t, f.Addr().String()), nodes[1].Client(), nodes[2].Client())
	c.NewInstallation, c.NodeTimeout = true, 10*time.Second
	b := openQuorum(t, c, time.Minute)
	connected(t, b, nodes, 0)
	n := 0
	f.set(func(b []byte) (lose, cut bool, delay time.Duration) {
		if bytes.Contains(b, []byte("{hot}")) {
			n++
		}
		return n > 1, false, 0
	})
	nodes[1].Stop()
	nodes[2].Stop()
	began := time.Now()
	_, err := b.Acquire(within(t, 300*time.Millisecond), attempt("hot", time.Minute, 0))
	took := time.Since(began)
	nodes[1].Cont()
	nodes[2].Cont()
	if err == nil {
		t.Fatal("granted")
	}
	if took > 6*time.Second { // sooner than NodeTimeout, also on a busy machine
		t.Errorf("Acquire with a deadline of 300 ms took %v: %v", took, err)
	}
}

// The clean-up of a try must not take the lease of the next try, which has the same owner.
func TestRegression_QuorumCleanUpOfEarlierTry(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	fb, pc := newFilter(t, nodes[1].Addr()), newProxy(t, nodes[2].Addr())
	c := redisbackend.New(nodes[0].Client(), proxied(t, fb.Addr().String()), proxied(t, pc.Addr().String()))
	c.NewInstallation, c.NodeTimeout = true, 5*time.Second
	b, rival := openQuorum(t, c, time.Minute), openQuorum(t, quorumOf(nodes), time.Minute)
	prepare := func(key string) {
		// A decided VOID on the first and third node; the second was down and has the seal that it voids.
		ok(t, "SET", nodes[0].Client().Set(t.Context(), "{"+key+"}:accepted", "5 1 V", time.Hour).Err())
		ok(t, "SET", nodes[1].Client().Set(t.Context(), "{"+key+"}:accepted", "3 1 \x00768:v", time.Hour).Err())
		ok(t, "SET", nodes[2].Client().Set(t.Context(), "{"+key+"}:accepted", "5 1 V", time.Hour).Err())
	}
	for _, key := range []string{"warm1", "warm2"} { // the scripts are known, and the connections there
		prepare(key)
		g, err := b.Acquire(t.Context(), attempt(key, time.Minute, 0))
		ok(t, "Acquire", err)
		_, err = b.Release(t.Context(), g)
		ok(t, "Release", err)
	}
	time.Sleep(300 * time.Millisecond)
	prepare("k")
	n := 0
	fb.set(func(b []byte) (lose, cut bool, delay time.Duration) {
		if bytes.Contains(b, []byte("{k}")) {
			n++
		}
		return n > 3, false, 0 // acquire, prepare, accept
	})
	pc.cut.Store(3)
	g, err := b.Acquire(t.Context(), attempt("k", time.Minute, 0))
	if err != nil {
		return // no second try in the name of an owner that is being cleaned up
	}
	at := time.Now()
	for end := at.Add(3 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if nodes[2].Client().Exists(t.Context(), "k").Val() == 0 {
			t.Errorf("after %v the third node lost the lease, whose deadline is in %v", time.Since(at), time.Until(g.Deadline))
			break
		}
	}
	second, err := rival.Acquire(t.Context(), attempt("k", time.Minute, 0))
	if err == nil && time.Now().Before(g.Deadline) {
		t.Errorf("two holders: %s until %v, and %s", g.Owner, time.Until(g.Deadline), second.Owner)
	}
}

// A node that did not get the release in time is cleaned up, also if the others were quicker.
func TestRegression_QuorumReleaseThatFailsLate(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	f := newFilter(t, nodes[2].Addr())
	c := redisbackend.New(nodes[0].Client(), nodes[1].Client(), proxied(t, f.Addr().String()))
	c.NewInstallation, c.NodeTimeout = true, 5*time.Second
	b := openQuorum(t, c, time.Minute)
	g := grantedByAll(t, b, nodes, "k", 0)
	third := nodes[2].Client()
	time.Sleep(100 * time.Millisecond)
	f.set(func([]byte) (bool, bool, time.Duration) { return true, false, 0 })
	_, err := b.Release(t.Context(), g)
	ok(t, "Release", err)
	time.Sleep(c.NodeTimeout + 200*time.Millisecond)
	f.set(nil)
	eventually(t, "the third node lost the lease", func() bool { return third.Exists(t.Context(), "k").Val() == 0 })
}

// Extend must not take the key again after Release.
func TestRegression_QuorumTakeAgainAfterRelease(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	p := newProxy(t, nodes[2].Addr())
	c := redisbackend.New(nodes[0].Client(), nodes[1].Client(), proxied(t, p.Addr().String()))
	c.NewInstallation, c.NodeTimeout = true, 5*time.Second
	b := openQuorum(t, c, time.Minute)
	g := grantedByAll(t, b, nodes, "k", 0)
	third := nodes[2].Client()
	time.Sleep(100 * time.Millisecond)
	ok(t, "DEL", third.Del(t.Context(), "k").Err()) // it lost its data
	p.late.Store(int64(200 * time.Millisecond))
	g, err := b.Extend(t.Context(), g, time.Minute)
	ok(t, "Extend", err)
	_, err = b.Release(t.Context(), g)
	ok(t, "Release", err)
	time.Sleep(4 * time.Second)
	eventually(t, "the third node lost the lease", func() bool { return third.Exists(t.Context(), "k").Val() == 0 })
}

// A request that was retried on a new connection may still be under way on the old one.
func TestRegression_QuorumGhostOfRetriedAcquire(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	f := newFilter(t, nodes[2].Addr())
	c := redisbackend.New(nodes[0].Client(), nodes[1].Client(), proxied(t, f.Addr().String()))
	c.NewInstallation, c.NodeTimeout = true, 5*time.Second
	b := openQuorum(t, c, time.Minute)
	connected(t, b, nodes, 0)
	var once sync.Once
	f.set(func(b []byte) (lose, cut bool, delay time.Duration) {
		if bytes.Contains(b, []byte("{k}")) {
			once.Do(func() { cut, delay = true, 600*time.Millisecond })
		}
		return
	})
	g := grantedByAll(t, b, nodes, "k", 0)
	third := nodes[2].Client()
	time.Sleep(100 * time.Millisecond)
	_, err := b.Release(t.Context(), g)
	ok(t, "Release", err)
	time.Sleep(4 * time.Second)
	eventually(t, "the third node lost the lease", func() bool { return third.Exists(t.Context(), "k").Val() == 0 })
}

// The record of an orphan is withdrawn within the caller's deadline, or later in the background.
func TestRegression_QuorumWithdrawDeadline(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	var filters []*filter
	var clients []redis.UniversalClient
	for _, n := range nodes {
		f := newFilter(t, n.Addr())
		filters, clients = append(filters, f), append(clients, proxied(t, f.Addr().String()))
	}
	c := redisbackend.New(clients...)
	c.NewInstallation, c.NodeTimeout = true, 10*time.Second
	b := openQuorum(t, c, time.Minute)
	connected(t, b, nodes, time.Hour)
	for _, f := range filters {
		n := 0
		f.set(func(b []byte) (lose, cut bool, delay time.Duration) {
			if bytes.Contains(b, []byte("{hot}")) {
				n++
			}
			return n > 1, false, 0
		})
	}
	began := time.Now()
	_, err := b.Acquire(within(t, 300*time.Millisecond), attempt("hot", time.Minute, time.Hour))
	took := time.Since(began)
	for _, f := range filters {
		f.set(nil)
	}
	if err == nil {
		t.Fatal("granted")
	}
	if took > 6*time.Second {
		t.Errorf("Acquire with a deadline of 300 ms took %v: %v", took, err)
	}
}

// A quorum restores an orphan that a failed adoption replaced.
func TestRegression_QuorumFailedAdoption(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	b := openQuorum(t, quorumOf(nodes), time.Minute)
	for i := range 6 {
		key := fmt.Sprint("k", i)
		g := orphanOf(t, b, key)
		r := attempt(key, time.Minute, time.Duration(i%2)*time.Hour)
		r.Adopt = g.Owner
		nodes[1].Stop()
		nodes[2].Stop()
		_, err := b.Acquire(within(t, 200*time.Millisecond), r)
		nodes[1].Cont()
		nodes[2].Cont()
		if err == nil {
			t.Fatal("adopted")
		}
		time.Sleep(3 * time.Second)
		if st, err := b.Inspect(t.Context(), key); err == nil && st.Status == core.Free {
			t.Errorf("%s: the orphan is free by itself", key)
		}
	}
}

// One node misses a Seal, or the Release of a lock with an orphan. No lease may stay on that node:
// it would hide what was decided while another node is down.
func TestRegression_QuorumEndThatOneNodeMissed(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"Seal", "Release of a lock with an orphan"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			var nodes testutil.Nodes
			for range 3 {
				nodes = append(nodes, testutil.Redis(t, "--appendonly", "yes"))
			}
			f := newFilter(t, nodes[2].Addr())
			c := redisbackend.New(nodes[0].Client(), nodes[1].Client(), proxied(t, f.Addr().String()))
			c.NewInstallation, c.NodeTimeout = true, 5*time.Second
			b := openQuorum(t, c, time.Minute)
			orphan := time.Duration(0)
			if end != "Seal" {
				orphan = time.Hour
			}
			connected(t, b, nodes, orphan)
			g := grantedByAll(t, b, nodes, "k", orphan)
			third := nodes[2].Client()
			time.Sleep(100 * time.Millisecond)
			f.set(func([]byte) (bool, bool, time.Duration) { return true, false, 0 })
			if end == "Seal" {
				eventually(t, end, func() bool { return b.(core.Sealer).Seal(t.Context(), g, []byte("v"), time.Hour) == nil })
			} else {
				_, err := b.Release(t.Context(), g)
				ok(t, end, err)
			}
			time.Sleep(c.NodeTimeout + 200*time.Millisecond)
			f.set(nil)
			eventually(t, "the third node lost the lease", func() bool { return third.Exists(t.Context(), "k").Val() == 0 })
			nodes[0].Kill()
			// The first call may find out that the key is free, and leave it to the next.
			var err error
			eventually(t, "the key is sealed or free", func() bool {
				_, err = b.Acquire(within(t, 2*time.Second), attempt("k", time.Minute, 0))
				return err == nil || errors.Is(err, core.ErrSealed)
			})
			if end == "Seal" && !errors.Is(err, core.ErrSealed) || end != "Seal" && err != nil {
				t.Errorf("after it, with another node down, Acquire answers: %v", err)
			}
		})
	}
}

// A Release that no majority answers goes on in the background, also if the lock would leave an orphan.
func TestRegression_QuorumReleaseOfOrphan(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	p1, p2 := newProxy(t, nodes[1].Addr()), newProxy(t, nodes[2].Addr())
	c := redisbackend.New(nodes[0].Client(), proxied(t, p1.Addr().String()), proxied(t, p2.Addr().String()))
	c.NewInstallation, c.NodeTimeout = true, time.Second
	b := openQuorum(t, c, time.Minute)
	connected(t, b, nodes, time.Hour)
	g := grantedByAll(t, b, nodes, "k", time.Hour)
	p1.lose.Store(true)
	p2.lose.Store(true)
	_, err := b.Release(t.Context(), g)
	want(t, "Release", err, core.ErrUnavailable)
	p1.lose.Store(false)
	p2.lose.Store(false)
	eventually(t, "no node has the lease", func() bool { return leases(t, nodes, "k") == 0 })
	var st core.State
	eventually(t, "an answer", func() bool {
		st, err = b.Inspect(t.Context(), "k")
		return !errors.Is(err, core.ErrUnavailable)
	})
	if ok(t, "Inspect", err); st.Status != core.Free {
		t.Errorf("the key is %v", st.Status)
	}
}

// release releases a key. If a busy machine answers too late, the release goes on in the background.
func release(t testing.TB, b core.Backend, g core.Grant) {
	t.Helper()
	if _, err := b.Release(t.Context(), g); err != nil {
		want(t, "Release", err, core.ErrUnavailable)
	}
}

// connected waits until an attempt holds a key on all nodes and frees it: the connections are there.
func connected(t testing.TB, b core.Backend, nodes testutil.Nodes, orphan time.Duration) {
	t.Helper()
	release(t, b, grantedByAll(t, b, nodes, fmt.Sprint("warm", time.Now().UnixNano()), orphan))
}

// grantedByAll acquires a key, and tries again until all nodes have granted: a majority decides without
// the node that is last.
func grantedByAll(t testing.TB, b core.Backend, nodes testutil.Nodes, key string, orphan time.Duration) (g core.Grant) {
	t.Helper()
	eventually(t, "all nodes grant", func() (all bool) {
		var err error
		if g, err = b.Acquire(t.Context(), attempt(key, time.Minute, orphan)); err != nil {
			return false
		}
		for end := time.Now().Add(time.Second); !all && time.Now().Before(end); {
			all = leases(t, nodes, key) == len(nodes)
		}
		if !all {
			release(t, b, g)
		}
		return all
	})
	return g
}

// leases counts the nodes that have a lease of the key.
func leases(t testing.TB, nodes testutil.Nodes, key string) (n int) {
	for _, node := range nodes {
		n += int(node.Client().Exists(t.Context(), key).Val())
	}
	return n
}

// A late answer to Acquire says nothing of the lease that Extend took since then on its node.
func TestRegression_QuorumLateAnswer(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	p := newProxy(t, nodes[2].Addr())
	c := redisbackend.New(nodes[0].Client(), nodes[1].Client(), proxied(t, p.Addr().String()))
	c.NewInstallation, c.NodeTimeout = true, 5*time.Second
	b := openQuorum(t, c, time.Minute)
	connected(t, b, nodes, 0)
	admin := nodes[2].Client()
	ok(t, "SET", admin.Set(t.Context(), "k", "another/1", time.Hour).Err())
	ok(t, "CONFIG RESETSTAT", admin.ConfigResetStat(t.Context()).Err())
	const late = 800 * time.Millisecond
	p.late.Store(int64(late))
	var g core.Grant
	eventually(t, "the other nodes grant", func() bool {
		var err error
		g, err = b.Acquire(t.Context(), attempt("k", time.Hour, 0))
		return err == nil
	})
	eventually(t, "the last node has refused", func() bool { return strings.Contains(admin.Info(t.Context(), "commandstats").Val(), "cmdstat_eval") })
	answered := time.Now()
	ok(t, "DEL", admin.Del(t.Context(), "k").Err())
	p.late.Store(0)
	eventually(t, "Extend takes the key on the last node", func() bool {
		extended, err := b.Extend(t.Context(), g, time.Hour)
		if err == nil {
			g = extended
		}
		return err == nil && leases(t, nodes[2:], "k") == 1
	})
	time.Sleep(time.Until(answered.Add(late + 100*time.Millisecond))) // until the answer has come
	p.lose.Store(true)
	_, err := b.Release(t.Context(), g)
	ok(t, "Release", err)
	time.Sleep(100 * time.Millisecond) // the request to the last node is lost
	p.lose.Store(false)
	eventually(t, "no node has the lease", func() bool { return leases(t, nodes, "k") == 0 })
}
