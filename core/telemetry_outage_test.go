package core_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
)

// All calls of a service have a deadline of 2 s, as over gRPC. In an outage none of them gets its
// lock, and the alert OnelaneUnavailable must see that.
func TestMetrics_OutageUnderDeadlines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, b := newMeters(), memorySpy()
		l := locker(t, b, core.WithTelemetry(m, nil))
		b.on("acquire", func(context.Context) error { return unavailable("k") })
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			_, err := l.Acquire(ctx, "k")
			cancel()
			want(t, "Acquire", err, context.DeadlineExceeded)
		}
		const series = "onelane.acquire.duration{onelane.outcome=unavailable}"
		if n := m.read(t)[series]; n != 5 {
			t.Errorf("%s is %d after five calls in an outage, want 5", series, n)
		}
	})
}

// A Seal whose caller has a deadline shows an outage, too.
func TestMetrics_SealInAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, b := newMeters(), memorySpy()
		l := locker(t, b, core.WithTelemetry(m, nil))
		k := acquire(t, l, "k")
		b.on("seal", func(ctx context.Context) error {
			<-ctx.Done()
			return unavailable("k")
		})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		want(t, "Seal", k.Seal(ctx, nil, time.Hour), context.DeadlineExceeded)
		const series = "onelane.seal.duration{onelane.outcome=unavailable}"
		if n := m.read(t)[series]; n != 1 {
			t.Errorf("%s is %d after a Seal without an answer, want 1: %v", series, n, m.read(t))
		}
	})
}
