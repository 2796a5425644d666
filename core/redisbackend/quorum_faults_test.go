package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil"
)

// restarted is a quorum whose nodes have their vote again as soon as it can be: 9 s after a start.
func restarted(nodes testutil.Nodes) redisbackend.Config {
	c := redisbackend.New(nodes.Clients()...)
	c.NodeTimeout, c.LongestTTL = time.Second, 4*time.Second
	return c
}

// hasVote waits until a node grants keys.
func hasVote(t *testing.T, b core.Backend, node *testutil.Node) {
	t.Helper()
	client := node.Client()
	eventually(t, "the node grants again", func() bool {
		r := attempt(fmt.Sprint("vote", time.Now().UnixNano()), time.Second, 0)
		g, err := b.Acquire(t.Context(), r)
		if err != nil {
			return false
		}
		granted := false
		for end := time.Now().Add(100 * time.Millisecond); !granted && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			granted = client.Get(t.Context(), r.Key).Val() == redisbackend.QuorumMark+r.Owner
		}
		release(t, b, g)
		return granted
	})
}

// All nodes restart empty, one after the other, each when the one before has its vote again. A held
// lock survives, although another process tries to get it. On a machine that stands still for most
// of a lease, the lock is lost rightly: then there is another try.
func TestQuorum_RollingRestartKeepsLock(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 5} {
		if n > 3 && !long {
			continue
		}
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			err := restartAll(t, testutil.Cluster(t, n))
			for try := 1; try < 3 && errors.Is(err, core.ErrLost); try++ {
				err = restartAll(t, testutil.Cluster(t, n))
			}
			ok(t, "the lock", err)
		})
	}
}

// restartAll restarts one node after the other, and returns why the lock ended.
func restartAll(t *testing.T, nodes testutil.Nodes) error {
	first := quorumOf(nodes)
	first.NodeTimeout = time.Second
	holder, waiter := locker(t, first, core.WithTTL(3*time.Second)), locker(t, restarted(nodes), core.WithTTL(3*time.Second))
	// The masters are new: they give the holder's lease, and abstain for the others.
	k := acquire(t, holder, "k")
	b := openQuorum(t, restarted(nodes), 3*time.Second)
	for _, node := range nodes {
		hasVote(t, b, node)
	}
	got := make(chan *core.Lock, 1)
	go func() {
		next, err := waiter.Acquire(context.Background(), "k")
		if err == nil {
			got <- next
		}
	}()
	for _, node := range nodes {
		node.Restart()
		hasVote(t, b, node)
		client := node.Client()
		eventually(t, "the restarted node has the lease again", func() bool {
			return k.Err() != nil || client.Get(t.Context(), "onelane:{k}").Val() == redisbackend.QuorumMark+k.Owner()
		})
	}
	err := released(t, k)
	next := <-got
	_ = next.Release(t.Context())
	return err
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

// One node is killed after its last snapshot, as Redis makes them by default, or without any. The
// others keep everything. With what that node forgot, two could hold the key, and tokens could go back.
func TestQuorum_RestartWithOldData(t *testing.T) {
	t.Parallel()
	for _, empty := range []bool{false, true} {
		t.Run(fmt.Sprint("empty ", empty), func(t *testing.T) {
			t.Parallel()
			all := []string{"--appendonly", "yes", "--appendfsync", "always"}
			nodes := testutil.Nodes{testutil.Redis(t, all...), testutil.Redis(t, "--save", "3600 1"), testutil.Redis(t, all...)}
			if !nodes[0].Real() {
				return // a miniredis keeps no files
			}
			first, b := openQuorum(t, quorumOf(nodes), time.Second), openQuorum(t, restarted(nodes), time.Second)
			use := func(b core.Backend, release bool) (g core.Grant) {
				eventually(t, "Acquire", func() bool {
					var err error
					g, err = b.Acquire(t.Context(), attempt("k", 4*time.Second, 0))
					return err == nil
				})
				if release {
					eventually(t, "Release", func() bool { _, err := b.Release(t.Context(), g); return err == nil })
				}
				return g
			}
			grantedByAll(t, first, nodes, "warm")
			use(first, true)
			if !empty {
				ok(t, "SAVE", nodes[1].Client().Save(t.Context()).Err())
			}
			nodes[2].Kill()
			for range 3 {
				use(first, true)
			}
			held := use(first, false) // by nodes 0 and 1
			nodes[1].Kill()
			nodes[1].Restart()
			nodes[2].Restart()
			nodes[0].Stop()
			// Nodes 1 and 2 do not know of the holder.
			_, err := b.Acquire(within(t, 2*time.Second), attempt("k", 4*time.Second, 0))
			if err == nil && time.Now().Before(held.Deadline) {
				t.Error("two holders")
			}
			hasVote(t, b, nodes[1])
			next := use(b, true)
			nodes[0].Cont()
			if next.Token <= held.Token {
				t.Errorf("token %d after %d", next.Token, held.Token)
			}
		})
	}
}

// The clocks of two callers are almost 4 s apart, and their leases are short. A node that forgot its
// promise in a restart has no vote until tokens cannot go back.
func TestQuorum_RestartBetweenClocks(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	cut := newClient(t, &redis.Options{Addr: "127.0.0.1:1"}) // no link to this node
	ahead, behind := restarted(nodes), restarted(nodes)
	ahead.Clients = []redis.UniversalClient{nodes[0].Client(), nodes[1].Client(), cut}
	behind.Clients = []redis.UniversalClient{cut, nodes[1].Client(), nodes[2].Client()}
	ahead.NewInstallation, behind.LongestTTL = true, time.Second // shorter than the clocks are apart
	var tokens []uint64
	use := func(c redisbackend.Config, off time.Duration) {
		b := openQuorum(t, c, time.Second)
		redisbackend.SetQuorumClock(b, func() time.Time { return time.Now().Add(off) })
		eventually(t, "Acquire", func() bool {
			g, err := b.Acquire(t.Context(), attempt("k", time.Second, 0))
			if err == nil {
				tokens = append(tokens, g.Token)
				release(t, b, g)
			}
			return err == nil
		})
	}
	use(ahead, 1900*time.Millisecond)
	nodes[1].Restart()
	use(behind, -1900*time.Millisecond)
	if tokens[1] <= tokens[0] {
		t.Errorf("token %d after %d", tokens[1], tokens[0])
	}
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
