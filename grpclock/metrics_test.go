package grpclock_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// The Locker's metrics and spans get one outcome per call, the same as ginlock's, as grpc.
func TestMetricsAndSpans(t *testing.T) {
	t.Parallel()
	reader, spans := sdkmetric.NewManualReader(), tracetest.NewSpanRecorder()
	n := testutil.Redis(t)
	l := lockerOn(t, n, core.WithTelemetry(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
		sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))))
	s := serve(t, &orders{handle: func(_ context.Context, r *request) (*order, error) {
		switch r.OrderId {
		case "fail":
			return nil, status.Error(codes.Aborted, "no")
		case "panic":
			panic("oops")
		case "large":
			return &order{Blob: make([]byte, 2<<20)}, nil
		case "lose":
			n.Client().FlushAll(context.Background())
		}
		return &order{}, nil
	}}, grpc.ChainUnaryInterceptor(recovery.UnaryServerInterceptor(), grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(l), idempotency.FailOpen())))
	for _, id := range []string{"lose", "ok", "ok", "fail", "panic", "large", "large"} {
		s.create("k"+id, &request{OrderId: id})
	}
	s.create("kok", &request{OrderId: "other"})
	ask(t.Context(), s.Create, &request{}) // without a key
	n.Kill()
	s.create("k2", &request{}).want(t, 0, false)

	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != "onelane.idempotency.requests" {
				continue
			}
			for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
				o, _ := p.Attributes.Value("onelane.outcome")
				transport, _ := p.Attributes.Value("onelane.transport")
				got[transport.AsString()+" "+o.AsString()] += p.Value
			}
		}
	}
	want := map[string]int64{"grpc ran": 1, "grpc replayed": 1, "grpc freed": 1, "grpc unknown": 1, "grpc without_key": 1, "grpc tombstone": 1, "grpc not_kept": 1, "grpc mismatch": 1, "grpc lost": 1, "grpc unprotected": 1}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	outcomes := map[string]int{}
	for _, span := range spans.Ended() {
		for _, a := range span.Attributes() {
			if a.Key == "onelane.outcome" {
				outcomes[a.Value.AsString()]++
			}
		}
	}
	for outcome := range want {
		if name := outcome[len("grpc "):]; outcomes[name] == 0 && name != "unknown" && name != "without_key" {
			t.Errorf("no span ended with %s: %v", name, outcomes)
		}
	}
}
