package core_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// A machine that was suspended for a short time finds its lease lost if that took the rest of it.
func TestLease_SuspendedForTheRestOfTheLease(t *testing.T) {
	for _, c := range []struct {
		ttl, held, suspended time.Duration
		lost                 bool
	}{
		{time.Second, 0, 1900 * time.Millisecond, true},
		{10 * time.Second, 8500 * time.Millisecond, 1900 * time.Millisecond, true},
		{10 * time.Second, 5 * time.Second, 1900 * time.Millisecond, false},
		{10 * time.Second, 5 * time.Second, -time.Hour, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			var ahead atomic.Int64 // the wall clock, by
			l := locker(t, backendtest.Memory(), core.WithMaxHold(0), core.WithClocks(func(began, now time.Time) (wall, monotonic time.Duration) {
				return now.Sub(began) + time.Duration(ahead.Load()), now.Sub(began)
			}))
			k := acquire(t, l, "k", core.WithTTL(c.ttl))
			released := acquire(t, l, "j", core.WithTTL(c.ttl)) // without asking before
			time.Sleep(c.held)
			ahead.Store(int64(c.suspended))
			for what, err := range map[string]error{"Err": k.Err(), "Release": released.Release(t.Context())} {
				if c.lost != errors.Is(err, core.ErrLost) {
					t.Errorf("TTL %v, held for %v, suspended for %v: %s returns %v, lost should be %v", c.ttl, c.held, c.suspended, what, err, c.lost)
				}
			}
			_ = k.Release(t.Context())
		})
	}
}
