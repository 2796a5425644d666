package core_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
	"github.com/redis/go-redis/v9"
)

// patient is a node time-out for a test machine that is busy with other tests.
var patient = core.WithNodeTimeout(2 * time.Second)

func TestBackend_Quorum(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 5} {
		nodes := testutil.Cluster(t, n)
		for name, b := range map[string]core.Backend{"clients": core.Clients(nodes.Clients()...), "pools": core.Pools(nodes.Pools()...)} {
			t.Run(fmt.Sprint(n, name), func(t *testing.T) {
				opened, err := core.Open(b, patient)
				ok(t, "Open", err)
				t.Cleanup(func() { ok(t, "Close", opened.(io.Closer).Close()) })
				testutil.TestBackend(t, func(*testing.T) core.Backend { return opened })
			})
		}
	}
}

func TestQuorum_WorksWithAMinorityDead(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 5)
	l := locker(t, core.Clients(nodes.Clients()...), patient)
	held := acquire(t, l, "held")
	nodes[0].Stop() // hangs
	defer nodes[0].Cont()
	nodes[3].Kill() // refuses
	start := time.Now()
	ok(t, "Extend", held.Extend(t.Context(), time.Minute))
	ok(t, "Release", held.Release(t.Context()))
	for i := range 5 {
		k := acquire(t, l, fmt.Sprint("k", i))
		ok(t, "Release", k.Release(t.Context()))
	}
	ok(t, "Seal", acquire(t, l, "s").Seal(t.Context(), []byte("v"), time.Minute))
	_, err := l.TryAcquire(t.Context(), "s")
	want(t, "TryAcquire", err, core.ErrSealed)
	ok(t, "Unseal", l.Unseal(t.Context(), "s"))
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("took %v with two of five nodes down", took)
	}
}

func TestQuorum_MajorityHungIsUnavailableAndSurvivorsAreReleased(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 5)
	l := locker(t, core.Clients(nodes.Clients()...), core.WithNodeTimeout(500*time.Millisecond))
	for _, n := range nodes[:3] {
		n.Stop()
		defer n.Cont()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := l.Acquire(ctx, "k", core.WithTTL(time.Minute))
	want(t, "Acquire", err, core.ErrUnavailable)
	for _, says := range []string{"node 1: ", "node 2: ", "node 3: "} {
		if strings.Count(err.Error(), says) != 1 || strings.Count(err.Error(), `"k"`) != 1 {
			t.Errorf("the error does not name each node that did not answer: %v", err)
		}
	}
	for _, n := range nodes[3:] {
		client := n.Client()
		eventually(t, "a survivor is released", func() bool { return client.Exists(context.Background(), "onelane:{k}").Val() == 0 })
	}
}

func TestQuorum_AHungMajorityIsCleanedUpWhenItComesBack(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	l := locker(t, core.Clients(nodes.Clients()...), core.WithNodeTimeout(500*time.Millisecond))
	ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
	nodes[0].Stop()
	nodes[1].Stop()
	_, err := l.Acquire(t.Context(), "k", core.WithTTL(time.Minute))
	want(t, "Acquire", err, core.ErrUnavailable)
	nodes[0].Cont()
	nodes[1].Cont()
	eventually(t, "the key is free long before its TTL", func() bool {
		k, err := l.TryAcquire(context.Background(), "k")
		return err == nil && k.Release(context.Background()) == nil
	})
}

// A node that is slow gets the request to acquire after the one to release: what it grants then is given back.
func TestQuorum_AGrantAfterTheLeaseEndedIsGivenBack(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	p := newProxy(t, nodes[2].Addr())
	slow := redis.NewClient(&redis.Options{Addr: p.Addr().String(), MinIdleConns: 2})
	t.Cleanup(func() { _ = slow.Close() })
	l := locker(t, core.Clients(nodes[0].Client(), nodes[1].Client(), slow), patient)
	for range 3 {
		ok(t, "Release", acquire(t, l, "warm").Release(t.Context()))
	}
	direct := nodes[2].Client()
	p.delay.Store(int64(200 * time.Millisecond))
	ok(t, "Release", acquire(t, l, "k", core.WithTTL(time.Minute)).Release(t.Context()))
	eventually(t, "the slow node has granted", func() bool { return direct.Exists(context.Background(), "onelane:{k}:fence").Val() == 1 })
	eventually(t, "the grant is given back", func() bool { return direct.Exists(context.Background(), "onelane:{k}").Val() == 0 })
}

