package core_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

func TestTelemetryIsConfiguredAtTheLocker(t *testing.T) {
	t.Parallel()
	log := &records{}
	logger, meters, tracers := slog.New(log), sdkmetric.NewMeterProvider(), sdktrace.NewTracerProvider()
	l := locker(t, backendtest.Memory(), core.WithLogger(logger), core.WithTelemetry(meters, tracers),
		core.WithLogger(nil), core.WithTelemetry(nil, nil))
	l.Logger().Info("core: a test")
	if !log.has("core: a test") || l.MeterProvider() != meters || l.TracerProvider() != tracers {
		t.Error("the locker does not return what it was given")
	}
	l = locker(t, backendtest.Memory())
	if l.MeterProvider() != otel.GetMeterProvider() || l.TracerProvider() != otel.GetTracerProvider() {
		t.Error("by default telemetry does not go to the global providers")
	}
}

// meters is a MeterProvider that remembers which instruments were made, so that one that is never used is found.
type meters struct {
	metric.MeterProvider
	reader *sdkmetric.ManualReader
	mu     sync.Mutex
	made   map[string]bool
}

func (m *meters) makes(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.made[name] = true
}

func newMeters() *meters {
	reader := sdkmetric.NewManualReader()
	return &meters{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), reader: reader, made: make(map[string]bool)}
}

func (m *meters) Meter(name string, opts ...metric.MeterOption) metric.Meter {
	return &meter{m.MeterProvider.Meter(name, opts...), m}
}

type meter struct {
	metric.Meter
	of *meters
}

func (m *meter) Float64Histogram(name string, opts ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	m.of.makes(name)
	return m.Meter.Float64Histogram(name, opts...)
}

func (m *meter) Int64Counter(name string, opts ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	m.of.makes(name)
	return m.Meter.Int64Counter(name, opts...)
}

func (m *meter) Int64UpDownCounter(name string, opts ...metric.Int64UpDownCounterOption) (metric.Int64UpDownCounter, error) {
	m.of.makes(name)
	return m.Meter.Int64UpDownCounter(name, opts...)
}

// read returns what each series counted: a histogram's number of values, a counter's sum.
func (m *meters) read(t *testing.T) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	ok(t, "Collect", m.reader.Collect(context.Background(), &all))
	read := make(map[string]int64)
	series := func(name string, attrs attribute.Set, n int64) {
		read[name+"{"+attrs.Encoded(attribute.DefaultEncoder())+"}"] = n
	}
	for _, s := range all.ScopeMetrics {
		for _, metric := range s.Metrics {
			switch data := metric.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					series(metric.Name, p.Attributes, int64(p.Count))
					if p.Sum < 0 || metric.Unit != "s" {
						t.Errorf("%s: sum %v %s, want seconds", metric.Name, p.Sum, metric.Unit)
					}
				}
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					series(metric.Name, p.Attributes, p.Value)
				}
			default:
				t.Errorf("%s is a %T, which this test does not read", metric.Name, data)
			}
			if !strings.HasPrefix(metric.Name, "onelane.") || metric.Description == "" || metric.Unit == "" {
				t.Errorf("%s: unit %q, description %q", metric.Name, metric.Unit, metric.Description)
			}
		}
	}
	return read
}

