package claim_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/internal/claim"
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
	lockerWithin := func(timeout time.Duration) *core.Locker {
		b := redisbackend.New(n.Client())
		b.NodeTimeout = timeout
		l, err := core.New(b, m, core.WithTTL(time.Minute))
		ok(t, "New", err)
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	l := lockerWithin(10 * time.Second)
	ctx := t.Context()
	c := newClaims(l)
	counts := map[string]int64{}
	check := func(name string) {
		t.Helper()
		counts[name]++
		if got := m.outcomes(); !maps.Equal(got, counts) {
			t.Fatalf("after %s: %v, want %v", name, got, counts)
		}
	}
	k := begin(t, c, "k", fp("a"))
	refused(t, c, "k", fp("a"), claim.ErrInFlight)
	check("in_flight")
	refused(t, c, "k", fp("b"), claim.ErrMismatch)
	check("mismatch")
	ok(t, "Complete", k.Complete(record("done")))
	check("ran")
	ok(t, "Free", k.Free()) // does nothing, and is not counted
	k.Close()
	want(t, "Complete", k.Complete(record("done")), claim.ErrOver)
	replay(t, c, "k", fp("a"), "done")
	check("replayed")
	ok(t, "Complete", begin(t, c, "streamed", fp("a")).Complete(claim.Tombstone()))
	check("tombstone")
	replay(t, c, "streamed", fp("a"), "")
	check("not_kept")
	free(t, begin(t, c, "nothing done", fp("a")))
	check("freed")
	begin(t, c, "panicked", fp("a")).Close()
	check("unknown")
	again := newClaims(l, runAgain)
	begin(t, again, "again", fp("a")).Close()
	check("failed")
	ok(t, "Complete", begin(t, again, "again", fp("a")).Complete(record("done")))
	check("ran_again")
	for _, end := range []func(*claim.Claim) error{
		func(k *claim.Claim) error { return k.Complete(record("late")) },
		func(k *claim.Claim) error { return k.Free() },
	} {
		k = begin(t, c, "lost", fp("a"))
		n.Client().Del(ctx, "onelane:{claim:lost}")
		want(t, "the end of a lost claim", end(k), core.ErrLost)
		check("lost")
	}
	lock, err := l.Acquire(ctx, "claim:odd")
	ok(t, "Acquire", err)
	ok(t, "Seal", lock.Seal(ctx, []byte("sold out"), time.Minute))
	refused(t, c, "odd", fp("a"), claim.ErrRecord)
	check("unreadable")
	orphan := ""
	for ttl := 20 * time.Millisecond; orphan == ""; ttl *= 2 { // it may be too short for a busy machine
		key := fmt.Sprint("orphan", ttl)
		k, err := l.Acquire(ctx, "claim:"+key, core.WithOrphan(time.Minute), core.WithTTL(ttl), core.WithMaxHold(0))
		if err == nil {
			<-k.Context().Done()
			orphan = key
		} else if ttl > time.Minute {
			t.Fatal(err)
		}
	}
	becomes(t, l, orphan, core.Orphaned)
	refused(t, c, orphan, fp("a"), claim.ErrUnknown)
	check("refused_unknown")
	c.CountWithoutKey(ctx, "")
	check("without_key")
	if p := m.read("onelane.idempotency.run.duration").Data.(metricdata.Histogram[float64]); len(p.DataPoints) != 7 {
		t.Errorf("%d outcomes with a duration, want ran, ran_again, tombstone, freed, failed, unknown and lost", len(p.DataPoints))
	}
	if p := m.read("onelane.idempotency.record.size").Data.(metricdata.Histogram[int64]); len(p.DataPoints) != 3 {
		t.Errorf("%d outcomes with a size, want ran, ran_again and tombstone", len(p.DataPoints))
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	_, err = ask(done, c, "k", fp("a"))
	want(t, "Begin", err, context.Canceled)
	check("refused")
	patient := c // an answer may take longer than the short time below
	k = begin(t, patient, "unrecorded", fp("a"))
	l = lockerWithin(200 * time.Millisecond)
	c = newClaims(l)
	n.Stop()
	refused(t, c, "k2", fp("a"), core.ErrUnavailable)
	check("store_down")
	if out, err := ask(ctx, newClaims(l, failOpen), "k2", fp("a")); err != nil || !errors.Is(out.Unprotected, core.ErrUnavailable) || out.Claim != nil || out.Replay != nil {
		t.Fatalf("%+v, %v", out, err)
	}
	check("unprotected")
	want(t, "Complete", k.Complete(record("done")), core.ErrUnavailable)
	check("unrecorded")
	for _, name := range claim.OutcomeNames {
		if counts[name] == 0 && name != "recovered" { // see TestTelemetry_Recovered
			t.Errorf("the outcome %q was not seen", name)
		}
	}
	n.Cont()
	for out := (claim.Outcome{}); out.Replay == nil; time.Sleep(10 * time.Millisecond) { // it is recorded late
		if out, err = ask(ctx, patient, "unrecorded", fp("a")); err != nil && !errors.Is(err, claim.ErrInFlight) && !errors.Is(err, core.ErrUnavailable) {
			t.Fatal(err)
		}
	}
}

// A route is an attribute of the counter of requests.
func TestTelemetry_Routes(t *testing.T) {
	t.Parallel()
	m := newMeter(t)
	c := newClaims(memoryLocker(t, m))
	for range 2 {
		out, err := c.Begin(t.Context(), claim.Request{Key: "k", Route: "/pay"})
		ok(t, "Begin", err)
		if out.Claim != nil {
			complete(t, out.Claim, "done")
		}
	}
	c.CountWithoutKey(t.Context(), "/pay")
	seen := map[string]int64{}
	for _, p := range m.read("onelane.idempotency.requests").Data.(metricdata.Sum[int64]).DataPoints {
		route, _ := p.Attributes.Value("onelane.route")
		o, _ := p.Attributes.Value("onelane.outcome")
		seen[route.AsString()+" "+o.AsString()] += p.Value
	}
	if want := map[string]int64{"/pay ran": 1, "/pay replayed": 1, "/pay without_key": 1}; !maps.Equal(seen, want) {
		t.Errorf("%v, want %v", seen, want)
	}
}

// Spans tell the outcome, and not the key: it names a user.
func TestTelemetry_Spans(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	p := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	t.Cleanup(func() { _ = p.Shutdown(context.Background()) })
	l := memoryLocker(t, core.WithTelemetry(nil, p))
	c := newClaims(l)
	ctx, parent := p.Tracer("test").Start(t.Context(), "request")
	out, err := ask(ctx, c, "k", fp("a"))
	if err != nil {
		t.Fatal(err)
	}
	ok(t, "Complete", out.Claim.Complete(record("done")))
	out.Claim.Close()
	if _, err := ask(ctx, c, "k", fp("a")); err != nil {
		t.Fatal(err)
	}
	_, _ = ask(ctx, c, "k", fp("b"))
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

// A run that takes an unknown outcome over is counted apart, and the log names the instance before.
func TestTelemetry_Recovered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		m := newMeter(t)
		l := memoryLocker(t, m, core.WithInstance("shop-7"), core.WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))
		leave(t, newClaims(l), "k", fp("a"))
		time.Sleep(time.Minute)
		k := begin(t, newClaims(l, recovers), "k", fp("a"))
		complete(t, k, "told")
		if got, want := m.outcomes(), map[string]int64{"unknown": 1, "recovered": 1}; !maps.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		if log := logged.String(); !strings.Contains(log, "is taken over") || !strings.Contains(log, "instance=shop-7") {
			t.Error(log)
		}
	})
}
