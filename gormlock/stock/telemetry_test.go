package stock_test

import (
	"context"
	"slices"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock/stock"
)

// TestSale_Telemetry: metrics count calls and batches, and the span of a call links to its batch's.
func TestSale_Telemetry(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		reader, spans := sdkmetric.NewManualReader(), tracetest.NewInMemoryExporter()
		tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
		fresh(t, db, 4, &Order{})
		lost := &faulty{}
		s := newSale[Order](t, through(db, lost), unique, stock.Remember(time.Hour),
			stock.Telemetry(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), tracers))
		for _, x := range together(t, db, s, one, &Order{Buyer: 1}, &Order{Buyer: 2, N: 5000}) {
			if x.order.N == 0 {
				ok(t, "Sell", x.err)
			}
		}
		ctx, request := tracers.Tracer("test").Start(t.Context(), "request")
		_, err := s.Sell(ctx, 42, 1, &Order{Buyer: 3})
		ok(t, "Sell", err)
		request.End()
		for range 2 { // by the database, and from memory
			_, err = s.Sell(t.Context(), 42, 9, &Order{Buyer: 4})
			want(t, "too much", err, stock.ErrInsufficient)
		}
		lost.commit = func(tx gorm.TxCommitter) error { _ = tx.Rollback(); return context.DeadlineExceeded }
		_, err = s.Sell(t.Context(), 42, 1, &Order{Buyer: 5})
		want(t, "unknown", err, stock.ErrCommitUnknown)

		got := make(map[string]int64)
		var all metricdata.ResourceMetrics
		ok(t, "Collect", reader.Collect(t.Context(), &all))
		for _, m := range all.ScopeMetrics[0].Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					got[m.Name] += p.Value
				}
			case metricdata.Histogram[int64]:
				for _, p := range data.DataPoints {
					got[m.Name] += p.Sum
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					got[m.Name] += int64(p.Count)
				}
			}
		}
		for name, expected := range map[string]int64{
			"onelane.stock.batch.size":      5, // calls that were in batches
			"onelane.stock.wait.duration":   4, // batches
			"onelane.stock.splits":          1,
			"onelane.stock.sold_out":        2,
			"onelane.stock.unknown_commits": 1,
		} {
			if got[name] != expected {
				t.Errorf("%s is %d, want %d", name, got[name], expected)
			}
		}
		find := func(name string) tracetest.SpanStub {
			i := slices.IndexFunc(spans.GetSpans(), func(s tracetest.SpanStub) bool { return s.Name == name })
			if i < 0 {
				t.Fatalf("there is no span %s", name)
			}
			return spans.GetSpans()[i]
		}
		call, batch := find("stock.sell"), find("stock.batch")
		if call.Parent.SpanID() != request.SpanContext().SpanID() || len(call.Links) != 1 ||
			call.Links[0].SpanContext.SpanID() != batch.SpanContext.SpanID() {
			t.Errorf("the call's span is %+v, its batch's %+v", call, batch)
		}
	})
}
