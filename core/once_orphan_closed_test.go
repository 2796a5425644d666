// core/once_orphan_closed_test.go
package core_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
)

// As TestDoOnce_OrphanAfterLossAndError, but the Locker was closed, so nothing renews the lease. When
// the function returns, others see the orphan already.
func TestDoOnce_OrphanAfterCloseAndError(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(l *core.Locker, fn func(context.Context) error) error{
		"DoOnce": func(l *core.Locker, fn func(context.Context) error) error {
			_, err := l.DoOnce(context.Background(), "payout", time.Hour, fn, core.WithOrphan(24*time.Hour))
			return err
		},
		"Do": func(l *core.Locker, fn func(context.Context) error) error {
			return l.Do(context.Background(), "payout", fn, core.WithOrphan(24*time.Hour))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memorySpy()
				l, other := locker(t, s), locker(t, s.Backend)
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
