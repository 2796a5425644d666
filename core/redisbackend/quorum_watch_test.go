package redisbackend_test

import (
	"context"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil"
)

// Waiters on a quorum hear of a release, even while one node hangs. Two Lockers are two processes.
func TestQuorum_WaiterHearsTheRelease(t *testing.T) {
	t.Parallel()
	for _, hung := range []bool{false, true} {
		nodes := testutil.Cluster(t, 3)
		b := redisbackend.New(nodes.Clients()...)
		b.NewInstallation = true
		holder, waiter := locker(t, b), locker(t, b)
		_ = acquire(t, holder, "warm").Release(t.Context()) // a busy machine may be too late for the answer
		k := acquire(t, holder, "k")
		got := make(chan error, 1)
		var next *core.Lock
		go func() {
			var err error
			next, err = waiter.Acquire(context.Background(), "k")
			got <- err
		}()
		eventually(t, "the waiter is subscribed", func() bool {
			subscribed := 0
			for _, n := range nodes {
				if m, err := n.Client().PubSubNumSub(t.Context(), "onelane:{k}:free").Result(); err == nil {
					subscribed += int(m["onelane:{k}:free"])
				}
			}
			return subscribed > 0
		})
		if hung {
			nodes[0].Stop()
			t.Cleanup(nodes[0].Cont)
		}
		_ = k.Release(context.Background())
		select {
		case err := <-got:
			ok(t, "Acquire", err)
			_ = next.Release(context.Background())
		case <-time.After(30 * time.Second):
			t.Errorf("hung %v: the waiter did not get the key", hung)
		}
	}
}

// A release wakes the waiters of the same backend, such as those of AcquireAny, although it ignores
// its own messages.
func TestQuorum_OwnWaiterHearsTheRelease(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	b := open(t, quorumOf(nodes))
	g, err := b.Acquire(t.Context(), core.Request{Key: "onelane:{k}", Owner: "a", TTL: time.Minute})
	ok(t, "Acquire", err)
	changed, stop, err := b.Watch(t.Context(), "onelane:{k}")
	ok(t, "Watch", err)
	defer stop()
	subscribed(t, nodes)
	quietly(changed)
	_, err = b.Release(t.Context(), g)
	ok(t, "Release", err)
	select {
	case <-changed:
	case <-time.After(30 * time.Second):
		t.Error("the waiter heard nothing")
	}
}

// A process that stands back takes a signal for the turn of another process. So a waiter of a channel
// that is subscribed already gets none at first.
func TestQuorum_NoSignalAtFirst(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	b := open(t, redisbackend.New(nodes.Clients()...))
	changed, stop, err := b.Watch(t.Context(), "onelane:{k}")
	ok(t, "Watch", err)
	defer stop()
	subscribed(t, nodes)
	quietly(changed)
	n := 0
	for range 5 { // on a busy machine the signal of the first waiter's subscription may come late
		changed, stop, err := b.Watch(t.Context(), "onelane:{k}")
		ok(t, "Watch", err)
		n = quietly(changed)
		if stop(); n == 0 {
			return
		}
	}
	t.Errorf("a second waiter got %d signals, although nothing changed", n)
}

// subscribed waits until so many nodes have confirmed the subscription as a waiter needs.
func subscribed(t *testing.T, nodes testutil.Nodes) {
	t.Helper()
	eventually(t, "both subscriptions are confirmed", func() bool {
		confirmed := 0
		for _, n := range nodes {
			m, err := n.Client().PubSubNumSub(t.Context(), "onelane:{k}:free").Result()
			ok(t, "PUBSUB NUMSUB", err)
			confirmed += int(m["onelane:{k}:free"])
		}
		return confirmed == 2
	})
}

// quietly takes the signals that are under way, such as those of confirmed subscriptions.
func quietly(changed <-chan struct{}) (signals int) {
	for quiet := time.After(200 * time.Millisecond); ; {
		select {
		case <-changed:
			signals++
		case <-quiet:
			return signals
		}
	}
}
