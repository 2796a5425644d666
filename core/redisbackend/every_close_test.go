package redisbackend_test

import (
	"context"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// Another program's list under the name of the set of waiters stays as it is.
func TestAcquire_ForeignSetOfWaiters(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	a, b := open(t, one(client)), open(t, one(client))
	ok(t, "RPUSH", client.RPush(t.Context(), "{jobs}:wait", "1", "2", "3").Err())
	g, err := a.Acquire(t.Context(), core.Request{Key: "jobs", Owner: "a/1", TTL: time.Minute})
	ok(t, "Acquire", err)
	_, err = b.Acquire(t.Context(), core.Request{Key: "jobs", Owner: "b/1", TTL: time.Minute, Waiter: "b", Needs: time.Millisecond})
	want(t, "Acquire of a taken key", err, core.ErrTaken)
	if left := client.PTTL(t.Context(), "{jobs}:wait").Val(); left >= 0 {
		t.Errorf("another program's list ends in %v", left)
	}
	_, err = a.Release(t.Context(), g)
	ok(t, "Release", err)
}

// Every ends with its Locker, on Redis.
func TestEvery_CloseOnRedis(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	l, err := core.New(one(client))
	ok(t, "New", err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	over := make(chan error, 1)
	go func() {
		over <- core.Every(ctx, l, "report", time.Hour, func(context.Context) error { return nil })
	}()
	eventually(t, "the slot is recorded", func() bool {
		st, _ := l.Inspect(ctx, "every:report:last")
		return st.Status == core.Sealed
	})
	time.Sleep(100 * time.Millisecond)
	ok(t, "Close", l.Close())
	calls := func() string { return client.Info(t.Context(), "commandstats").Val() }
	select {
	case err := <-over:
		want(t, "Every", err, core.ErrClosed)
	case <-time.After(3 * time.Second):
		t.Errorf("Every did not return after Close: %s", calls())
	}
}
