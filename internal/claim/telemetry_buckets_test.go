package claim_test

import (
	"testing"

	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// The page and the dashboard ask for percentiles. Those of a histogram are between two of its
// bounds. The SDK's own bounds are for milliseconds: 0, 5, 10, … 10000.
func TestTelemetry_BucketsFitTheUnit(t *testing.T) {
	t.Parallel()
	m := newMeter(t)
	complete(t, begin(t, newClaims(memoryLocker(t, m)), "k", fp("a")), "done")
	within := func(name string, bounds []float64, from, to float64) (n int) {
		t.Helper()
		for _, b := range bounds {
			if b > 0 && b >= from && b <= to {
				n++
			}
		}
		if n < 3 {
			t.Errorf("%s has %d bounds from %v to %v: %v", name, n, from, to, bounds)
		}
		return n
	}
	run := m.read("onelane.idempotency.run.duration").Data.(metricdata.Histogram[float64]).DataPoints[0].Bounds
	within("run.duration", run, .001, 1) // in s: clients give up after a few
	size := m.read("onelane.idempotency.record.size").Data.(metricdata.Histogram[int64]).DataPoints[0].Bounds
	within("record.size", size, 100e3, 10e6) // in bytes: the alert is at 100 kB, MaxBody is 1 MiB
}