// Two holders never overlap and tokens increase, whichever nodes make the majority.
func TestQuorum_TokensIncreaseOverChangingMajorities(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	l := locker(t, core.Clients(nodes.Clients()...), core.WithNodeTimeout(500*time.Millisecond))
	ok(t, "Release", acquire(t, l, "warm").Release(t.Context())) // it has seen that all are new
	// Counters that differ, as after nodes were down for a while: their maximum alone gives 101 on {1,2}, then 3 on {2,3}.
	for i, counter := range []string{"1900000000000000", "1800000000000000", "1800000000000000"} {
		ok(t, "SET", nodes[i].Client().Set(t.Context(), "onelane:{k}:fence", counter, time.Hour).Err())
	}
	var last uint64
	for round := range 9 {
		down := nodes[(round+2)%3]
		down.Stop()
		k := acquire(t, l, "k")
		if k.Token() <= last {
			t.Errorf("round %d: token %d after %d", round, k.Token(), last)
		}
		last = k.Token()
		ok(t, "Release", k.Release(t.Context()))
		down.Cont()
	}
}

func TestQuorum_ContendedByThreeProcesses(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	var lockers []*core.Locker
	for range 3 {
		lockers = append(lockers, locker(t, core.Clients(nodes.Clients()...), patient))
	}
	var wg sync.WaitGroup
	n := 0
	var last uint64
	for i := range 9 {
		wg.Go(func() {
			for range 10 {
				k, err := lockers[i%3].Acquire(t.Context(), "hot")
				if err != nil {
					t.Error(err)
					return
				}
				n++
				if k.Token() <= last {
					t.Errorf("token %d after %d", k.Token(), last)
				}
				last = k.Token()
				if err := k.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n != 90 {
		t.Errorf("counted %d, want 90", n)
	}
}

func TestQuorum_ASealOnAMinority(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	b, err := core.Open(core.Clients(nodes.Clients()...), core.WithNodeTimeout(500*time.Millisecond))
	ok(t, "Open", err)
	t.Cleanup(func() { ok(t, "Close", b.(io.Closer).Close()) })
	one := core.Clients(nodes[0].Client())
	ctx := t.Context()
	crash := func(key string) core.Grant { // a holder that dies when one node has the seal
		g, err := b.Acquire(ctx, key, "holder/"+key, time.Minute)
		ok(t, "Acquire", err)
		eventually(t, "all nodes hold the key", func() bool {
			for _, n := range nodes {
				if n.Client().Exists(ctx, key).Val() == 0 {
					return false
				}
			}
			return true
		})
		ok(t, "Seal on one node", one.Seal(ctx, g, g.Token, []byte("v"), time.Minute))
		for _, n := range nodes[1:] {
			ok(t, "its lease ends", n.Client().Del(ctx, key).Err())
		}
		return g
	}

	crash("onelane:{repaired}")
	nodes[1].Stop() // so that the node with the seal is needed
	_, err = b.Acquire(ctx, "onelane:{repaired}", "next/1", time.Minute)
	want(t, "after it nobody ran: it is repaired and answered", err, core.ErrSealed)
	nodes[1].Cont()
	carry := 0
	for _, n := range nodes {
		if v := n.Client().Get(ctx, "onelane:{repaired}").Val(); len(v) > 0 && v[0] == 0 {
			carry++
		}
	}
	if carry < 2 {
		t.Errorf("%d of 3 nodes carry a seal that was answered", carry)
	}

	g := crash("onelane:{old}")
	nodes[0].Stop() // the node with the seal is away while somebody runs
	next, err := b.Acquire(ctx, "onelane:{old}", "next/2", time.Minute)
	ok(t, "Acquire by the others", err)
	ok(t, "Release", b.Release(ctx, next))
	nodes[0].Cont()
	eventually(t, "the old seal is ignored", func() bool {
		again, err := b.Acquire(ctx, "onelane:{old}", fmt.Sprint("next/", time.Now().UnixNano()), time.Minute)
		if err != nil {
			return false
		}
		if again.Token <= next.Token || next.Token <= g.Token {
			t.Errorf("tokens %d, %d, %d", g.Token, next.Token, again.Token)
		}
		return b.Release(ctx, again) == nil
	})
}

// A seal on a minority may be completed by who asks next, so that Seal must not say that nothing was sealed; nor take it back,
// since that may be after it was answered.
func TestQuorum_ASealOnAMinorityIsNotCalledLost(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	b, err := core.Open(core.Clients(nodes.Clients()...), patient)
	ok(t, "Open", err)
	t.Cleanup(func() { ok(t, "Close", b.(io.Closer).Close()) })
	key, ctx := "onelane:{k}", t.Context()
	g, err := b.Acquire(ctx, key, "holder/1", time.Minute)
	ok(t, "Acquire", err)
	eventually(t, "all nodes hold the key", func() bool { return nodes[0].Client().Exists(ctx, key).Val() == 1 })
	for _, n := range nodes[1:] {
		eventually(t, "the lease ends on a majority", func() bool { return n.Client().Del(ctx, key).Val() == 1 })
	}
	want(t, "Seal", b.Seal(ctx, g, g.Token, []byte("v"), time.Minute), core.ErrUnavailable)
	nodes[1].Stop() // so that the node with the seal is asked
	defer nodes[1].Cont()
	_, err = b.Acquire(ctx, key, "next/1", time.Minute)
	want(t, "Acquire after it", err, core.ErrSealed)
	want(t, "Seal again", b.Seal(ctx, g, g.Token, []byte("v"), time.Minute), nil)
}

func TestQuorum_ASealThatIsLostEverywhereIsLost(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	b, err := core.Open(core.Clients(nodes.Clients()...), patient)
	ok(t, "Open", err)
	t.Cleanup(func() { ok(t, "Close", b.(io.Closer).Close()) })
	key, ctx := "onelane:{k}", t.Context()
	g, err := b.Acquire(ctx, key, "holder/1", time.Minute)
	ok(t, "Acquire", err)
	for _, n := range nodes {
		eventually(t, "the lease ends", func() bool { return n.Client().Del(ctx, key).Val() == 1 })
	}
	want(t, "Seal", b.Seal(ctx, g, g.Token, []byte("v"), time.Minute), core.ErrLost)
}

// What is left of a seal on one node, whose clock is late, would be completed by the next who asks.
func TestQuorum_UnsealFindsASealOnOneNode(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	l := locker(t, core.Clients(nodes.Clients()...), patient)
	for round := range 10 {
		key := fmt.Sprint("k", round)
		k := acquire(t, l, key)
		seal := fmt.Sprintf("\x00%d:v", k.Token())
		ok(t, "Release", k.Release(t.Context()))
		last := nodes[round%3].Client()
		eventually(t, "released everywhere", func() bool { return last.Exists(t.Context(), "onelane:{"+key+"}").Val() == 0 })
		ok(t, "SET", last.Set(t.Context(), "onelane:{"+key+"}", seal, time.Hour).Err())
		ok(t, "Unseal", l.Unseal(t.Context(), key))
		ok(t, "Release", acquire(t, l, key).Release(t.Context()))
	}
}

// A seal that was left on a minority may be older than what the nodes remember of later leases.
func TestQuorum_UnsealOfAnOldSealDoesNotTurnTokensBack(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	l := locker(t, core.Clients(nodes.Clients()...), core.WithNodeTimeout(500*time.Millisecond))
	k := acquire(t, l, "k")
	before := k.Token()
	ok(t, "Release", k.Release(t.Context()))
	nodes[2].Stop() // so that the node with the seal is asked
	defer nodes[2].Cont()
	eventually(t, "both are free, and have forgotten", func() bool {
		for _, n := range nodes[:2] {
			n.Client().Del(t.Context(), "onelane:{k}:fence")
		}
		return nodes[0].Client().Exists(t.Context(), "onelane:{k}", "onelane:{k}:fence").Val() == 0
	})
	seal := fmt.Sprintf("\x00%d:v", before-1000)
	ok(t, "SET", nodes[0].Client().Set(t.Context(), "onelane:{k}", seal, time.Hour).Err())
	ok(t, "Unseal", l.Unseal(t.Context(), "k"))
	if k := acquire(t, l, "k"); k.Token() <= before {
		t.Errorf("token %d after %d", k.Token(), before)
	}
}

// A copy of a seal that arrives after the Unseal that a majority decided would, with another late one, be a majority again.
func TestQuorum_ACopyOfASealThatArrivesAfterUnsealIsRefused(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	keys := []string{"{k}", "{k}:fence"}
	run := func(script string, args ...any) []any {
		t.Helper()
		answer, err := client.Eval(t.Context(), core.Scripts[script], keys, args...).Slice()
		ok(t, script, err)
		return answer
	}
	now := time.Now().UnixMicro()
	if answer := run("quorum_acquire", "o", 60_000, 3_660_000, now, 900_000_000, -60_000, "", ""); answer[0] != int64(1) {
		t.Fatalf("the lock was answered with %v", answer)
	}
	seal := []any{"o", "", fmt.Sprintf("\x00%d:v", now), 60_000, now, 3_660_000, ""}
	run("quorum_unseal", "", 3_660_000, now, core.TokenBlock)
	if answer := run("quorum_seal", seal...); answer[0] != int64(4) {
		t.Errorf("the late copy was answered with %v", answer)
	}
	if value := client.Get(t.Context(), keys[0]).Val(); value != "o" {
		t.Errorf("the key holds %q", value)
	}
}
