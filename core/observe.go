package core

import (
	"log/slog"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// MeterProvider returns where l's metrics go, so that what is built on l reports to the same place. See [WithMeterProvider].
func (l *Locker) MeterProvider() metric.MeterProvider { return l.meters }

// TracerProvider returns where l's spans go, so that what is built on l reports to the same place. See [WithTracerProvider].
func (l *Locker) TracerProvider() trace.TracerProvider { return l.tracers }

// Logger returns where l reports what went wrong, so that what is built on l reports to the same place. See [WithLogger].
func (l *Locker) Logger() *slog.Logger { return l.logger }
