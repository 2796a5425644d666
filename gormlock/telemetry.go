package gormlock

import (
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/onelane/onelane/internal/version"
)

const scope = "github.com/onelane/onelane/gormlock"

// instruments report what guards do, to where their Locker reports. The Locker itself reports how
// long they wait.
type instruments struct{ unknown, refusals, stale, retries metric.Int64Counter }

var noInstruments = newInstruments(noop.NewMeterProvider())

func newInstruments(meters metric.MeterProvider) *instruments {
	m, i := meters.Meter(scope, metric.WithInstrumentationVersion(version.Of())), new(instruments)
	// The errors are about names and units, which a test covers; the instruments work nevertheless.
	i.unknown, _ = m.Int64Counter("onelane.gormlock.unknown_commits", metric.WithUnit("{commit}"),
		metric.WithDescription("Guarded transactions whose COMMIT has no known outcome."))
	i.refusals, _ = m.Int64Counter("onelane.gormlock.fence_refusals", metric.WithUnit("{transaction}"),
		metric.WithDescription("Transactions that the fence refused, because a later holder has registered."))
	i.stale, _ = m.Int64Counter("onelane.gormlock.stale_writes", metric.WithUnit("{statement}"),
		metric.WithDescription("Writes refused because their row has another version."))
	i.retries, _ = m.Int64Counter("onelane.gormlock.retries", metric.WithUnit("{transaction}"),
		metric.WithDescription("Transactions that were run again after a conflict."))
	return i
}
