package core_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
	"github.com/redis/go-redis/v9"
)

// logs is where a Locker reports to, for tests that read it.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logs) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

func (l *logs) option() core.Option { return core.WithLogger(slog.New(slog.NewTextHandler(l, nil))) }

const (
	leftOut = "keeps not answering"
	isBack  = "answers again"
)

// cycle locks and unlocks n times and returns how long the slowest of each took, but for the slowest hundredth.
func cycle(t *testing.T, l *core.Locker, n int) (lock, unlock time.Duration) {
	t.Helper()
	var locks, unlocks []time.Duration
	for range n {
		start := time.Now()
		k := acquire(t, l, "k")
		locks, start = append(locks, time.Since(start)), time.Now()
		ok(t, "Release", k.Release(t.Context()))
		unlocks = append(unlocks, time.Since(start))
	}
	p99 := func(d []time.Duration) time.Duration {
		slices.Sort(d)
		return d[len(d)*99/100]
	}
	return p99(locks), p99(unlocks)
}

// SIGSTOP of one and two of five: locks and unlocks go on at their pace, and soon without asking the nodes that hang.
func TestFault_StoppedMinority(t *testing.T) {
	t.Parallel()
	const timeout = 1200 * time.Millisecond
	nodes := testutil.Cluster(t, 5)
	var log logs
	l := locker(t, core.Clients(nodes.Clients()...), core.WithNodeTimeout(timeout), log.option())
	core.SetCoolDown(core.BackendOf(l), time.Hour)
	counts := core.CountCalls(core.BackendOf(l))
	lock, unlock := cycle(t, l, 200)
	t.Logf("healthy: p99 of lock %v, unlock %v", lock, unlock)
	for down := range 2 {
		nodes[down].Stop()
		defer nodes[down].Cont()
		lock, unlock = cycle(t, l, 100) // before it is noticed: the others decide without it
		t.Logf("%d stopped: p99 of lock %v, unlock %v", down+1, lock, unlock)
		if lock > timeout/2 || unlock > timeout/2 {
			t.Errorf("with %d of 5 nodes stopped lock takes %v, unlock %v: it waits for them", down+1, lock, unlock)
		}
		eventually(t, "the node is left out", func() bool {
			cycle(t, l, 1)
			return log.count(leftOut) == down+1
		})
		time.Sleep(timeout) // what was sent before is over
		before := counts[down].Load()
		lock, unlock = cycle(t, l, 100)
		t.Logf("%d left out: p99 of lock %v, unlock %v", down+1, lock, unlock)
		if n := counts[down].Load() - before; n > 10 { // but for late clean-ups
			t.Errorf("%d calls were made to a node that is left out, in 100 locks", n)
		}
		if lock > timeout/2 || unlock > timeout/2 {
			t.Errorf("with %d of 5 nodes left out lock takes %v, unlock %v", down+1, lock, unlock)
		}
	}
}

func TestBreaker_AProbeBringsTheNodeBack(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	var log logs
	l := locker(t, core.Clients(nodes.Clients()...), core.WithNodeTimeout(1200*time.Millisecond), log.option())
	core.SetCoolDown(core.BackendOf(l), 500*time.Millisecond)
	counts := core.CountCalls(core.BackendOf(l))
	cycle(t, l, 3)
	nodes[2].Stop()
	eventually(t, "the node is left out", func() bool { cycle(t, l, 1); return log.count(leftOut) == 1 })
	before := counts[2].Load()
	start := time.Now()
	for time.Since(start) < 1200*time.Millisecond { // many callers, and two or three cool-downs
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() { _ = l.Do(context.Background(), "k", func(context.Context) error { return nil }) })
		}
		all.Wait()
	}
	if n := counts[2].Load() - before; n > 40 { // a probe is asked and released, and what was sent before is cleaned up
		t.Errorf("%d calls to a node that is left out", n)
	}
	nodes[2].Cont()
	eventually(t, "the node is back", func() bool { cycle(t, l, 1); return log.count(isBack) > 0 })
	eventually(t, "the node grants", func() bool {
		k := acquire(t, l, "k")
		defer k.Release(context.Background())
		return nodes[2].Client().Get(t.Context(), "onelane:{k}").Val() == k.Owner()
	})
}

