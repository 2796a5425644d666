package core_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// A service makes one Locker when it starts and closes it when it ends.
func ExampleNew() {
	locker, err := core.New(backendtest.Memory(), // redisbackend.New(redisClient) in a service
		core.WithPrefix("shop:"),      // before every key
		core.WithInstance("shop-1"),   // names the holder
		core.WithTTL(5*time.Second),   // a crashed holder blocks others so long
		core.WithWait(2*time.Second),  // no caller waits longer
		core.WithMaxHold(time.Minute)) // a hung holder loses its lock
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	lock, err := locker.Acquire(context.Background(), "stock:42")
	if err != nil {
		panic(err)
	}
	fmt.Println(strings.HasPrefix(lock.Owner(), "shop-1/"))

	_, err = core.New(backendtest.Memory(), core.WithTTL(0))
	fmt.Println(err)
	// Output:
	// true
	// core: WithTTL: 0s must be between 10ms and 87600h0m0s
}

// The adapters use the default Locker if none is named.
func ExampleSetDefault() {
	locker, err := core.New(backendtest.Memory()) // redisbackend.New(redisClient) in a service
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	core.SetDefault(locker)
	defer core.SetDefault(nil)
	fmt.Println(core.Default() == locker)
	// Output: true
}

// lines is a Writer that passes each line on.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}

// A lock that is lost is always logged.
func ExampleWithLogger() {
	logged := make(lines, 1)
	logger := slog.New(slog.NewTextHandler(logged, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.LevelKey || a.Key == slog.MessageKey || a.Key == "key" || a.Key == "reason" {
			return a
		}
		return slog.Attr{} // times and owners differ from run to run
	}}))
	locker, err := core.New(backendtest.Memory(), core.WithLogger(logger))
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	lock, err := locker.Acquire(context.Background(), "stock:42", core.WithMaxHold(0), core.WithTTL(20*time.Millisecond))
	if err != nil {
		panic(err)
	}
	<-lock.Context().Done()
	fmt.Println(<-logged)
	locker.Logger().Info("shop: the same logger")
	fmt.Print(<-logged)
	// Output:
	// level=WARN msg="core: lock lost; another holder may run beside work that ignores its context; look at the reason" reason=ttl key=stock:42
	//
	// level=INFO msg="shop: the same logger"
}

// A class of keys becomes a label of the metrics. A key would be too many.
func ExampleWithClass() {
	class := func(key string) string {
		class, _, _ := strings.Cut(key, ":")
		return class
	}
	reader := sdkmetric.NewManualReader()
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	locker, err := core.New(backendtest.Memory(), core.WithClass(class), core.WithTelemetry(meters, nil))
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	for _, key := range []string{"stock:42", "stock:43", "order:7"} {
		if err := locker.Do(context.Background(), key, func(context.Context) error { return nil }); err != nil {
			panic(err)
		}
	}
	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		panic(err)
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if m.Name != "onelane.acquire.duration" {
			continue
		}
		for _, p := range m.Data.(metricdata.Histogram[float64]).DataPoints {
			class, _ := p.Attributes.Value("onelane.class")
			fmt.Println(class.AsString(), p.Count)
		}
	}
	// Unordered output:
	// order 1
	// stock 2
}

// A readiness check of a service.
func ExampleLocker_Ping() {
	locker, err := core.New(backendtest.Memory())
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	http.HandleFunc("/ready", func(w http.ResponseWriter, r *http.Request) {
		if err := locker.Ping(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	w := httptest.NewRecorder()
	http.DefaultServeMux.ServeHTTP(w, httptest.NewRequest("GET", "/ready", nil))
	fmt.Println(w.Code)
	// Output: 200
}

// By default metrics go to otel.GetMeterProvider.
func ExampleWithTelemetry_metrics() {
	reader := sdkmetric.NewManualReader() // a service has an exporter, for Prometheus for instance
	locker, err := core.New(backendtest.Memory(), core.WithTelemetry(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), nil))
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	if _, err := locker.Acquire(context.Background(), "stock:42"); err != nil {
		panic(err)
	}
	var told metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &told); err != nil {
		panic(err)
	}
	for _, m := range told.ScopeMetrics[0].Metrics {
		if held, ok := m.Data.(metricdata.Sum[int64]); ok {
			fmt.Println(m.Name, held.DataPoints[0].Value)
		}
	}
	fmt.Println(locker.MeterProvider() != nil) // packages built on a Locker report to the same place
	// Output:
	// onelane.locks.held 1
	// true
}

// How long a request waited for a lock is a span in its trace.
func ExampleWithTelemetry_spans() {
	spans := tracetest.NewSpanRecorder() // a service has an exporter
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	locker, err := core.New(backendtest.Memory(), core.WithTelemetry(nil, provider))
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	ctx, request := locker.TracerProvider().Tracer("shop").Start(context.Background(), "POST /orders")
	if _, err := locker.Acquire(ctx, "stock:42"); err != nil {
		panic(err)
	}
	request.End()
	for _, s := range spans.Ended() {
		fmt.Println(s.Name())
	}
	fmt.Println(locker.Traces(context.Background())) // outside of a trace, too: the provider was chosen
	// Output:
	// onelane.acquire
	// POST /orders
	// true
}
