package core_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// A key that hangs does not keep a caller with a short wait from one that is free.
func TestAcquireAny_ShortWaitHungKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, keyed{backendtest.Memory(), func(ctx context.Context, key string) error {
			if strings.Contains(key, "slot:0") {
				select {
				case <-ctx.Done():
				case <-time.After(500 * time.Millisecond):
				}
				return unavailable(key)
			}
			return nil
		}})
		for range 20 {
			ok(t, "Release", acquireAny(t, l, slots(2), core.WithWait(300*time.Millisecond)).Release(t.Context()))
		}
		time.Sleep(time.Second)
	})
}

// If nothing is known of any key when the wait ends, the error is not that the keys are taken.
func TestAcquireAny_WaitEndsAllHung(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{500 * time.Millisecond, 1500 * time.Millisecond, 2500 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			l := locker(t, keyed{backendtest.Memory(), func(ctx context.Context, key string) error {
				select {
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
				return unavailable(key)
			}})
			start := time.Now()
			for range 3 {
				go func() {
					_, err := l.AcquireAny(t.Context(), slots(3), core.WithWait(wait))
					want(t, "AcquireAny", err, core.ErrUnavailable)
					if took := time.Since(start); took != wait {
						t.Errorf("after %v, want %v", took, wait)
					}
				}()
			}
			time.Sleep(5 * time.Second)
		})
	}
}

// A wait that ends before its first request says nothing about the backend.
func TestAcquireAny_ShortestWait(t *testing.T) {
	t.Parallel()
	l := locker(t, backendtest.Memory())
	for range 100 {
		k, err := l.AcquireAny(t.Context(), slots(3), core.WithWait(1))
		if err == nil {
			ok(t, "Release", k.Release(t.Context()))
			continue
		}
		want(t, "AcquireAny", err, core.ErrTaken)
		_, err = l.Acquire(t.Context(), "k", core.WithWait(1))
		want(t, "Acquire", err, core.ErrTaken)
	}
}

// endsLater is a context that ends after some calls of Err.
type endsLater struct {
	context.Context
	left *int
}

func (c endsLater) Err() error {
	if *c.left--; *c.left < 0 {
		return context.Canceled
	}
	return c.Context.Err()
}

// A caller whose context ends does not learn of the seal of one key.
func TestAcquireAny_ContextEndsAtASeal(t *testing.T) {
	t.Parallel()
	for n := range 20 {
		synctest.Test(t, func(t *testing.T) {
			b := backendtest.Memory()
			l, other := locker(t, b), locker(t, b)
			ok(t, "Seal", acquire(t, l, "slot:0").Seal(t.Context(), nil, time.Hour))
			held := acquire(t, other, "slot:1")
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			_, err := l.AcquireAny(endsLater{ctx, &n}, slots(2))
			wantEnded(t, "AcquireAny", err, context.Canceled)
			ok(t, "Release", held.Release(t.Context()))
		})
	}
}

// With WithWait(0) keys that hang do not keep a caller from one that is free.
func TestAcquireAny_TryManyHung(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, keyed{backendtest.Memory(), func(ctx context.Context, key string) error {
			if strings.Contains(key, "slot:0") {
				return nil
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			return unavailable(key)
		}})
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			k, err := l.AcquireAny(ctx, slots(10), core.WithWait(0))
			ok(t, "AcquireAny", err)
			ok(t, "Release", k.Release(t.Context()))
			cancel()
		}
	})
}

// The error of a context that ended names the caller's key.
func TestAcquireAny_ContextEndsAtAKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, keyed{backendtest.Memory(), func(ctx context.Context, key string) error {
			if strings.Contains(key, "slot:0") {
				return &core.TakenError{Key: key}
			}
			<-ctx.Done()
			return &core.UnavailableError{Key: key, Nodes: []error{ctx.Err()}}
		}})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		_, err := l.AcquireAny(ctx, slots(2), core.WithWait(0))
		wantEnded(t, "AcquireAny", err, context.Canceled)
		if strings.Contains(err.Error(), "slot:0") || !strings.Contains(err.Error(), "slot:1") {
			t.Errorf("AcquireAny: %v", err)
		}
	})
}

// Keys that are known to hang do not hold up the one that becomes free, nor its other callers.
func TestAcquireAny_FreedBesideManyHung(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := backendtest.Memory()
		l, other := locker(t, keyed{memory, func(_ context.Context, key string) error {
			if strings.Contains(key, "slot:0}") {
				return nil
			}
			time.Sleep(time.Second)
			return unavailable(key)
		}}), locker(t, memory)
		for range 10 {
			held := acquire(t, other, "slot:0")
			locks, _ := awaitAny(t.Context(), l, slots(100))
			time.Sleep(7 * time.Second)
			start := time.Now()
			ok(t, "Release", held.Release(t.Context()))
			k := <-locks
			if took := time.Since(start); took > 500*time.Millisecond {
				t.Errorf("a free key was found after %v", took)
			}
			ok(t, "Release", k.Release(t.Context()))
			time.Sleep(2 * time.Second)
		}
	})
}
