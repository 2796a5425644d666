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

// The backend was away for longer than the lease, and is back. The function stopped in the middle
// when its context ended. docs/guarantees.md: with WithOrphan it does not run again.
func TestDoOnce_OrphanAfterLossAndError(t *testing.T) {
	t.Parallel()
	for name, do := range payouts {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memorySpy()
				s.on("extend", away)
				l, other := locker(t, s), locker(t, s.Sealer)
				err := do(l, func(ctx context.Context) error {
					<-ctx.Done() // half of the customers are paid
					return ctx.Err()
				})
				want(t, "the error", err, core.ErrLost)
				want(t, "the error", err, context.Canceled)
				wantOrphan(t, other)
			})
		})
	}
}

// wantOrphan checks that nobody else gets the key payout.
func wantOrphan(t *testing.T, other *core.Locker) {
	t.Helper()
	time.Sleep(time.Second)
	if got := status(t, other, "payout"); got != core.Orphaned {
		t.Errorf("the key is %v, want orphaned", got)
	}
	ran, err := other.DoOnce(t.Context(), "payout", time.Hour, nothing)
	if ran {
		t.Error("the customers are paid twice")
	}
	want(t, "the next DoOnce", err, core.ErrOrphaned)
}

// As TestDoOnce_OrphanAfterLossAndError, but the function panics when its context ends.
func TestDoOnce_OrphanAfterLossAndPanic(t *testing.T) {
	t.Parallel()
	for name, do := range payouts {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memorySpy()
				s.on("extend", away)
				l, other := locker(t, s), locker(t, s.Sealer)
				func() {
					defer func() {
						if recover() != "half of the customers are paid" {
							t.Error("the panic did not go on")
						}
					}()
					_ = do(l, func(ctx context.Context) error {
						<-ctx.Done()
						panic("half of the customers are paid")
					})
				}()
				wantOrphan(t, other)
			})
		})
	}
}

// As TestDoOnce_OrphanAfterLossAndError, but the Locker was closed, so nothing renews the lease. When
// the function returns, others see the orphan already.
func TestDoOnce_OrphanAfterCloseAndError(t *testing.T) {
	t.Parallel()
	for name, do := range payouts {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memorySpy()
				l, other := locker(t, s), locker(t, s.Sealer)
				err := do(l, func(ctx context.Context) error {
					ok(t, "Close", l.Close()) // SIGTERM
					<-ctx.Done()              // half of the customers are paid
					time.Sleep(time.Minute)   // a call to the bank that ignores its context
					if got := status(t, other, "payout"); got != core.Orphaned {
						t.Errorf("before the function returns the key is %v, want orphaned", got)
					}
					return ctx.Err()
				})
				want(t, "the error", err, context.Canceled)
				wantOrphan(t, other)
			})
		})
	}
}
