package redisbackend_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil"
)

// durable starts masters that keep their data when they are restarted, except the first few.
func durable(t *testing.T, n, forgetful int) (nodes testutil.Nodes) {
	for i := range n {
		if i < forgetful {
			nodes = append(nodes, testutil.Redis(t))
		} else {
			nodes = append(nodes, testutil.Redis(t, "--appendonly", "yes", "--appendfsync", "always"))
		}
	}
	return nodes
}

// tellsSeal checks that a caller gets the value of the seal.
func tellsSeal(t *testing.T, l *core.Locker, key, value string) {
	t.Helper()
	_, err := l.TryAcquire(t.Context(), key)
	var sealed *core.SealedError
	if !errors.As(err, &sealed) || string(sealed.Value) != value {
		t.Fatalf("TryAcquire(%q): %v, want the seal %q", key, err, value)
	}
}

// sealed seals a key. A busy machine may need a second lease for it.
func sealed(t *testing.T, l *core.Locker, key, value string) {
	t.Helper()
	eventually(t, "the key is sealed", func() bool {
		k, err := l.Acquire(t.Context(), key)
		if errors.Is(err, core.ErrSealed) { // by a Seal whose answer came too late: one must come in time
			_ = l.Unseal(t.Context(), key)
			return false
		}
		if err == nil {
			err = k.Seal(t.Context(), []byte(value), time.Hour)
		}
		if err != nil && !errors.Is(err, core.ErrUnavailable) && !errors.Is(err, core.ErrLost) && !errors.Is(err, core.ErrTaken) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// has reports whether a node has a value for the key.
func has(t *testing.T, n *testutil.Node, key string) bool {
	return n.Client().Exists(t.Context(), "onelane:{"+key+"}:accepted").Val() == 1
}

// A retry is answered while all nodes are up. Then one of the two that had the seal comes back
// empty.
func TestQuorum_SealSurvivesEmptyNode(t *testing.T) {
	t.Parallel()
	nodes := durable(t, 3, 1)
	l := locker(t, quorumOf(nodes))
	nodes[2].Kill()
	sealed(t, l, "k", "v")
	nodes[2].Restart()
	eventually(t, "the third node has the seal too", func() bool {
		tellsSeal(t, l, "k", "v")
		return has(t, nodes[2], "k")
	})
	nodes[0].Restart()
	eventually(t, "the empty node has the seal again", func() bool {
		tellsSeal(t, l, "k", "v")
		return has(t, nodes[0], "k")
	})
}

// A node that has the seal is down, and another missed it.
func TestQuorum_SealReadableFromOneNode(t *testing.T) {
	t.Parallel()
	nodes := durable(t, 3, 0)
	l := locker(t, quorumOf(nodes), core.WithTTL(3*time.Second))
	nodes[2].Kill()
	sealed(t, l, "k", "v")
	nodes[2].Restart()
	nodes[0].Kill()
	if st, err := l.Inspect(t.Context(), "k"); err == nil && st.Status == core.Free {
		t.Error("Inspect says that a sealed key is free")
	}
	// The request to the node that was down may have arrived late, and left a lease there.
	eventually(t, "a caller is told of the seal", func() bool {
		_, err := l.TryAcquire(t.Context(), "k")
		return errors.Is(err, core.ErrSealed)
	})
	st, err := l.Inspect(t.Context(), "k")
	ok(t, "Inspect", err)
	if st.Status != core.Sealed || string(st.Value) != "v" {
		t.Errorf("Inspect = %v %q", st.Status, st.Value)
	}
}

// Seal A reaches one node, seal B two others, and a later attempt only the other two.
func TestQuorum_SealsOnMinorities(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 5)
	b := openQuorum(t, quorumOf(nodes), time.Minute)
	request := func(owner string) core.Request {
		return core.Request{Key: "onelane:{k}", Owner: owner, TTL: time.Minute}
	}
	stop := func(some ...int) func() {
		for _, i := range some {
			nodes[i].Stop()
		}
		return func() {
			for _, i := range some {
				nodes[i].Cont()
			}
		}
	}
	// lapse ends the lease on some nodes.
	lapse := func(some ...int) {
		t.Helper()
		for _, i := range some {
			client := nodes[i].Client()
			eventually(t, "the lease is there", func() bool { return client.Del(t.Context(), "onelane:{k}").Val() == 1 })
		}
	}
	// seal seals on the nodes where the lease did not lapse.
	seal := func(owner, value string, lapsed ...int) {
		t.Helper()
		var g core.Grant
		tries := 0
		eventually(t, "Acquire", func() bool {
			tries++
			var err error
			g, err = b.Acquire(t.Context(), request(fmt.Sprint(owner, tries)))
			return err == nil
		})
		lapse(lapsed...)
		want(t, "Seal", b.(core.Sealer).Seal(t.Context(), g, []byte(value), time.Hour), core.ErrUnavailable)
	}
	// Requests to stopped nodes have their effect when the nodes go on.
	expire := func() {
		for _, n := range nodes {
			ok(t, "DEL", n.Client().Del(t.Context(), "onelane:{k}").Err())
		}
	}
	seal("a/", "a", 1, 2, 3, 4)
	cont := stop(0)
	seal("b/", "b", 3, 4)
	cont()
	cont = stop(0, 1, 2)
	_, err := b.Acquire(t.Context(), request("c/1"))
	want(t, "Acquire on two nodes", err, core.ErrUnavailable)
	cont()
	expire()
	if st, err := b.Inspect(t.Context(), "onelane:{k}"); err == nil && st.Status == core.Free {
		t.Error("Inspect says that the key is free")
	}
	i := 0
	eventually(t, "the key can be used", func() bool {
		i++
		_, err := b.Acquire(t.Context(), request(fmt.Sprint("d/", i)))
		return err == nil || errors.Is(err, core.ErrSealed)
	})
	eventually(t, "Unseal", func() bool { return b.(core.Sealer).Unseal(t.Context(), "onelane:{k}") == nil })
}

// All nodes restart empty one after the other, and the key is read in between.
func TestQuorum_SealSurvivesEmptyNodesInTurn(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 5)
	l := locker(t, quorumOf(nodes), core.WithTTL(2*time.Second))
	sealed(t, l, "k", "v")
	for i, n := range nodes {
		eventually(t, "all nodes have the seal", func() bool {
			tellsSeal(t, l, "k", "v")
			for _, n := range nodes {
				if !has(t, n, "k") {
					return false
				}
			}
			return true
		})
		n.Restart()
		t.Logf("node %d is empty", i)
	}
	tellsSeal(t, l, "k", "v")
}

// A lock that is held while all nodes restart empty one after the other. On a machine that stands
// still for most of a lease, the lock is lost rightly: then the next one has a longer lease.
func TestQuorum_RollingRestartKeepsLock(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			nodes := testutil.Cluster(t, n)
			c := redisbackend.New(nodes.Clients()...)
			c.NodeTimeout = time.Second
			ttl := 2 * time.Second
			err := restartAll(t, c, nodes, ttl)
			for errors.Is(err, core.ErrLost) && ttl < 8*time.Second {
				ttl *= 2
				err = restartAll(t, c, nodes, ttl)
			}
			ok(t, "the lock", err)
		})
	}
}

