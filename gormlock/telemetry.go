package gormlock

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/onelane/onelane/internal/version"
)

const scope = "github.com/onelane/onelane/gormlock"

// The values of the attribute onelane.outcome of a guard's wait.
const (
	outcomeGranted     = "granted"
	outcomeTaken       = "taken"
	outcomeSealed      = "sealed"
	outcomeUnavailable = "unavailable"
	outcomeCancelled   = "cancelled" // the caller's context ended
	outcomeFailed      = "failed"
)

var outcomes = []string{outcomeGranted, outcomeTaken, outcomeSealed, outcomeUnavailable, outcomeCancelled, outcomeFailed}

// instruments report what guards do, to where their Locker reports.
type instruments struct {
	tracer trace.Tracer

	unknown, refusals, stale, retries, seals metric.Int64Counter

	wait  metric.Float64Histogram
	waits map[string][]metric.RecordOption // by outcome, made once: a guard allocates nothing for them
}

var noInstruments = newInstruments(metricnoop.NewMeterProvider(), tracenoop.NewTracerProvider())

func newInstruments(meters metric.MeterProvider, tracers trace.TracerProvider) *instruments {
	m := meters.Meter(scope, metric.WithInstrumentationVersion(version.Of()))
	i := &instruments{
		tracer: tracers.Tracer(scope, trace.WithInstrumentationVersion(version.Of())),
		waits:  make(map[string][]metric.RecordOption),
	}
	// The errors are about names and units, which a test covers; the instruments work nevertheless.
	i.unknown, _ = m.Int64Counter("onelane.gormlock.unknown_commits", metric.WithUnit("{commit}"),
		metric.WithDescription("Guarded transactions whose COMMIT has no known outcome."))
	i.refusals, _ = m.Int64Counter("onelane.gormlock.fence_refusals", metric.WithUnit("{transaction}"),
		metric.WithDescription("Transactions that the fence refused, because a later holder has registered."))
	i.stale, _ = m.Int64Counter("onelane.gormlock.stale_writes", metric.WithUnit("{statement}"),
		metric.WithDescription("Writes refused because their row has another version."))
	i.retries, _ = m.Int64Counter("onelane.gormlock.retries", metric.WithUnit("{transaction}"),
		metric.WithDescription("Transactions that were run again after a conflict."))
	i.seals, _ = m.Int64Counter("onelane.gormlock.seals_met", metric.WithUnit("{guard}"),
		metric.WithDescription("Guards that met a sealed key."))
	i.wait, _ = m.Float64Histogram("onelane.gormlock.wait.duration", metric.WithUnit("s"),
		metric.WithDescription("How long a guard waited for its locks."), metric.WithExplicitBucketBoundaries(
			.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30))
	for _, outcome := range outcomes {
		set := attribute.NewSet(attribute.String("onelane.outcome", outcome))
		i.waits[outcome] = []metric.RecordOption{metric.WithAttributeSet(set)}
	}
	return i
}
