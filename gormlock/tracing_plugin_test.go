package gormlock_test

import (
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// TestTelemetry_TracingPlugin registers what gorm.io/plugin/opentelemetry/tracing registers. It
// puts its span into the statement's context. GORM runs After("gorm:update") after COMMIT.
func TestTelemetry_TracingPlugin(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		spans := tracetest.NewInMemoryExporter()
		tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)).Tracer("test")
		ok(t, "Use", db.Use(gormlock.New(locker(t, backendtest.Memory()))))
		put(t, db, 42, 10)
		before := func(tx *gorm.DB) { tx.Statement.Context, _ = tracer.Start(tx.Statement.Context, "gorm.Update") }
		after := func(tx *gorm.DB) {
			if err := tx.Statement.Context.Err(); err != nil {
				t.Errorf("the context after COMMIT: %v", err)
			}
			trace.SpanFromContext(tx.Statement.Context).End()
		}
		ok(t, "Register", db.Callback().Update().Before("gorm:update").Register("otel:before:update", before))
		ok(t, "Register", db.Callback().Update().After("gorm:update").Register("otel:after:update", after))
		for name, scope := range map[string]func(*gorm.DB) *gorm.DB{
			"no guard": func(db *gorm.DB) *gorm.DB { return db },
			"Guard":    gormlock.Guard("k"),
		} {
			spans.Reset()
			ctx, request := tracer.Start(t.Context(), "request")
			ok(t, name, take(db.WithContext(ctx).Scopes(scope), 42))
			if !request.IsRecording() {
				t.Errorf("%s: the statement ended the span of the request", name)
			}
			if all := spans.GetSpans(); len(all) != 1 || all[0].Name != "gorm.Update" {
				t.Errorf("%s: spans %v, want gorm.Update", name, all.Snapshots())
			}
			request.End()
		}
	})
}
