package core_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

func TestWakeUp_AWaiterInAnotherProcessIsToldOfTheRelease(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	holder, waiter := locker(t, core.Clients(node.Client())), locker(t, core.Clients(node.Client()))
	k := acquire(t, holder, "k")
	got := make(chan *core.Lock, 1)
	counts := node.Commands(t, func() {
		go func() {
			k, err := waiter.Acquire(context.Background(), "k")
			if err != nil {
				t.Error(err)
			}
			got <- k
		}()
		time.Sleep(2 * time.Second)
		ok(t, "Release", k.Release(t.Context()))
		start := time.Now()
		k = <-got
		if took := time.Since(start); took > 200*time.Millisecond {
			t.Errorf("woken %v after the release", took)
		}
	})
	if n := counts["evalsha"] + counts["eval"]; n > 15 { // it looks for itself about once a second; polling would take more than 30
		t.Errorf("%d scripts in two seconds of waiting", n)
	}
	ok(t, "Release", k.Release(t.Context()))
}

func TestWakeUp_ALostSubscriptionFallsBackToPollingAndRecovers(t *testing.T) {
	t.Parallel()
	for _, masters := range []int{1, 3} {
		t.Run(strconv.Itoa(masters), func(t *testing.T) {
			t.Parallel()
			nodes := testutil.Cluster(t, masters)
			subscribed := func() (n int64) {
				for _, node := range nodes {
					counts, err := node.Client().PubSubNumSub(t.Context(), "onelane:{k}:free").Result()
					ok(t, "PUBSUB NUMSUB", err)
					n += counts["onelane:{k}:free"]
				}
				return n
			}
			holder, waiter := locker(t, core.Clients(nodes.Clients()...), patient), locker(t, core.Clients(nodes.Clients()...), patient)
			for range 3 {
				k := acquire(t, holder, "k")
				got := make(chan *core.Lock, 1)
				go func() {
					k, err := waiter.Acquire(context.Background(), "k")
					if err != nil {
						t.Error(err)
					}
					got <- k
				}()
				all := int64(masters/2 + 1)
				eventually(t, "the waiter is subscribed", func() bool { return subscribed() == all })
				for _, node := range nodes {
					ok(t, "CLIENT KILL", node.Client().Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err())
				}
				eventually(t, "the waiter is subscribed again", func() bool { return subscribed() == all })
				for _, node := range nodes {
					ok(t, "CLIENT KILL", node.Client().Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err())
				}
				ok(t, "Release", k.Release(t.Context())) // nobody is told
				select {
				case k := <-got:
					ok(t, "Release", k.Release(t.Context()))
				case <-time.After(5 * time.Second):
					t.Fatal("the waiter was never woken")
				}
			}
		})
	}
}

func TestWakeUp_WithoutPermissionToSubscribeWaitersPoll(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	ok(t, "ACL", node.Client().Do(t.Context(), "ACL", "SETUSER", "default", "-subscribe", "-publish").Err())
	holder, waiter := locker(t, core.Clients(node.Client())), locker(t, core.Clients(node.Client()))
	k := acquire(t, holder, "k")
	time.AfterFunc(300*time.Millisecond, func() { _ = k.Release(context.Background()) })
	start := time.Now()
	next := acquire(t, waiter, "k")
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("got the key after %v", took)
	}
	ok(t, "Release", next.Release(t.Context()))
}

// One dead node of a quorum, whichever it is, does not lose wake-ups.
func TestWakeUp_OnAQuorumWithOneNodeDead(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	holder, waiter := locker(t, core.Clients(nodes.Clients()...), patient), locker(t, core.Clients(nodes.Clients()...), patient)
	for _, l := range []*core.Locker{holder, waiter} {
		ok(t, "Release", acquire(t, l, "warm").Release(t.Context()))
	}
	for i, dead := range nodes {
		key := "k" + strconv.Itoa(i)
		dead.Stop()
		k := acquire(t, holder, key)
		got := make(chan *core.Lock, 1)
		go func() {
			k, err := waiter.Acquire(context.Background(), key)
			if err != nil {
				t.Error(err)
			}
			got <- k
		}()
		time.Sleep(1500 * time.Millisecond) // all that confirm have confirmed
		ok(t, "Release", k.Release(t.Context()))
		start := time.Now()
		k = <-got
		if took := time.Since(start); took > 300*time.Millisecond { // who polls looks every 500 to 1500 ms
			t.Errorf("node %d dead: woken %v after the release", i+1, took)
		}
		dead.Cont()
		if k != nil {
			ok(t, "Release", k.Release(t.Context()))
		}
	}
}

// Five who ask at the same moment may get a vote each: they do not wait for one another's release, which nobody tells.
func TestQuorum_SplitVotesOfFiveContenders(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 5)
	lockers := make([]*core.Locker, 5)
	for i := range lockers {
		lockers[i] = locker(t, core.Clients(nodes.Clients()...), patient)
		ok(t, "Release", acquire(t, lockers[i], "warm").Release(t.Context()))
	}
	for round := range 20 {
		key := "hot" + strconv.Itoa(round)
		start := time.Now()
		var all sync.WaitGroup
		for _, l := range lockers {
			all.Go(func() {
				if err := l.Do(t.Context(), key, func(context.Context) error { return nil }); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("round %d: five contenders took %v", round, took)
		}
	}
}

// A vote each for three others, who give them back without telling anybody, as the losers of a split vote do.
func TestQuorum_ASplitVoteIsAskedAgainSoon(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	l := locker(t, core.Clients(nodes.Clients()...), patient)
	for round := range 3 {
		key := "k" + strconv.Itoa(round)
		for i, n := range nodes {
			ok(t, "SET", n.Client().Set(t.Context(), "onelane:{"+key+"}", "other/"+strconv.Itoa(i), time.Minute).Err())
		}
		got := make(chan time.Time, 1)
		go func() {
			k, err := l.Acquire(context.Background(), key)
			if err != nil {
				t.Error(err)
			}
			got <- time.Now()
			_ = k.Release(context.Background())
		}()
		time.Sleep(1500 * time.Millisecond)
		for _, n := range nodes {
			ok(t, "DEL", n.Client().Del(t.Context(), "onelane:{"+key+"}").Err())
		}
		freed := time.Now()
		if took := (<-got).Sub(freed); took > 400*time.Millisecond { // who waits to be told looks every 500 to 1500 ms
			t.Errorf("it was asked again after %v", took)
		}
	}
}
