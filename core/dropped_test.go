package core_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
)

// A lock that no caller got is released until that is definite. In a long outage this is tried seldom,
// because Redis' backend keeps a clean-up for each release without an answer. Other backends keep
// none, so that the key has to be free soon after the outage.
func TestOrphan_DroppedInALongOutage(t *testing.T) {
	for range 10 { // the pauses are random
		synctest.Test(t, func(t *testing.T) {
			s := memorySpy()
			ctx, cancel := context.WithCancel(t.Context())
			l := locker(t, afterAcquire{s, cancel})
			s.on("release", func(context.Context) error { return unavailable("k") })
			_, err := l.Acquire(ctx, "k", core.WithOrphan(24*time.Hour))
			want(t, "Acquire", err, context.Canceled)
			time.Sleep(time.Hour)
			if n := s.count("release"); n > 1500 {
				t.Errorf("%d releases in an hour without an answer", n)
			}
			s.on("release", nil)
			time.Sleep(8 * time.Second)
			if got := status(t, l, "k"); got != core.Free {
				t.Errorf("the key is %v 8 s after the outage", got)
			}
		})
	}
}