// SIGSTOP of three of five: unavailable, the survivors are released, and when they come back locks are granted at once.
func TestFault_StoppedMajority(t *testing.T) {
	t.Parallel()
	const timeout = 1200 * time.Millisecond
	nodes := testutil.Cluster(t, 5)
	var log logs
	l := locker(t, core.Clients(nodes.Clients()...), core.WithNodeTimeout(timeout), log.option())
	core.SetCoolDown(core.BackendOf(l), time.Hour) // nothing here may wait for it
	held := acquire(t, l, "held")
	for _, n := range nodes[:3] {
		n.Stop()
		defer n.Cont()
	}
	eventually(t, "all three are noticed", func() bool {
		start := time.Now()
		_, err := l.Acquire(t.Context(), "k", core.WithTTL(time.Minute))
		want(t, "Acquire", err, core.ErrUnavailable)
		if took := time.Since(start); took > timeout+hung {
			t.Errorf("it took %v", took)
		}
		return log.count(leftOut) == 3
	})
	for _, n := range nodes[3:] {
		client := n.Client()
		eventually(t, "a survivor is released", func() bool { return client.Exists(context.Background(), "onelane:{k}").Val() == 0 })
	}
	nodes[0].Cont() // a majority again, whichever was left out first
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			if err := l.Do(t.Context(), fmt.Sprint("k", i), func(context.Context) error { return nil }); err != nil {
				t.Errorf("with a majority of the nodes: %v", err)
			}
		})
	}
	all.Wait()
	nodes[1].Cont()
	nodes[2].Cont()
	ok(t, "Extend of a lock held all the time", held.Extend(t.Context(), time.Minute))
	ok(t, "Release of it", held.Release(t.Context()))
	cycle(t, l, 10)
}

// A lock that a node was left out of is extended, sealed and released like any other.
func TestBreaker_VerbsOfALeaseThatANodeWasLeftOutOf(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	var log logs
	l := locker(t, core.Clients(nodes.Clients()...), core.WithNodeTimeout(1200*time.Millisecond), log.option())
	core.SetCoolDown(core.BackendOf(l), time.Hour)
	cycle(t, l, 1)
	nodes[0].Stop()
	eventually(t, "the node is left out", func() bool { cycle(t, l, 1); return log.count(leftOut) == 1 })
	k := acquire(t, l, "k")
	nodes[0].Cont()
	ok(t, "Extend", k.Extend(t.Context(), time.Minute))
	ok(t, "Seal", k.Seal(t.Context(), []byte("v"), time.Minute))
	_, err := l.TryAcquire(t.Context(), "k")
	want(t, "TryAcquire", err, core.ErrSealed)

	// Lost on one node is lost: the one that was left out cannot have it.
	k = acquire(t, l, "lost")
	if nodes[0].Client().Exists(t.Context(), "onelane:{lost}").Val() == 0 {
		ok(t, "DEL", nodes[1].Client().Del(t.Context(), "onelane:{lost}").Err())
		want(t, "Extend", k.Extend(t.Context(), time.Minute), core.ErrLost)
	}
}

