package redisbackend_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/onelane/onelane/testutil"
)

// A second Locker on the same Redis, which has nothing to do, does not hide the trouble of the first.
func TestMetrics_OfTwoLockers(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	g, telemetry := newGauges()
	l := locker(t, one(node.Client()), telemetry)
	locker(t, one(node.Client()), telemetry)
	ok(t, "Ping", l.Ping(t.Context()))
	node.Stop()
	for i := range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := l.Acquire(ctx, fmt.Sprint("k", i))
		wantEnded(t, "Acquire", err, context.DeadlineExceeded)
		cancel()
	}
	g.await(t, "onelane.cleanups.waiting", node.Addr(), positive)
	node.Cont()
	g.await(t, "onelane.cleanups.waiting", node.Addr(), zero)
}
