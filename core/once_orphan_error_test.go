package core_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
)

// payouts run a function under the key payout, which is orphaned if the function stops halfway.
var payouts = map[string]func(l *core.Locker, fn func(context.Context) error) error{
	"DoOnce": func(l *core.Locker, fn func(context.Context) error) error {
		_, err := l.DoOnce(context.Background(), "payout", time.Hour, fn, core.WithOrphan(24*time.Hour))
		return err
	},
	"Do": func(l *core.Locker, fn func(context.Context) error) error {
		return l.Do(context.Background(), "payout", fn, core.WithOrphan(24*time.Hour))
	},
}

// payOut pays with each of payouts. fn stops when half of the customers are paid. Nobody else may get
// the key after that.
func payOut(t *testing.T, fn func(ctx context.Context, t *testing.T, l, other *core.Locker) error, check func(*testing.T, *spy, func() error)) {
	t.Parallel()
	for name, do := range payouts {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memorySpy()
				l, other := locker(t, s), locker(t, s.Sealer)
				check(t, s, func() error {
					return do(l, func(ctx context.Context) error { return fn(ctx, t, l, other) })
				})
				time.Sleep(time.Second)
				if got := status(t, other, "payout"); got != core.Orphaned {
					t.Errorf("the key is %v, want orphaned", got)
				}
				ran, err := other.DoOnce(t.Context(), "payout", time.Hour, nothing)
				if ran {
					t.Error("the customers are paid twice")
				}
				want(t, "the next DoOnce", err, core.ErrOrphaned)
			})
		})
	}
}

// The backend was away for longer than the lease, and is back. The function stopped in the middle
// when its context ended. docs/guarantees.md: with WithOrphan it does not run again.
func TestDoOnce_OrphanAfterLossAndError(t *testing.T) {
	payOut(t, func(ctx context.Context, _ *testing.T, _, _ *core.Locker) error {
		<-ctx.Done()
		return ctx.Err()
	}, func(t *testing.T, s *spy, pay func() error) {
		s.on("extend", away)
		err := pay()
		want(t, "the error", err, core.ErrLost)
		want(t, "the error", err, context.Canceled)
	})
}

// As TestDoOnce_OrphanAfterLossAndError, but the function panics when its context ends.
func TestDoOnce_OrphanAfterLossAndPanic(t *testing.T) {
	payOut(t, func(ctx context.Context, _ *testing.T, _, _ *core.Locker) error {
		<-ctx.Done()
		panic("half of the customers are paid")
	}, func(t *testing.T, s *spy, pay func() error) {
		s.on("extend", away)
		if panics(func() { _ = pay() }) != "half of the customers are paid" {
			t.Error("the panic did not go on")
		}
	})
}

// As TestDoOnce_OrphanAfterLossAndError, but the Locker was closed, so nothing renews the lease. When
// the function returns, others see the orphan already.
func TestDoOnce_OrphanAfterCloseAndError(t *testing.T) {
	payOut(t, func(ctx context.Context, t *testing.T, l, other *core.Locker) error {
		ok(t, "Close", l.Close()) // SIGTERM
		<-ctx.Done()
		time.Sleep(time.Minute) // a call to the bank that ignores its context
		if got := status(t, other, "payout"); got != core.Orphaned {
			t.Errorf("before the function returns the key is %v, want orphaned", got)
		}
		return ctx.Err()
	}, func(t *testing.T, _ *spy, pay func() error) {
		want(t, "the error", pay(), context.Canceled)
	})
}