// restartAll restarts one node after the other, each when it has the lease, and returns why the
// lock ended.
func restartAll(t *testing.T, c redisbackend.Config, nodes testutil.Nodes, ttl time.Duration) error {
	k := acquire(t, locker(t, c, core.WithTTL(ttl)), "k", core.WithOutageWait(time.Minute)) // until no node abstains
	for _, node := range nodes {
		node.Restart()
		eventually(t, "the restarted node has the lease again", func() bool {
			return k.Err() != nil || node.Client().Get(t.Context(), "onelane:{k}").Val() == k.Owner()
		})
	}
	return released(t, k)
}

// released releases a lock and returns why it ended before. A busy machine may answer the release
// too late.
func released(t *testing.T, k *core.Lock) error {
	err := k.Err()
	if r := k.Release(t.Context()); !errors.Is(r, core.ErrUnavailable) {
		err = errors.Join(err, r)
	}
	return err
}

// With the two grants that are left of a lock on three nodes, and an empty one, two could hold the
// key.
func TestQuorum_RestartedNodeAbstains(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	nodes := testutil.Cluster(t, 3)
	c := redisbackend.New(nodes.Clients()...)
	c.NodeTimeout = time.Second
	b := openQuorum(t, c, ttl)
	request := func(key, owner string) core.Request { return core.Request{Key: key, Owner: owner, TTL: ttl} }
	var g core.Grant
	var key string
	i := 0
	// A node that still abstains grants nothing, and the third may answer after the other two.
	eventually(t, "all three nodes grant, and the third forgets it", func() bool {
		i++
		key = fmt.Sprint("k", i)
		var err error
		if g, err = b.Acquire(t.Context(), request(key, fmt.Sprint("a/", i))); err != nil {
			return false
		}
		for time.Now().Before(g.Deadline.Add(-ttl / 2)) {
			held := 0
			for _, n := range nodes {
				held += int(n.Client().Exists(t.Context(), key).Val())
			}
			if held == len(nodes) {
				return nodes[2].Client().Del(t.Context(), key).Val() == 1
			}
		}
		return false
	})
	nodes[1].Restart()
	for time.Now().Before(g.Deadline) {
		other, err := b.Acquire(t.Context(), request(key, fmt.Sprint("b/", time.Now().UnixNano())))
		if err == nil && time.Now().Before(g.Deadline) {
			t.Fatalf("two hold the key: tokens %d and %d", g.Token, other.Token)
		}
		if err == nil {
			return
		}
	}
	eventually(t, "the restarted node grants again", func() bool {
		_, err := b.Acquire(t.Context(), core.Request{Key: "other", Owner: fmt.Sprint("c/", time.Now().UnixNano()), TTL: ttl})
		return err == nil && nodes[1].Client().Exists(t.Context(), "other").Val() == 1
	})
}