// everything makes everything happen that is measured, on keys of this name.
func everything(t *testing.T, b *spy, l *core.Locker, name string) {
	ctx := context.Background()
	fail := func(verb string, err error) {
		b.on(verb, func(context.Context) error { return err })
	}
	k := acquire(t, l, name)
	_, err := l.TryAcquire(ctx, name)
	want(t, "TryAcquire", err, core.ErrTaken)
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err = l.Acquire(short, name)
	want(t, "Acquire until the context ends", err, context.DeadlineExceeded)
	_, err = l.Acquire(ctx, name, core.WithWait(time.Second))
	want(t, "Acquire with a wait", err, core.ErrTaken)
	ok(t, "Release", k.Release(ctx))

	k = acquire(t, l, name)
	done := make(chan error)
	go func() { done <- l.Do(ctx, name, func(context.Context) error { return nil }) }()
	synctest.Wait()
	ok(t, "Release to the next in line", k.Release(ctx))
	ok(t, "Do", <-done)

	k = acquire(t, l, name)
	fail("seal", unavailable(name))
	want(t, "Seal", k.Seal(ctx, []byte("v"), time.Minute), core.ErrUnavailable)
	fail("seal", nil)
	ok(t, "Seal again", k.Seal(ctx, []byte("v"), time.Minute))
	_, err = l.Acquire(ctx, name)
	want(t, "Acquire", err, core.ErrSealed)
	ok(t, "Unseal", l.Unseal(ctx, name))

	fail("acquire", unavailable(name))
	_, err = l.Acquire(ctx, name)
	want(t, "Acquire", err, core.ErrUnavailable)
	fail("acquire", nil)
	_, err = l.Acquire(ctx, "")
	want(t, "Acquire", err, core.ErrInvalidKey)

	for _, opts := range [][]core.AcquireOption{{core.WithMaxHold(time.Second)}, {core.WithMaxHold(0)}, {}} { // the last renews
		k = acquire(t, l, name, append(opts, core.WithTTL(3*time.Second))...)
		time.Sleep(4 * time.Second)
		_ = k.Release(ctx)
	}
	k = acquire(t, l, name, core.WithTTL(3*time.Second))
	fail("extend", unavailable(name))
	time.Sleep(4 * time.Second)
	want(t, "Release", k.Release(ctx), core.ErrLost)
	k = acquire(t, l, name, core.WithTTL(3*time.Second))
	fail("extend", fmt.Errorf("%w: deleted", core.ErrLost))
	time.Sleep(4 * time.Second)
	want(t, "Release", k.Release(ctx), core.ErrLost)
	fail("extend", nil)
	k = acquire(t, l, name, core.WithTTL(3*time.Second))
	k.Lapse()
	time.Sleep(4 * time.Second)
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, b := newMeters(), memorySpy()
		l := locker(t, b, core.WithTelemetry(m, nil))
		everything(t, b, l, "order:4711")
		held := acquire(t, l, "held")
		ok(t, "Close", l.Close())
		_, err := l.Acquire(t.Context(), "k")
		want(t, "Acquire", err, core.ErrClosed)
		_ = held.Release(t.Context())

		expect := map[string]int64{
			"onelane.acquire.duration{onelane.outcome=granted}":     11,
			"onelane.acquire.duration{onelane.outcome=taken}":       2,
			"onelane.acquire.duration{onelane.outcome=cancelled}":   1,
			"onelane.acquire.duration{onelane.outcome=sealed}":      1,
			"onelane.acquire.duration{onelane.outcome=unavailable}": 1,
			"onelane.acquire.duration{onelane.outcome=failed}":      1,
			"onelane.acquire.duration{onelane.outcome=closed}":      1,
			"onelane.hold.duration{onelane.end=released}":           4,
			"onelane.hold.duration{onelane.end=sealed}":             1,
			"onelane.hold.duration{onelane.end=lost}":               5,
			"onelane.hold.duration{onelane.end=closed}":             1,
			"onelane.seal.duration{onelane.outcome=sealed}":         1,
			"onelane.seal.duration{onelane.outcome=unavailable}":    1,
			"onelane.locks.held{}":                                  0,
			"onelane.locks.lost{onelane.reason=max_hold}":           1,
			"onelane.locks.lost{onelane.reason=ttl}":                1,
			"onelane.locks.lost{onelane.reason=expired}":            1,
			"onelane.locks.lost{onelane.reason=gone}":               1,
			"onelane.locks.lost{onelane.reason=lapsed}":             1,
			"onelane.hand_overs{}":                                  1,
			"onelane.waiters{}":                                     0,
			"onelane.renewal.duration{onelane.outcome=lost}":        1,
		}
		got := m.read(t)
		for series, n := range expect {
			if got[series] != n {
				t.Errorf("%s is %d, want %d", series, got[series], n)
			}
		}
		for _, series := range []string{"onelane.renewal.lag{}", "onelane.renewal.duration{onelane.outcome=renewed}",
			"onelane.renewal.duration{onelane.outcome=unavailable}"} {
			if got[series] == 0 {
				t.Errorf("%s was not measured", series)
			}
			expect[series] = 0
		}
		for series := range got {
			if _, known := expect[series]; !known {
				t.Errorf("%s is new: say in this test how often it is counted", series)
			}
		}
		for name := range m.made {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(got)), func(s string) bool { return strings.HasPrefix(s, name+"{") }) {
				t.Errorf("%s is made and never measured", name)
			}
		}
	})
}

// A series for each order would bring down whatever keeps the metrics.
func TestMetricsHaveAsManySeriesForAThousandKeysAsForOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, b := newMeters(), memorySpy()
		l := locker(t, b, core.WithTelemetry(m, nil))
		everything(t, b, l, "order:0")
		one := len(m.read(t))
		for i := range 1000 {
			everything(t, b, l, fmt.Sprintf("order:%d", i))
		}
		after := m.read(t)
		if len(after) != one {
			t.Errorf("%d series after one key, %d after 1,000", one, len(after))
		}
		for series := range after {
			if strings.Contains(series, "order") || strings.Contains(series, "/") {
				t.Errorf("%s names a key or an owner", series)
			}
		}
	})
}

