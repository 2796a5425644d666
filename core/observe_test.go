package core_test

import (
	"log/slog"
	"testing"

	"go.opentelemetry.io/otel"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

func TestTelemetryIsConfiguredAtTheLocker(t *testing.T) {
	t.Parallel()
	logger, meters, tracers := slog.New(slog.DiscardHandler), sdkmetric.NewMeterProvider(), sdktrace.NewTracerProvider()
	l := locker(t, testutil.Memory(), core.WithLogger(logger), core.WithMeterProvider(meters), core.WithTracerProvider(tracers),
		core.WithLogger(nil), core.WithMeterProvider(nil), core.WithTracerProvider(nil))
	if l.Logger() != logger || l.MeterProvider() != meters || l.TracerProvider() != tracers {
		t.Error("the locker does not return what it was given")
	}
	l = locker(t, testutil.Memory())
	if l.MeterProvider() != otel.GetMeterProvider() || l.TracerProvider() != otel.GetTracerProvider() {
		t.Error("by default telemetry does not go to the global providers")
	}
}