// Locks go on at their pace while a minority hangs: nobody waits for it.
func TestQuorum_HungMinority(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 5)
	c := quorumOf(nodes)
	c.NodeTimeout = 2 * time.Minute
	b := openQuorum(t, c, time.Minute)
	for down := range 3 {
		start := time.Now()
		for i := range 50 {
			name := fmt.Sprintf("%d-%d", down, i)
			g, err := b.Acquire(t.Context(), core.Request{Key: "k" + name, Owner: "a/" + name, TTL: time.Minute})
			ok(t, "Acquire", err)
			_, err = b.Extend(t.Context(), g, time.Minute)
			ok(t, "Extend", err)
			_, err = b.Release(t.Context(), g)
			ok(t, "Release", err)
		}
		if took := time.Since(start); took > c.NodeTimeout/2 {
			t.Errorf("with %d of 5 nodes hung, 50 locks took %v", down, took)
		}
		if down < 2 {
			nodes[down].Stop()
			defer nodes[down].Cont()
		}
	}
}

// With a majority hung the survivors are released, and locks are granted when it is back.
func TestQuorum_HungMajority(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 5)
	c := quorumOf(nodes)
	c.NodeTimeout = 300 * time.Millisecond
	b := openQuorum(t, c, time.Minute)
	for _, n := range nodes[:3] {
		n.Stop()
		defer n.Cont()
	}
	_, err := b.Acquire(t.Context(), core.Request{Key: "k", Owner: "a/1", TTL: time.Minute})
	want(t, "Acquire", err, core.ErrUnavailable)
	for _, n := range nodes[3:] {
		eventually(t, "a survivor is released", func() bool { return n.Client().Exists(t.Context(), "k").Val() == 0 })
	}
	nodes[0].Cont()
	i := 0
	eventually(t, "a majority grants", func() bool {
		i++
		_, err := b.Acquire(t.Context(), core.Request{Key: "other", Owner: fmt.Sprint("b/", i), TTL: time.Minute})
		return err == nil
	})
}

// An operator restarts the masters of a quorum as docs/quorum.md says. They come back empty,
// because no log is needed for leases. A leader holds its lock meanwhile.
func TestQuorum_RestartsAsDocumentedKeepTheLock(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	nodes := testutil.Cluster(t, 3)
	c := redisbackend.New(nodes.Clients()...)
	c.NodeTimeout = time.Second
	k := acquire(t, locker(t, c, core.WithTTL(ttl)), "k", core.WithOutageWait(time.Minute)) // until no node abstains
	for i, node := range nodes {
		if i > 0 {
			time.Sleep(2*ttl + 2*time.Second)
		}
		node.Restart()
	}
	ok(t, "the lock", released(t, k))
}
