package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// metrics is all that it takes to have the kit's metrics in Prometheus: pass provider to
// core.WithTelemetry, and serve handler at /metrics. The counters of the adapters go the same way.
type metrics struct {
	provider *metric.MeterProvider
	handler  http.Handler
	waits    *waits // for the page, which shows them live
}

func newMetrics() (*metrics, error) {
	registry := prom.NewRegistry()
	exporter, err := prometheus.New(prometheus.WithRegisterer(registry))
	if err != nil {
		return nil, fmt.Errorf("cannot make the metrics: %w", err)
	}
	w := &waits{reader: metric.NewManualReader()}
	return &metrics{
		provider: metric.NewMeterProvider(metric.WithReader(exporter), metric.WithReader(w.reader)),
		handler:  promhttp.HandlerFor(registry, promhttp.HandlerOpts{}),
		waits:    w,
	}, nil
}

func (m *metrics) close() { _ = m.provider.Shutdown(context.Background()) }

// waits reads how long buyers waited for the lock, since the sale began.
type waits struct {
	reader *metric.ManualReader

	mu     sync.Mutex
	before []uint64 // the buckets when the sale began
}

// waitState is what the page shows of the waits, in milliseconds. A value beyond the largest bucket
// is -1.
type waitState struct {
	Locks uint64  `json:"locks"`
	P50   float64 `json:"p50_ms"`
	P99   float64 `json:"p99_ms"`
}

// reset begins anew.
func (w *waits) reset(ctx context.Context) {
	_, counts, _ := w.read(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before = counts
}

func (w *waits) state(ctx context.Context) waitState {
	bounds, counts, err := w.read(ctx)
	if err != nil {
		return waitState{}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, n := range w.before {
		counts[i] -= n
	}
	var s waitState
	for _, n := range counts {
		s.Locks += n
	}
	s.P50, s.P99 = quantile(bounds, counts, s.Locks, 0.50), quantile(bounds, counts, s.Locks, 0.99)
	return s
}

// class tells the locks on the stock from the claims of the requests.
func class(key string) string {
	class, _, _ := strings.Cut(key, ":")
	return class
}

// read adds up the buckets of the locks on the stock that were granted.
func (w *waits) read(ctx context.Context) (bounds []float64, counts []uint64, err error) {
	var all metricdata.ResourceMetrics
	if err := w.reader.Collect(ctx, &all); err != nil {
		return nil, nil, err
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			histogram, ok := m.Data.(metricdata.Histogram[float64])
			if !ok || m.Name != "onelane.acquire.duration" {
				continue
			}
			for _, point := range histogram.DataPoints {
				outcome, _ := point.Attributes.Value("onelane.outcome")
				class, _ := point.Attributes.Value("onelane.class")
				if outcome.AsString() != "granted" || class.AsString() != "stock" {
					continue
				}
				if counts == nil {
					bounds, counts = point.Bounds, make([]uint64, len(point.BucketCounts))
				}
				for i, n := range point.BucketCounts {
					counts[i] += n
				}
			}
		}
	}
	if counts == nil {
		return nil, nil, errors.New("nothing was measured yet")
	}
	return bounds, counts, nil
}

// quantile of a histogram, by interpolation as in Prometheus, in milliseconds.
func quantile(bounds []float64, counts []uint64, total uint64, q float64) float64 {
	rank, seen, from := q*float64(total), 0.0, 0.0
	for i, n := range counts {
		switch {
		case total == 0:
			return 0
		case i == len(bounds):
			return -1
		case seen+float64(n) >= rank && n > 0:
			return 1000 * (from + (bounds[i]-from)*(rank-seen)/float64(n))
		}
		seen, from = seen+float64(n), bounds[i]
	}
	return 0
}
