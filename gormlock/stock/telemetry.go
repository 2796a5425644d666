package stock

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/onelane/onelane/internal/version"
)

const scope = "github.com/onelane/onelane/gormlock/stock"

// instruments report what a sale does.
type instruments struct {
	tracer                   trace.Tracer
	size                     metric.Int64Histogram
	wait                     metric.Float64Histogram
	splits, soldOut, unknown metric.Int64Counter
	inMemory, inDatabase     metric.MeasurementOption
}

func newInstruments(meters metric.MeterProvider, tracers trace.TracerProvider) *instruments {
	m := meters.Meter(scope, metric.WithInstrumentationVersion(version.Of()))
	i := &instruments{tracer: tracers.Tracer(scope, trace.WithInstrumentationVersion(version.Of()))}
	// The errors are about names and units, which a test covers; the instruments work nevertheless.
	i.size, _ = m.Int64Histogram("onelane.stock.batch.size", metric.WithUnit("{call}"),
		metric.WithDescription("Calls of Sell that shared a batch."),
		metric.WithExplicitBucketBoundaries(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024))
	i.wait, _ = m.Float64Histogram("onelane.stock.wait.duration", metric.WithUnit("s"),
		metric.WithDescription("How long the first call of a batch waited in line."),
		metric.WithExplicitBucketBoundaries(
			.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10))
	i.splits, _ = m.Int64Counter("onelane.stock.splits", metric.WithUnit("{batch}"),
		metric.WithDescription("Batches tried again because the database refused one of their orders."))
	i.soldOut, _ = m.Int64Counter("onelane.stock.sold_out", metric.WithUnit("{call}"),
		metric.WithDescription("Calls of Sell that found too little left."))
	i.unknown, _ = m.Int64Counter("onelane.stock.unknown_commits", metric.WithUnit("{call}"),
		metric.WithDescription("Calls of Sell whose COMMIT has no known outcome."))
	from := func(where string) metric.MeasurementOption {
		return metric.WithAttributeSet(attribute.NewSet(attribute.String("onelane.answered_by", where)))
	}
	i.inMemory, i.inDatabase = from("memory"), from("database")
	return i
}

// start begins the span of a call. Outside of a trace there is none.
func (i *instruments) start(c *call) trace.Span {
	if !trace.SpanContextFromContext(c.ctx).IsValid() {
		return nil
	}
	var span trace.Span
	c.ctx, span = i.tracer.Start(c.ctx, "stock.sell")
	return span
}

func (i *instruments) end(span trace.Span, c *call) {
	expected := false
	switch {
	case errors.Is(c.err, ErrInsufficient):
		i.soldOut.Add(c.ctx, 1, i.inDatabase)
		expected = true
	case errors.Is(c.err, ErrCommitUnknown):
		i.unknown.Add(c.ctx, 1)
	case errors.Is(c.err, ErrDuplicate):
		expected = true
	}
	if span == nil {
		return
	}
	if c.batch.IsValid() {
		span.AddLink(trace.Link{SpanContext: c.batch})
	}
	if c.err != nil && !expected {
		span.SetStatus(codes.Error, c.err.Error())
	}
	span.End()
}

// remembered counts a call that was answered from memory.
func (i *instruments) remembered(ctx context.Context) { i.soldOut.Add(ctx, 1, i.inMemory) }

// batch begins the span of a batch, if one of its calls is traced, and returns what ends it.
func (i *instruments) batch(ctx context.Context, calls []*call) (context.Context, func()) {
	i.size.Record(ctx, int64(len(calls)))
	i.wait.Record(ctx, time.Since(calls[0].asked).Seconds())
	traced := func(c *call) bool { return trace.SpanContextFromContext(c.ctx).IsValid() }
	if !slices.ContainsFunc(calls, traced) {
		return ctx, func() {}
	}
	ctx, span := i.tracer.Start(ctx, "stock.batch", trace.WithAttributes(attribute.Int("onelane.batch.size", len(calls))))
	for _, c := range calls {
		c.batch = span.SpanContext()
	}
	return ctx, func() { span.End() }
}
