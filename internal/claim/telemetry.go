package claim

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/version"
)

const scope = "github.com/onelane/onelane/idempotency"

// outcome is how a request ended, and the value of the attribute onelane.outcome. Each request has
// one.
type outcome int

const (
	ran         outcome = iota // Its answer is recorded.
	recovered                  // So it is, and an earlier run of unknown outcome was taken over.
	ranAgain                   // So it is, and an earlier run failed or died (RunAgain).
	tombstone                  // It ran, and its answer was not kept.
	unrecorded                 // It ran, and the backend did not take its answer.
	lost                       // It ran, and its claim was lost meanwhile.
	freed                      // Nothing was done.
	failed                     // It failed, and a retry runs (RunAgain).
	unknown                    // Its outcome is unknown.
	unprotected                // It runs without a claim: the backend is not available (FailOpen).
	replayed                   // It is answered from a record.
	notKept                    // It was answered before, and that answer was not kept.
	inFlight
	mismatch
	refusedUnknown // The outcome of an earlier run is unknown.
	unreadable     // There is a record, and it cannot be read.
	storeDown      // It is refused, since the backend is not available.
	refused        // It is refused for another reason: its context ended, the Locker was closed.
	withoutKey     // It had no key.
	outcomes       // The number of outcomes.
)

var outcomeNames = [outcomes]string{
	"ran", "recovered", "ran_again", "tombstone", "unrecorded", "lost", "freed", "failed", "unknown", "unprotected", "replayed", "not_kept",
	"in_flight", "mismatch", "refused_unknown", "unreadable", "store_down", "refused", "without_key",
}

// instruments are what Claims report with.
type instruments struct {
	requests metric.Int64Counter
	duration metric.Float64Histogram
	size     metric.Int64Histogram
	tracer   trace.Tracer
	traces   func(context.Context) bool
	// Made once: a request allocates nothing for them.
	common []trace.SpanStartOption
	add    [outcomes][]metric.AddOption
	record [outcomes][]metric.RecordOption

	attrs     []attribute.KeyValue
	transport string
}

func newInstruments(l *core.Locker, transport string) *instruments {
	m := l.MeterProvider().Meter(scope, metric.WithInstrumentationVersion(version.Of()))
	i := &instruments{
		tracer: l.TracerProvider().Tracer(scope, trace.WithInstrumentationVersion(version.Of())), traces: l.Traces,
	}
	// The errors are about names and units, which a test covers; the instruments work nevertheless.
	i.requests, _ = m.Int64Counter("onelane.idempotency.requests", metric.WithUnit("{request}"),
		metric.WithDescription("Requests, by how they ended."))
	i.duration, _ = m.Float64Histogram("onelane.idempotency.run.duration", metric.WithUnit("s"),
		metric.WithDescription("How long claims were held, by how they ended."), metric.WithExplicitBucketBoundaries(
			.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900))
	i.size, _ = m.Int64Histogram("onelane.idempotency.record.size", metric.WithUnit("By"),
		metric.WithDescription("Size of records as they are stored."), metric.WithExplicitBucketBoundaries(
			250, 500, 1e3, 2.5e3, 5e3, 10e3, 25e3, 50e3, 100e3, 250e3, 500e3, 1e6, 2.5e6, 5e6, 10e6))
	var common []attribute.KeyValue
	if transport != "" {
		common = append(common, attribute.String("onelane.transport", transport))
	}
	i.attrs, i.transport = common, transport
	i.common = []trace.SpanStartOption{trace.WithAttributes(common...)}
	for o := range outcomes {
		set := metric.WithAttributeSet(attribute.NewSet(append([]attribute.KeyValue{o.attribute()}, common...)...))
		i.add[o], i.record[o] = []metric.AddOption{set}, []metric.RecordOption{set}
	}
	return i
}

func (o outcome) attribute() attribute.KeyValue {
	return attribute.String("onelane.outcome", outcomeNames[o])
}

// count counts a request that ends with o.
func (i *instruments) count(ctx context.Context, o outcome, route string) {
	if route == "" {
		i.requests.Add(ctx, 1, i.add[o]...)
		return
	}
	type routed struct {
		outcome
		route, transport string
	}
	key := routed{o, route, i.transport}
	opts, ok := routes.Load(key)
	if !ok {
		attrs := append([]attribute.KeyValue{o.attribute(), attribute.String("onelane.route", route)}, i.attrs...)
		opts = []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(attrs...))}
		if nRoutes.Add(1) > maxRoutes {
			opts = i.add[o]
		} else {
			routes.Store(key, opts)
		}
	}
	i.requests.Add(ctx, 1, opts.([]metric.AddOption)...)
}

// maxRoutes bounds the series with a route, of all Claims of the process. Later ones are counted
// without a route. OpenTelemetry's SDK keeps 2,000 series of a counter. A further one would lose
// its outcome, too, and no alert would see it.
const maxRoutes = 1_500

// routes are the series with a route, and nRoutes counts them. All Claims share them: those that
// are made later, as after core.SetDefault, have the same series.
var (
	routes  sync.Map // []metric.AddOption by outcome, route and transport
	nRoutes atomic.Int64
)

// over counts a claim that ends with o.
func (i *instruments) over(ctx context.Context, o outcome, route string, began time.Time) {
	i.count(ctx, o, route)
	i.duration.Record(ctx, time.Since(began).Seconds(), i.record[o]...)
}

// noSpan takes the place of a span that nobody wants; see [core.Locker.Traces].
var noSpan trace.Span = noop.Span{}

// start starts a span about a part of a request.
func (i *instruments) start(ctx context.Context, name string) (context.Context, trace.Span) {
	if !i.traces(ctx) {
		return ctx, noSpan
	}
	return i.tracer.Start(ctx, name, i.common...)
}

// end ends the span of a request, or of its claim, that ended with o. The span does not get the
// error, because its text has a key, and keys name users.
func (o outcome) end(span trace.Span) {
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(o.attribute())
	switch o {
	case storeDown, unprotected, unrecorded, lost, unknown, refusedUnknown, unreadable:
		span.SetStatus(codes.Error, outcomeNames[o])
	}
	span.End()
}

// outcomeOf returns the outcome of a request that got this error from Begin.
func outcomeOf(err error) outcome {
	switch {
	case errors.Is(err, ErrInFlight):
		return inFlight
	case errors.Is(err, ErrMismatch):
		return mismatch
	case errors.Is(err, ErrUnknown):
		return refusedUnknown
	case errors.Is(err, ErrRecord):
		return unreadable
	case errors.Is(err, core.ErrUnavailable):
		return storeDown
	}
	return refused
}