// A node that was restarted empty grants nothing for one TTL: with the two grants that are left of a lock on three nodes, and an
// empty one, two could hold the key.
func TestFault_RestartedEmpty(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(testutil.Nodes) core.Backend{
		"clients": func(ns testutil.Nodes) core.Backend { return core.Clients(ns.Clients()...) },
		"pools":   func(ns testutil.Nodes) core.Backend { return core.Pools(ns.Pools()...) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const ttl = 3 * time.Second
			nodes := testutil.Cluster(t, 3)
			opts := []core.Option{core.WithTTL(ttl), core.WithoutRenewal(), patient}
			l := locker(t, open(nodes), opts...)
			ok(t, "Release", acquire(t, l, "warm").Release(t.Context()))
			time.Sleep(ttl + 2*time.Second) // the nodes are not new any more; seconds is what they count in
			k := acquire(t, l, "k")
			key := "onelane:{" + k.Key() + "}"
			eventually(t, "all nodes hold it", func() bool { return nodes[2].Client().Del(t.Context(), key).Val() == 1 }) // as if it had not got there
			nodes[1].Restart()                                                                                            // and forgets it
			second := locker(t, open(nodes), opts...)                                                                     // a new process
			for name, other := range map[string]*core.Locker{"who knew the node before": l, "a new process": second} {
				_, err := other.TryAcquire(t.Context(), "k")
				if other == l {
					_, err = core.BackendOf(l).Acquire(t.Context(), key, "another/1", ttl) // the Locker itself knows that it has the key
				}
				if err == nil {
					t.Fatalf("two hold the key: %s gets it too", name)
				}
				ok(t, "locks on the two others", other.Do(t.Context(), "free", func(context.Context) error { return nil }))
			}
			ok(t, "Err of the holder", k.Err())
			eventually(t, "the restarted node grants again", func() bool {
				k, err := l.TryAcquire(context.Background(), "again")
				if err != nil {
					return false
				}
				defer k.Release(context.Background())
				return nodes[1].Client().Exists(t.Context(), "onelane:{again}").Val() == 1
			})
		})
	}
}

// A quorum that is new is used at once, by every process and with every TTL: it has nothing that it could have forgotten.
func TestQuorum_ANewOneDoesNotWait(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	short := locker(t, core.Clients(nodes.Clients()...), core.WithTTL(50*time.Millisecond), core.WithoutRenewal(), patient)
	time.Sleep(2100 * time.Millisecond) // old enough for the short TTL
	ok(t, "Release", acquire(t, short, "k").Release(t.Context()))
	k := acquire(t, short, "k", core.WithTTL(time.Minute))
	_, err := locker(t, core.Clients(nodes.Clients()...), patient).TryAcquire(t.Context(), "k")
	want(t, "TryAcquire by another process", err, core.ErrTaken)
	ok(t, "Release", k.Release(t.Context()))

	mini := []redis.UniversalClient{testutil.MiniRedis(t), testutil.MiniRedis(t), testutil.MiniRedis(t)} // does not know when it started
	ok(t, "Release", acquire(t, locker(t, core.Clients(mini...), patient), "k").Release(t.Context()))
}

// A node whose clock is set back after it has restarted seems to start in the future.
func TestQuorum_ARestartedNodeAbstainsAlsoWhenItsClockIsSetBack(t *testing.T) {
	t.Parallel()
	now := time.Now().UnixMicro()
	nodes, links := make([]*simNode, 3), make([]core.NodeFunc, 3)
	var mu sync.Mutex
	for i := range nodes {
		nodes[i] = newSimNode(func() int64 { return now }, rules{})
		nodes[i].runID, nodes[i].started = fmt.Sprint("first", i), now-3600e6
		links[i] = func(_ context.Context, script string, keys []string, args []any) (any, <-chan struct{}, bool, error) {
			mu.Lock()
			defer mu.Unlock()
			return nodes[i].run(script, keys, texts(args)), nil, false, nil
		}
	}
	l := locker(t, core.Nodes(links))
	acquire(t, l, "k")
	eventually(t, "all nodes hold it", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return !slices.ContainsFunc(nodes, func(n *simNode) bool { return len(n.data) < 2 })
	})
	mu.Lock()
	for i, n := range nodes[:2] {
		clear(n.data)
		n.runID, n.started = fmt.Sprint("second", i), now+60e6
	}
	mu.Unlock()
	_, err := locker(t, core.Nodes(links)).TryAcquire(t.Context(), "k")
	want(t, "TryAcquire", err, core.ErrUnavailable)
}
