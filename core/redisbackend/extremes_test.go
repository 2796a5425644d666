package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil"
)

// The largest and smallest durations work.
func TestExtremes_Durations(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	const tenYears = 10 * 365 * 24 * time.Hour
	for name, c := range map[string]struct {
		timeout time.Duration
		opts    []core.Option
	}{
		"node time-out": {math.MaxInt64, nil},
		"short":         {time.Hour, []core.Option{core.WithTTL(10 * time.Millisecond), core.WithMaxHold(1)}},
		"long":          {5 * time.Second, []core.Option{core.WithTTL(tenYears), core.WithOrphan(tenYears), core.WithToken()}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := locker(t, redisbackend.Config{Clients: []redis.UniversalClient{client}, NodeTimeout: c.timeout}, c.opts...)
			k := acquire(t, l, name, core.WithOutageWait(30*time.Second))
			if err := k.Release(t.Context()); err != nil && name != "short" {
				t.Errorf("Release: %v", err)
			}
		})
	}
}

// Two goroutines release one lock. Only one of them learns that it did.
func TestRelease_TwoAtOnce(t *testing.T) {
	t.Parallel()
	l := locker(t, one(testutil.Redis(t).Client()))
	for range 100 {
		k := acquire(t, l, "k")
		errs := make(chan error, 2)
		for range 2 {
			go func() { errs <- k.Release(context.Background()) }()
		}
		if a, b := <-errs, <-errs; (a == nil) == (b == nil) || !errors.Is(errors.Join(a, b), core.ErrReleased) {
			t.Fatalf("got %v and %v", a, b)
		}
	}
}

// A thousand keys, each named twice, and contended by another call.
func TestAcquireAll_AThousand(t *testing.T) {
	t.Parallel()
	l := locker(t, one(testutil.Redis(t).Client()), core.WithTTL(time.Minute))
	var keys []string
	for i := range 2000 {
		keys = append(keys, fmt.Sprint("k", i%1000))
	}
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			locks, err := l.AcquireAll(t.Context(), keys)
			if err != nil || len(locks) != 1000 {
				t.Errorf("%d locks: %v", len(locks), err)
			}
			if err := locks.Release(t.Context()); err != nil {
				t.Errorf("Release: %v", err)
			}
		})
	}
	all.Wait()
}
