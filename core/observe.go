package core

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

const scope = "github.com/onelane/onelane/core"

// MeterProvider returns where l's metrics go, so that what is built on l reports to the same place. See [WithMeterProvider].
func (l *Locker) MeterProvider() metric.MeterProvider { return l.meters }

// TracerProvider returns where l's spans go, so that what is built on l reports to the same place. See [WithTracerProvider].
func (l *Locker) TracerProvider() trace.TracerProvider { return l.tracers }

// Logger returns where l reports what went wrong, so that what is built on l reports to the same place. See [WithLogger].
func (l *Locker) Logger() *slog.Logger { return l.logger }

// What the attributes of the metrics can be. Keys are none of them: there are as many as the users have orders.
const (
	outcomeGranted     = "granted"
	outcomeTaken       = "taken"
	outcomeSealed      = "sealed"
	outcomeUnavailable = "unavailable"
	outcomeCancelled   = "cancelled" // the context ended first
	outcomeClosed      = "closed"
	outcomeFailed      = "failed" // refused: an invalid key, bad options
	outcomeRenewed     = "renewed"
	outcomeLost        = "lost"

	endReleased = "released"
	endSealed   = "sealed"
	endLost     = "lost"
	endClosed   = "closed"

	reasonExpired = "expired"  // no renewal reached the backend in time
	reasonMaxHold = "max_hold" // WithMaxHold
	reasonTTL     = "ttl"      // WithoutRenewal
	reasonLapsed  = "lapsed"   // Lock.Lapse
	reasonGone    = "gone"     // the backend says that the key is not ours
)

// labels are the attributes of one series, made once: a measurement allocates nothing.
type labels struct {
	record []metric.RecordOption
	add    []metric.AddOption
}

// each makes the labels of one attribute, by its value.
func each(key attribute.Key, values ...string) map[string]labels {
	all := make(map[string]labels, len(values))
	for _, v := range values {
		o := metric.WithAttributeSet(attribute.NewSet(key.String(v)))
		all[v] = labels{[]metric.RecordOption{o}, []metric.AddOption{o}}
	}
	return all
}

var (
	outcomes = each("onelane.outcome", outcomeGranted, outcomeTaken, outcomeSealed, outcomeUnavailable, outcomeCancelled,
		outcomeClosed, outcomeFailed, outcomeRenewed, outcomeLost)
	ends    = each("onelane.end", endReleased, endSealed, endLost, endClosed)
	reasons = each("onelane.reason", reasonExpired, reasonMaxHold, reasonTTL, reasonLapsed, reasonGone)
)

// telemetry is what one Locker and its backend measure.
type telemetry struct {
	tracer   trace.Tracer
	anywhere bool // spans are made outside of traces too

	acquire, hold, seal, renewal, lag metric.Float64Histogram
	held, out                         metric.Int64UpDownCounter
	lost, handOvers                   metric.Int64Counter
}

// newTelemetry makes the instruments. Their names are API: dashboards are built on them.
func newTelemetry(c *config) (*telemetry, error) {
	m := c.meters.Meter(scope)
	var errs [9]error
	seconds := func(i int, name, description string, bounds ...float64) (h metric.Float64Histogram) {
		h, errs[i] = m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description), metric.WithExplicitBucketBoundaries(bounds...))
		return h
	}
	call := []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	t := &telemetry{
		tracer:   c.tracers.Tracer(scope),
		anywhere: c.tracing,
		acquire:  seconds(0, "onelane.acquire.duration", "How long Acquire took, waiting included.", call...),
		hold:     seconds(1, "onelane.hold.duration", "How long a lock was held.", .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900),
		seal:     seconds(2, "onelane.seal.duration", "How long Seal took.", call...),
		renewal:  seconds(3, "onelane.renewal.duration", "How long a renewal took.", call...),
		lag:      seconds(4, "onelane.renewal.lag", "How much later than planned a renewal began.", call...),
	}
	t.held, errs[5] = m.Int64UpDownCounter("onelane.locks.held", metric.WithUnit("{lock}"), metric.WithDescription("Locks held now."))
	t.out, errs[6] = m.Int64UpDownCounter("onelane.nodes.excluded", metric.WithUnit("{node}"), metric.WithDescription("Nodes of the quorum that are not asked now."))
	t.lost, errs[7] = m.Int64Counter("onelane.locks.lost", metric.WithUnit("{lock}"), metric.WithDescription("Locks lost before their holders released them."))
	t.handOvers, errs[8] = m.Int64Counter("onelane.hand_overs", metric.WithUnit("{hand_over}"), metric.WithDescription("Locks that went to the next waiter of this process without a round trip."))
	return t, errors.Join(errs[:]...)
}

