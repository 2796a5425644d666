package redisbackend_test

import (
	"context"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil"
)

// Waiters on a quorum hear of a release, also while one node hangs. Two Lockers are two processes.
func TestQuorum_WaiterHearsTheRelease(t *testing.T) {
	t.Parallel()
	for _, hung := range []bool{false, true} {
		nodes := testutil.Cluster(t, 3)
		b := redisbackend.New(nodes.Clients()...)
		b.NewInstallation = true
		holder, waiter := locker(t, b), locker(t, b)
		ok(t, "Release", acquire(t, holder, "warm").Release(t.Context()))
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