func TestSpans(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	b := memorySpy()
	l := locker(t, b, core.WithTelemetry(nil, provider), core.WithOutageWait(0))
	ctx, root := provider.Tracer("test").Start(t.Context(), "request")
	b.on("acquire", func(ctx context.Context) error { // as an instrumented client does
		_, call := provider.Tracer("test").Start(ctx, "call")
		call.End()
		return nil
	})
	k, err := l.Acquire(ctx, "stock:42", core.WithToken())
	ok(t, "Acquire", err)
	_, under := provider.Tracer("test").Start(k.Context(), "work")
	under.End()
	ok(t, "Seal", k.Seal(ctx, []byte("v"), time.Minute))
	_, err = l.Acquire(ctx, "stock:42")
	want(t, "Acquire", err, core.ErrSealed)
	b.on("acquire", func(context.Context) error { return unavailable("k") })
	_, err = l.Acquire(ctx, "stock:42")
	want(t, "Acquire", err, core.ErrUnavailable)

	rootID := root.SpanContext().SpanID()
	var got []string
	var acquireID, callParent, workParent string
	for _, s := range spans.Ended() {
		switch s.Name() {
		case "call":
			callParent = cmp.Or(callParent, s.Parent().SpanID().String())
		case "work":
			workParent = s.Parent().SpanID().String()
		case "onelane.acquire":
			if acquireID == "" {
				acquireID = s.SpanContext().SpanID().String()
			}
			fallthrough
		case "onelane.seal":
			if s.Parent().SpanID() != rootID {
				t.Errorf("%s is not a child of the request", s.Name())
			}
			attrs := attribute.NewSet(s.Attributes()...)
			key, _ := attrs.Value("onelane.key")
			outcome, _ := attrs.Value("onelane.outcome")
			token, _ := attrs.Value("onelane.token")
			got = append(got, fmt.Sprint(s.Name(), " ", key.AsString(), " ", outcome.AsString(), " ", token.AsInt64(), " ", s.Status().Code == codes.Error))
		}
	}
	expect := []string{
		fmt.Sprint("onelane.acquire stock:42 granted ", token(t, k), " false"),
		fmt.Sprint("onelane.seal stock:42 sealed ", token(t, k), " false"),
		"onelane.acquire stock:42 sealed 0 false",
		"onelane.acquire stock:42 unavailable 0 true",
	}
	if !slices.Equal(got, expect) {
		t.Errorf("spans\n%q\nwant\n%q", got, expect)
	}
	if callParent != acquireID || workParent != rootID.String() {
		t.Errorf("the backend's call is a child of %s and the work of %s, want %s (acquire) and %s (request)", callParent, workParent, acquireID, rootID)
	}
}

// records is a slog.Handler that keeps what it gets above DEBUG.
type records struct {
	slog.Handler
	mu   sync.Mutex
	text []string
}

func (r *records) Enabled(_ context.Context, l slog.Level) bool { return l > slog.LevelDebug }

func (r *records) Handle(_ context.Context, rec slog.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := rec.Level.String() + " " + rec.Message
	rec.Attrs(func(a slog.Attr) bool {
		text += " " + a.String()
		return true
	})
	r.text = append(r.text, text)
	return nil
}

func (r *records) has(parts ...string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.text, func(s string) bool {
		return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(s, p) })
	})
}

func TestLossIsLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, b := &records{}, memorySpy()
		l := locker(t, b, core.WithLogger(slog.New(log)))
		b.on("extend", func(context.Context) error { return errors.New("the cable is out") })
		k := acquire(t, l, "stock:42", core.WithTTL(3*time.Second))
		time.Sleep(4 * time.Second)
		if !log.has("WARN core: renewal failed", "key=stock:42", "the cable is out") {
			t.Errorf("no failed renewal in %q", log.text)
		}
		if !log.has("WARN core: lock lost", "key=stock:42", "reason=expired", "owner="+k.Owner()) {
			t.Errorf("no loss in %q", log.text)
		}
	})
}

func TestRenewal_LogsTheEndOfATrouble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, b := &records{}, memorySpy()
		l := locker(t, b, core.WithLogger(slog.New(log)), core.WithTTL(3*time.Second))
		const again = "INFO core: a renewal succeeded again after others had failed"
		acquire(t, l, "stock:42")
		time.Sleep(10 * time.Second)
		if log.has(again) {
			t.Errorf("nothing had failed: %q", log.text)
		}
		b.on("extend", func(context.Context) error { return unavailable("stock:42") })
		time.Sleep(1500 * time.Millisecond)
		b.on("extend", nil)
		time.Sleep(10 * time.Second)
		if !log.has("WARN core: renewal failed") || !log.has(again, "key=stock:42") {
			t.Errorf("no end of the trouble in %q", log.text)
		}
	})
}