// start begins a span about key. The context it returns is for the calls that belong to the span.
//
// Without a span around it, and without a provider of the Locker's own, there is none: a span costs allocations even
// where nobody records it, and a worker's endless loop makes no useful traces.
func (t *telemetry) start(ctx context.Context, name, key string) (context.Context, trace.Span) {
	if !t.anywhere && !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx, nil
	}
	return t.tracer.Start(ctx, name, trace.WithAttributes(attribute.String("onelane.key", key)))
}

// end ends a span, if there is one. Only what should not happen makes it a failed one.
func end(span trace.Span, outcome string, token uint64, err error) {
	if span == nil {
		return
	}
	span.SetAttributes(attribute.String("onelane.outcome", outcome))
	if token > 0 {
		span.SetAttributes(attribute.Int64("onelane.token", int64(token)))
	}
	switch outcome {
	case outcomeUnavailable, outcomeLost, outcomeFailed:
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

// acquired is told how an acquisition went.
func (t *telemetry) acquired(ctx context.Context, span trace.Span, began time.Time, k *Lock, err error) {
	outcome, token := outcomeGranted, uint64(0)
	if err != nil {
		outcome = failure(ctx, err)
	} else {
		token = k.Token()
	}
	t.acquire.Record(ctx, time.Since(began).Seconds(), outcomes[outcome].record...)
	end(span, outcome, token, err)
}

// failure names an error.
func failure(ctx context.Context, err error) string {
	if t, ok := errors.AsType[*TakenError](err); ok {
		if t.Cause != nil {
			return outcomeCancelled
		}
		return outcomeTaken
	}
	switch {
	case errors.Is(err, ErrSealed):
		return outcomeSealed
	case errors.Is(err, ErrUnavailable):
		return outcomeUnavailable
	case errors.Is(err, ErrClosed):
		return outcomeClosed
	case errors.Is(err, ErrLost):
		return outcomeLost
	case ended(ctx) != nil:
		return outcomeCancelled
	default:
		return outcomeFailed
	}
}

// began is told of each new holder, and over that its time is over, and why it was lost, if it was.
func (t *telemetry) began() { t.held.Add(context.Background(), 1) }

func (t *telemetry) over(h *hold, reason string) {
	ctx, end := context.Background(), endReleased
	switch {
	case reason != "":
		end = endLost
		t.lost.Add(ctx, 1, reasons[reason].add...)
	case errors.Is(h.ended, ErrClosed):
		end = endClosed
	case h.sealed:
		end = endSealed
	}
	t.held.Add(ctx, -1)
	t.hold.Record(ctx, time.Since(h.began).Seconds(), ends[end].record...)
}

// handedOver is told of each hand-over.
func (t *telemetry) handedOver() { t.handOvers.Add(context.Background(), 1) }

// renewed is told of each renewal: when it was due, when it began, and how it went.
func (t *telemetry) renewed(due, began time.Time, err error) {
	ctx, outcome := context.Background(), outcomeRenewed
	if err != nil {
		outcome = failure(ctx, err)
	}
	t.lag.Record(ctx, max(began.Sub(due), 0).Seconds())
	t.renewal.Record(ctx, time.Since(began).Seconds(), outcomes[outcome].record...)
}

// sealedKey is told how a Seal that was sent went.
func (t *telemetry) sealedKey(ctx context.Context, span trace.Span, began time.Time, token uint64, err error) {
	outcome := outcomeSealed
	if err != nil {
		outcome = failure(ctx, err)
	}
	t.seal.Record(ctx, time.Since(began).Seconds(), outcomes[outcome].record...)
	end(span, outcome, token, err)
}

// excluded is told by a quorum when it stops asking a node, and, with out false, when it asks it again. Nodes count
// from 1; a reason is one word of few, such as "timeouts" or "restarted".
func (t *telemetry) excluded(node int, reason string, out bool) {
	n := int64(-1)
	if out {
		n = 1
	}
	t.out.Add(context.Background(), n, metric.WithAttributes(attribute.Int("onelane.node", node), attribute.String("onelane.reason", reason)))
}
