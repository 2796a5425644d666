package core_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
)

type valueKey struct{}

func TestTimeouts_BoundEachCall(t *testing.T) {
	t.Parallel()
	const d = 1600 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		limit := core.Limit()
		for _, between := range []time.Duration{0, time.Millisecond, d / 16, d / 2, 3 * d} { // some share a timer, some do not
			time.Sleep(between)
			ctx, cancel := limit(context.WithValue(t.Context(), valueKey{}, 1), d) // can be cancelled
			defer cancel()
			bare, cancelBare := limit(context.WithoutCancel(ctx), d)
			defer cancelBare()
			for name, ctx := range map[string]context.Context{"": ctx, "that nobody cancels": bare} {
				if end, ok := ctx.Deadline(); !ok || time.Until(end) != d {
					t.Errorf("the deadline of a context %s is in %v, want %v", name, time.Until(end), d)
				}
				if ctx.Err() != nil || ctx.Value(valueKey{}) != 1 {
					t.Errorf("a context %s has ended (%v) or lost its values", name, ctx.Err())
				}
			}
		}
		var bare context.Context
		for _, after := range []time.Duration{0, d/16 - 1, d / 16, d / 4} { // another call's beginning
			time.Sleep(3 * d)
			_, cancel := limit(context.Background(), d)
			defer cancel()
			time.Sleep(after)
			bare, cancel = limit(context.Background(), d)
			defer cancel()
			began := time.Now()
			<-bare.Done()
			if took := time.Since(began); took < d || took > d+d/16 {
				t.Errorf("a call %v after another was told after %v that its %v are over", after, took, d)
			}
		}
		if !errors.Is(bare.Err(), context.DeadlineExceeded) || !errors.Is(context.Cause(bare), context.DeadlineExceeded) {
			t.Errorf("it ended with %v, cause %v", bare.Err(), context.Cause(bare))
		}
	})
}

func TestTimeouts_TheCallersEndComesFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limit := core.Limit()
		near, cancelNear := context.WithTimeout(t.Context(), time.Second)
		defer cancelNear()
		if ctx, cancel := limit(near, time.Minute); ctx != near {
			t.Error("a nearer deadline was wrapped")
		} else {
			cancel()
		}
		why := errors.New("why")
		parent, cancelParent := context.WithCancelCause(t.Context())
		ctx, cancel := limit(parent, time.Minute)
		defer cancel()
		cancelParent(why)
		synctest.Wait()
		if ctx.Err() == nil || context.Cause(ctx) != why {
			t.Errorf("cancelled by its caller it has %v, cause %v", ctx.Err(), context.Cause(ctx))
		}
	})
}
