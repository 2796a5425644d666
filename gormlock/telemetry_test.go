package gormlock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/gormlock/optimistic"
	"github.com/onelane/onelane/testutil/backendtest"
)

// readMetrics returns what each series of gormlock counted.
func readMetrics(t *testing.T, reader sdkmetric.Reader) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	ok(t, "Collect", reader.Collect(context.Background(), &all))
	read := make(map[string]int64)
	for _, scope := range all.ScopeMetrics {
		for _, metric := range scope.Metrics {
			if !strings.HasPrefix(metric.Name, "onelane.gormlock.") {
				continue
			}
			if metric.Description == "" || metric.Unit == "" {
				t.Errorf("%s: unit %q, description %q", metric.Name, metric.Unit, metric.Description)
			}
			switch data := metric.Data.(type) {
			case metricdata.Sum[int64]:
				read[metric.Name] += data.DataPoints[0].Value
			case metricdata.Histogram[int64]:
				read[metric.Name] += data.DataPoints[0].Sum
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					outcome, _ := p.Attributes.Value("onelane.outcome")
					read[metric.Name+" "+outcome.AsString()] += int64(p.Count)
				}
			}
		}
	}
	return read
}

// TestTelemetry_Metrics makes everything happen that is measured.
func TestTelemetry_Metrics(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		reader := sdkmetric.NewManualReader()
		meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
		l := locker(t, backendtest.Memory(), core.WithTelemetry(meters, nil))
		ok(t, "Migrate", gormlock.Migrate(db))
		ok(t, "AutoMigrate", db.AutoMigrate(&Account{}))
		ok(t, "Use", db.Use(gormlock.New(l)))
		put(t, db, 42, 10)
		buy := func(tx *gorm.DB) error { return take(tx, 42) }
		ctx := t.Context()

		ok(t, "granted", gormlock.Transaction(db, "k", buy))
		k, err := l.Acquire(ctx, "taken")
		ok(t, "Acquire", err)
		want(t, "taken", gormlock.Transaction(db, "taken", buy, gormlock.WithWait(time.Millisecond)), core.ErrTaken)
		ok(t, "Seal", k.Seal(ctx, []byte("sold"), time.Hour))
		want(t, "sealed", gormlock.Transaction(db, "taken", buy), core.ErrSealed)
		want(t, "invalid", gormlock.Transaction(db, "", buy), core.ErrInvalidKey)
		gone, cancel := context.WithCancel(ctx)
		cancel()
		want(t, "cancelled", gormlock.Transaction(db.WithContext(gone), "k", buy), context.Canceled)

		ok(t, "Fenced", gormlock.Transaction(db, "f", buy, gormlock.Fenced()))
		ok(t, "Exec", db.Exec("UPDATE onelane_fences SET token = token + 1000000").Error)
		want(t, "Fenced", gormlock.Transaction(db, "f", buy, gormlock.Fenced()), gormlock.ErrFenced)

		account := Account{Name: "a"}
		ok(t, "Create", db.Create(&account).Error)
		theirs := account
		ok(t, "Update", db.Model(&account).Update("name", "b").Error)
		want(t, "Update", db.Model(&theirs).Update("name", "c").Error, optimistic.ErrStale)
		want(t, "Save", db.Save([]*Account{&theirs}).Error, optimistic.ErrStale)

		runs := 0
		_, err = gormlock.Once(ctx, db, "once", func(*gorm.DB) (int, error) {
			if runs++; runs < 3 {
				return 0, &pgconn.PgError{Code: "40001"}
			}
			return runs, nil
		})
		ok(t, "Once", err)

		unknown := errors.New("the connection is gone")
		session := db.WithContext(ctx)
		session.Statement.ConnPool = &faulty{DB: pool(t, db), answer: unknown}
		want(t, "unknown", gormlock.Transaction(session, "u", buy), gormlock.ErrCommitUnknown)

		got := readMetrics(t, reader)
		expected := map[string]int64{
			"onelane.gormlock.unknown_commits":         1,
			"onelane.gormlock.fence_refusals":          1,
			"onelane.gormlock.stale_writes":            2,
			"onelane.gormlock.retries":                 2,
			"onelane.gormlock.seals_met":               1,
			"onelane.gormlock.wait.duration granted":   7,
			"onelane.gormlock.wait.duration taken":     1,
			"onelane.gormlock.wait.duration sealed":    1,
			"onelane.gormlock.wait.duration cancelled": 1,
			"onelane.gormlock.wait.duration failed":    1,
		}
		if !maps.Equal(got, expected) {
			t.Errorf("got  %v\nwant %v", got, expected)
		}
	})
}

// TestTelemetry_Span: the wait for a guard's locks has a span of its own, inside a trace only.
func TestTelemetry_Span(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		spans := tracetest.NewInMemoryExporter()
		tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
		ok(t, "Use", db.Use(gormlock.New(locker(t, backendtest.Memory(), core.WithTelemetry(nil, tracers)))))
		put(t, db, 42, 10)
		guards := func() (all []tracetest.SpanStub) {
			return slices.DeleteFunc(spans.GetSpans(), func(s tracetest.SpanStub) bool { return s.Name != "gormlock.guard" })
		}
		ok(t, "outside", take(db.Scopes(gormlock.Guard("k")), 42))
		if n := len(guards()); n != 0 {
			t.Fatalf("%d spans outside of a trace", n)
		}
		ctx, request := tracers.Tracer("test").Start(t.Context(), "request")
		ok(t, "inside", take(db.WithContext(ctx).Scopes(gormlock.Guard("k")), 42))
		request.End()
		all := guards()
		if len(all) != 1 || all[0].Parent.SpanID() != request.SpanContext().SpanID() {
			t.Fatalf("spans %+v, want one below the request", all)
		}
		attributes := make(map[string]string)
		for _, a := range all[0].Attributes {
			attributes[string(a.Key)] = fmt.Sprint(a.Value.AsInterface())
		}
		if attributes["onelane.outcome"] != "granted" || attributes["onelane.keys"] != "[k]" {
			t.Errorf("attributes %v", attributes)
		}
	})
}
