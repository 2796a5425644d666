package idempotency_test

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// meter is a Locker's meter provider that a test reads.
type meter struct {
	t      testing.TB
	reader *sdkmetric.ManualReader
	core.Option
}

func newMeter(t testing.TB) *meter {
	reader := sdkmetric.NewManualReader()
	p := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	t.Cleanup(func() { _ = p.Shutdown(context.Background()) })
	return &meter{t, reader, core.WithTelemetry(p, nil)}
}

// read returns the metric of this name.
func (m *meter) read(name string) metricdata.Metrics {
	m.t.Helper()
	var all metricdata.ResourceMetrics
	if err := m.reader.Collect(context.Background(), &all); err != nil {
		m.t.Fatal(err)
	}
	for _, scope := range all.ScopeMetrics {
		for _, metric := range scope.Metrics {
			if metric.Name == name {
				return metric
			}
		}
	}
	m.t.Fatalf("there is no metric %q", name)
	return metricdata.Metrics{}
}

// outcomes returns how many requests ended how.
func (m *meter) outcomes() map[string]int64 {
	m.t.Helper()
	found := make(map[string]int64)
	for _, p := range m.read("onelane.idempotency.requests").Data.(metricdata.Sum[int64]).DataPoints {
		o, _ := p.Attributes.Value("onelane.outcome")
		if transport, ok := p.Attributes.Value("onelane.transport"); !ok || transport.AsString() != "test" || p.Attributes.Len() != 2 {
			m.t.Errorf("attributes %v", p.Attributes.ToSlice())
		}
		found[o.AsString()] += p.Value
	}
	return found
}

// Each request is counted once, under what became of it.
func TestTelemetry_OneOutcomePerRequest(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	m := newMeter(t)
	b := redisbackend.New(n.Client())
	b.NodeTimeout = 200 * time.Millisecond
	l, err := core.New(b, m, core.WithTTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	ctx := t.Context()
	c := idempotency.New(l, idempotency.WithTransport("test"))
	want := map[string]int64{}
	check := func(name string) {
		t.Helper()
		want[name]++
		if got := m.outcomes(); !maps.Equal(got, want) {
			t.Fatalf("after %s: %v, want %v", name, got, want)
		}
	}
	fails := func(err, is error) {
		t.Helper()
		if !errors.Is(err, is) {
			t.Fatalf("%v, want %v", err, is)
		}
	}
	refuse := func(key, payload string, is error) {
		t.Helper()
		_, err := c.Begin(ctx, key, fp(payload))
		fails(err, is)
	}
	claim := begin(t, c, "k", fp("a"))
	refuse("k", "a", idempotency.ErrInFlight)
	check("in_flight")
	refuse("k", "b", idempotency.ErrMismatch)
	check("mismatch")
	fails(claim.Complete(ctx, record("done")), nil)
	check("ran")
	fails(claim.Abandon(ctx), nil) // does nothing, and is not counted
	fails(claim.Complete(ctx, record("done")), idempotency.ErrCompleted)
	replay(t, c, "k", fp("a"), "done")
	check("replayed")
	fails(begin(t, c, "streamed", fp("a")).Complete(ctx, idempotency.Tombstone()), nil)
	check("tombstone")
	replay(t, c, "streamed", fp("a"), "")
	check("not_kept")
	fails(begin(t, c, "panicked", fp("a")).Abandon(ctx), nil)
	check("abandoned")
	for _, end := range []func(*idempotency.Claim) error{
		func(k *idempotency.Claim) error { return k.Complete(ctx, record("late")) },
		func(k *idempotency.Claim) error { return k.Abandon(ctx) },
	} {
		claim = begin(t, c, "lost", fp("a"))
		n.Client().Del(ctx, "onelane:{claim:lost}")
		fails(end(claim), core.ErrLost)
		check("lost")
	}
	k, err := l.Acquire(ctx, "claim:odd")
	fails(err, nil)
	fails(k.Seal(ctx, []byte("sold out"), time.Minute), nil)
	refuse("odd", "a", idempotency.ErrRecord)
	check("unreadable")
	if p := m.read("onelane.idempotency.run.duration").Data.(metricdata.Histogram[float64]); len(p.DataPoints) != 4 {
		t.Errorf("%d outcomes with a duration, want ran, tombstone, abandoned and lost", len(p.DataPoints))
	}
	if p := m.read("onelane.idempotency.record.size").Data.(metricdata.Histogram[int64]); len(p.DataPoints) != 2 {
		t.Errorf("%d outcomes with a size, want ran and tombstone", len(p.DataPoints))
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	_, err = c.Begin(done, "k", fp("a"))
	fails(err, context.Canceled)
	check("refused")
	claim = begin(t, c, "unrecorded", fp("a"))
	n.Stop()
	refuse("k2", "a", core.ErrUnavailable)
	check("store_down")
	open := idempotency.New(l, idempotency.WithTransport("test"), idempotency.WithFailOpen())
	if out, err := open.Begin(ctx, "k2", fp("a")); err != nil || !errors.Is(out.Unprotected, core.ErrUnavailable) || out.Claim != nil || out.Replay != nil {
		t.Fatalf("%+v, %v", out, err)
	}
	check("unprotected")
	fails(claim.Complete(ctx, record("done")), core.ErrUnavailable)
	check("unrecorded")
	for _, name := range idempotency.OutcomeNames {
		if want[name] == 0 {
			t.Errorf("the outcome %q was not seen", name)
		}
	}
	n.Cont()
	for out := (idempotency.Outcome{}); out.Replay == nil; time.Sleep(10 * time.Millisecond) { // it is recorded late
		if out, err = c.Begin(ctx, "unrecorded", fp("a")); err != nil && !errors.Is(err, idempotency.ErrInFlight) && !errors.Is(err, core.ErrUnavailable) {
			t.Fatal(err)
		}
	}
}

// Spans tell the outcome, and not the key: it names a user.
func TestTelemetry_Spans(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	p := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	t.Cleanup(func() { _ = p.Shutdown(context.Background()) })
	l := memoryLocker(t, core.WithTelemetry(nil, p))
	c := idempotency.New(l, idempotency.WithTransport("test"))
	ctx, parent := p.Tracer("test").Start(t.Context(), "request")
	out, err := c.Begin(ctx, "k", fp("a"))
	if err != nil {
		t.Fatal(err)
	}
	if err := out.Claim.Complete(ctx, record("done")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Begin(ctx, "k", fp("a")); err != nil {
		t.Fatal(err)
	}
	_, _ = c.Begin(ctx, "k", fp("b"))
	type seen struct{ name, outcome string }
	var got []seen
	for _, s := range spans.Ended() {
		if s.InstrumentationScope().Name != "github.com/onelane/onelane/idempotency" {
			continue
		}
		set := attribute.NewSet(s.Attributes()...)
		o, _ := set.Value("onelane.outcome")
		if transport, _ := set.Value("onelane.transport"); transport.AsString() != "test" || s.Parent().SpanID() != parent.SpanContext().SpanID() || s.Status().Code == codes.Error {
			t.Errorf("%s: attributes %v, parent %v, status %v", s.Name(), s.Attributes(), s.Parent(), s.Status())
		}
		got = append(got, seen{s.Name(), o.AsString()})
	}
	want := []seen{{"idempotency.begin", ""}, {"idempotency.complete", "ran"}, {"idempotency.begin", "replayed"}, {"idempotency.begin", "mismatch"}}
	if len(got) != len(want) {
		t.Fatalf("spans %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("span %d is %v, want %v", i, got[i], want[i])
		}
	}
}
