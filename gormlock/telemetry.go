package gormlock

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
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

// instruments returns what to report with. They are made when a Locker is there, because
// core.SetDefault may be called after New. Until then nothing is recorded.
func (p *plugin) instruments() *instruments {
	if i := p.made.Load(); i != nil {
		return i
	}
	l, err := p.lockerInUse()
	if err != nil {
		return noInstruments
	}
	p.made.CompareAndSwap(nil, newInstruments(l.MeterProvider(), l.TracerProvider()))
	return p.made.Load()
}

// instrumentsOf returns those of the plugin of db. Without a plugin nothing is recorded.
func instrumentsOf(db *gorm.DB) *instruments {
	if p, err := registered(db); err == nil {
		return p.instruments()
	}
	return noInstruments
}

// acquireAll is core's, measured. Outside of a trace there is no span.
func (p *plugin) acquireAll(
	ctx context.Context, l *core.Locker, keys []string, opts []core.AcquireOption,
) (core.Locks, error) {
	i, began := p.instruments(), time.Now()
	var span trace.Span
	traced := ctx
	if trace.SpanContextFromContext(ctx).IsValid() {
		traced, span = i.tracer.Start(ctx, "gormlock.guard",
			trace.WithAttributes(attribute.StringSlice("onelane.keys", keys)))
	}
	locks, err := l.AcquireAll(traced, keys, opts...)
	outcome := waitOutcome(err)
	i.wait.Record(ctx, time.Since(began).Seconds(), i.waits[outcome]...)
	if outcome == outcomeSealed {
		i.seals.Add(ctx, 1)
	}
	if span != nil {
		span.SetAttributes(attribute.String("onelane.outcome", outcome))
		if outcome == outcomeUnavailable || outcome == outcomeFailed {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
	return locks, err
}

func waitOutcome(err error) string {
	switch {
	case err == nil:
		return outcomeGranted
	case errors.Is(err, core.ErrTaken):
		return outcomeTaken
	case errors.Is(err, core.ErrSealed):
		return outcomeSealed
	case errors.Is(err, core.ErrUnavailable):
		return outcomeUnavailable
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return outcomeCancelled
	}
	return outcomeFailed
}
