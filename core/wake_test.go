package core_test

import (
	"context"
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
	node := testutil.Redis(t)
	admin := node.Client()
	holder, waiter := locker(t, core.Clients(node.Client())), locker(t, core.Clients(node.Client()))
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
		eventually(t, "the waiter is subscribed", func() bool {
			n, err := admin.PubSubNumSub(t.Context(), "onelane:{k}:free").Result()
			return err == nil && n["onelane:{k}:free"] == 1
		})
		ok(t, "CLIENT KILL", admin.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err())
		ok(t, "Release", k.Release(t.Context()))
		select {
		case k := <-got:
			ok(t, "Release", k.Release(t.Context()))
		case <-time.After(5 * time.Second):
			t.Fatal("the waiter was never woken")
		}
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
