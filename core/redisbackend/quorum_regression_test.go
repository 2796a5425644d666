package redisbackend_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil"
)

// A failed Acquire returns at its deadline, even if a node that granted hangs afterwards.
func TestRegression_QuorumAcquireDeadline(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	f := newFilter(t, nodes[0].Addr())
	c := redisbackend.New(proxied(t, f.Addr().String()), nodes[1].Client(), nodes[2].Client())
	c.NewInstallation, c.NodeTimeout, c.LongestTTL = true, 10*time.Second, time.Hour
	b := openQuorum(t, c, time.Minute)
	connected(t, b, nodes)
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

const thirdTimeout = 5 * time.Second

// openThird returns a quorum whose third node is reached at another address.
func openThird(t *testing.T, nodes testutil.Nodes, third net.Addr) core.Backend {
	t.Helper()
	c := redisbackend.New(nodes[0].Client(), nodes[1].Client(), proxied(t, third.String()))
	c.NewInstallation, c.NodeTimeout, c.LongestTTL = true, thirdTimeout, time.Hour
	return openQuorum(t, c, time.Minute)
}

// A node that did not get the release in time is cleaned up, even if the others were quicker.
func TestRegression_QuorumReleaseThatFailsLate(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	f := newFilter(t, nodes[2].Addr())
	b := openThird(t, nodes, f.Addr())
	g := grantedByAll(t, b, nodes, "k")
	third := nodes[2].Client()
	time.Sleep(100 * time.Millisecond)
	f.set(func([]byte) (bool, bool, time.Duration) { return true, false, 0 })
	_, err := b.Release(t.Context(), g)
	ok(t, "Release", err)
	time.Sleep(thirdTimeout + 200*time.Millisecond)
	f.set(nil)
	eventually(t, "the third node lost the lease", func() bool { return third.Exists(t.Context(), "k").Val() == 0 })
}

// A request that was retried on a new connection may still be under way on the old one.
func TestRegression_QuorumGhostOfRetriedAcquire(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	f := newFilter(t, nodes[2].Addr())
	b := openThird(t, nodes, f.Addr())
	connected(t, b, nodes)
	var once sync.Once
	f.set(func(b []byte) (lose, cut bool, delay time.Duration) {
		if bytes.Contains(b, []byte("{k}")) {
			once.Do(func() { cut, delay = true, 600*time.Millisecond })
		}
		return
	})
	g := grantedByAll(t, b, nodes, "k")
	third := nodes[2].Client()
	time.Sleep(100 * time.Millisecond)
	_, err := b.Release(t.Context(), g)
	ok(t, "Release", err)
	time.Sleep(4 * time.Second)
	eventually(t, "the third node lost the lease", func() bool { return third.Exists(t.Context(), "k").Val() == 0 })
}

// release releases a key. If a busy machine answers too late, the release goes on in the background.
// The lease may also end while the machine stands still.
func release(t testing.TB, b core.Backend, g core.Grant) {
	t.Helper()
	_, err := b.Release(t.Context(), g)
	if err != nil && (!errors.Is(err, core.ErrLost) || time.Now().Before(g.Deadline)) {
		want(t, "Release", err, core.ErrUnavailable)
	}
}

// connected waits until an attempt holds a key on all nodes and frees it: the connections are there.
func connected(t testing.TB, b core.Backend, nodes testutil.Nodes) {
	t.Helper()
	release(t, b, grantedByAll(t, b, nodes, fmt.Sprint("warm", time.Now().UnixNano())))
}

// grantedByAll acquires a key, and tries again until all nodes have granted: a majority decides without
// the node that is last.
func grantedByAll(t testing.TB, b core.Backend, nodes testutil.Nodes, key string) (g core.Grant) {
	t.Helper()
	eventually(t, "all nodes grant", func() (all bool) {
		var err error
		if g, err = b.Acquire(t.Context(), attempt(key, time.Minute, 0)); err != nil {
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
	b := openThird(t, nodes, p.Addr())
	connected(t, b, nodes)
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
