package core

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/onelane/onelane/internal/loglimit"
	"github.com/onelane/onelane/internal/version"
)

const scope = "github.com/onelane/onelane/core"

// The values of the metrics' attributes. No attribute is a key: there would be a series for each
// order.
const (
	outcomeGranted     = "granted"
	outcomeTaken       = "taken"
	outcomeSealed      = "sealed"
	outcomeOrphaned    = "orphaned"
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
	reasonTTL     = "ttl"      // WithMaxHold(0)
	reasonLapsed  = "lapsed"   // Lock.Lapse
	reasonGone    = "gone"     // the backend says that the key is not ours
)

// labels are the attributes of one series. They are made once, so that a measurement allocates
// nothing.
type labels struct {
	record []metric.RecordOption
	add    []metric.AddOption
}

// each makes the labels of one attribute, by value, beside others.
func each(key attribute.Key, others []attribute.KeyValue, values ...string) map[string]labels {
	all := make(map[string]labels, len(values))
	for _, v := range values {
		o := metric.WithAttributeSet(attribute.NewSet(slices.Concat(others, []attribute.KeyValue{key.String(v)})...))
		all[v] = labels{[]metric.RecordOption{o}, []metric.AddOption{o}}
	}
	return all
}

// telemetry holds a Locker's instruments.
type telemetry struct {
	tracer   trace.Tracer
	anywhere bool // spans are started outside of traces, too

	acquire, hold, seal, renewal, lag metric.Float64Histogram
	held, waiters                     metric.Int64UpDownCounter
	lost, handOvers                   metric.Int64Counter
	classes                           *classes
}

// meter returns the meter of core and of its backend.
func (c *config) meter() metric.Meter {
	return c.meters.Meter(scope, metric.WithInstrumentationVersion(version.Of()))
}

// newTelemetry makes the instruments. Their names are part of the API: dashboards use them.
func newTelemetry(c *config) (*telemetry, error) {
	m := c.meter()
	var errs [9]error
	seconds := func(i int, name, description string, bounds ...float64) (h metric.Float64Histogram) {
		h, errs[i] = m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description), metric.WithExplicitBucketBoundaries(bounds...))
		return h
	}
	call := []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	t := &telemetry{
		tracer:   c.tracers.Tracer(scope, trace.WithInstrumentationVersion(version.Of())),
		anywhere: c.tracing,
		acquire:  seconds(0, "onelane.acquire.duration", "How long Acquire took, waiting included.", call...),
		hold:     seconds(1, "onelane.hold.duration", "How long a lock was held.", .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900),
		seal:     seconds(2, "onelane.seal.duration", "How long Seal took.", call...),
		renewal:  seconds(3, "onelane.renewal.duration", "How long a renewal took.", call...),
		lag:      seconds(4, "onelane.renewal.lag", "How much later than planned a renewal began.", call...),
	}
	t.held, errs[5] = m.Int64UpDownCounter("onelane.locks.held", metric.WithUnit("{lock}"), metric.WithDescription("Locks held now."))
	t.lost, errs[6] = m.Int64Counter("onelane.locks.lost", metric.WithUnit("{lock}"), metric.WithDescription("Locks lost before their holders released them."))
	t.handOvers, errs[7] = m.Int64Counter("onelane.hand_overs", metric.WithUnit("{hand_over}"), metric.WithDescription("Locks that went to the next waiter of this process without a round trip."))
	t.waiters, errs[8] = m.Int64UpDownCounter("onelane.waiters", metric.WithUnit("{waiter}"), metric.WithDescription("Callers that wait in Acquire now."))
	t.classes = newClasses(c.class, func(key string, what any) {
		loglimit.Later(c.logger, slog.LevelWarn,
			"core: the function of WithClass panicked; its keys count as \"other\", and locks are not affected; fix the function",
			"key", key, "panic", what)
	})
	return t, errors.Join(errs[:]...)
}

// traces implements [Locker.Traces].
func (t *telemetry) traces(ctx context.Context) bool {
	return t.anywhere || trace.SpanContextFromContext(ctx).IsValid()
}

// start begins a span about key. The context it returns is for the calls that belong to the span.
func (t *telemetry) start(ctx context.Context, name, key string) (context.Context, trace.Span) {
	if !t.traces(ctx) {
		return ctx, nil
	}
	return t.tracer.Start(ctx, name, trace.WithAttributes(attribute.String("onelane.key", key)))
}

// end ends a span, if there is one. Expected outcomes do not mark it as failed.
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

// acquired records the outcome of an Acquire.
func (t *telemetry) acquired(ctx context.Context, span trace.Span, c *class, began time.Time, k *Lock, err error) {
	outcome, token := outcomeGranted, uint64(0)
	if err != nil {
		outcome = failure(ctx, err)
	} else {
		token = k.mintedToken()
	}
	t.acquire.Record(ctx, time.Since(began).Seconds(), c.outcomes[outcome].record...)
	end(span, outcome, token, err)
}

// failure returns the outcome that an error stands for.
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
	case errors.Is(err, ErrOrphaned):
		return outcomeOrphaned
	case errors.Is(err, ErrUnavailable):
		return outcomeUnavailable
	case errors.Is(err, ErrClosed):
		return outcomeClosed
	case errors.Is(err, ErrLost):
		return outcomeLost
	case contextError(ctx) != nil:
		return outcomeCancelled
	default:
		return outcomeFailed
	}
}

// began counts a new holder.
func (t *telemetry) began() { t.held.Add(context.Background(), 1) }

// over records the end of a hold. The reason is that of a loss, or empty.
func (t *telemetry) over(h *hold, reason string) {
	ctx, end := context.Background(), endReleased
	switch {
	case reason != "":
		end = endLost
		t.lostLock(h.lease.class, reason)
	case errors.Is(h.ended, ErrClosed):
		end = endClosed
	case h.sealed:
		end = endSealed
	}
	t.held.Add(ctx, -1)
	t.hold.Record(ctx, time.Since(h.began).Seconds(), h.lease.class.ends[end].record...)
}

// lostLock counts a loss.
func (t *telemetry) lostLock(c *class, reason string) {
	t.lost.Add(context.Background(), 1, c.reasons[reason].add...)
}

// waiting counts waiters that come, or go if n is negative.
func (t *telemetry) waiting(c *class, n int64) {
	t.waiters.Add(context.Background(), n, c.waiting...)
}

// handedOver counts a hand-over.
func (t *telemetry) handedOver() { t.handOvers.Add(context.Background(), 1) }

// renewed records a renewal: when it was due, when it began, and its outcome.
func (t *telemetry) renewed(due, began time.Time, err error) {
	ctx, outcome := context.Background(), outcomeRenewed
	if err != nil {
		outcome = failure(ctx, err)
	}
	t.lag.Record(ctx, max(began.Sub(due), 0).Seconds())
	t.renewal.Record(ctx, time.Since(began).Seconds(), unclassed.outcomes[outcome].record...)
}

// sealedKey records the outcome of a Seal that was sent.
func (t *telemetry) sealedKey(ctx context.Context, span trace.Span, began time.Time, token uint64, err error) {
	outcome := outcomeSealed
	if err != nil {
		outcome = failure(ctx, err)
	}
	t.seal.Record(ctx, time.Since(began).Seconds(), unclassed.outcomes[outcome].record...)
	end(span, outcome, token, err)
}
