package core_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-redsync/redsync/v4"
	redigopool "github.com/go-redsync/redsync/v4/redis/redigo"
	"github.com/gomodule/redigo/redis"
	goredis "github.com/redis/go-redis/v9"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// A service makes one Locker when it starts, with the limits of its locks, and closes it when it ends.
func ExampleNew() {
	locker, err := core.New(testutil.Memory(), // core.Clients(redisClient) in a service
		core.WithInstance("shop-1"),       // says who holds a lock
		core.WithTTL(5*time.Second),       // for so long a crashed holder blocks the others
		core.WithWait(2*time.Second),      // and nobody waits longer than this
		core.WithMaxHold(time.Minute),     // a holder that hangs loses its lock
		core.WithNodeTimeout(time.Second)) // for one answer of Redis
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	lock, err := locker.Acquire(context.Background(), "stock:42")
	if err != nil {
		panic(err)
	}
	fmt.Println(strings.HasPrefix(lock.Owner(), "shop-1/"))

	_, err = core.New(testutil.Memory(), core.WithTTL(0))
	fmt.Println(err)
	// Output:
	// true
	// core: TTL 0s: it must be at least 10ms and at most 87600h0m0s
}

func ExampleClients() {
	server, err := miniredis.Run() // a Redis inside of this process
	if err != nil {
		panic(err)
	}
	defer server.Close()
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr()})
	defer client.Close()

	locker, err := core.New(core.Clients(client))
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	lock, err := locker.Acquire(context.Background(), "stock:42")
	if err != nil {
		panic(err)
	}
	owner, err := client.Get(context.Background(), "onelane:{stock:42}").Result() // as redis-cli shows it
	fmt.Println(owner == lock.Owner(), err)
	// Output: true <nil>
}

// Three independent masters, of which one may be away.
func ExampleClients_quorum() {
	var clients []goredis.UniversalClient
	for i := range 3 {
		server, err := miniredis.Run()
		if err != nil {
			panic(err)
		}
		defer server.Close()
		client := goredis.NewClient(&goredis.Options{Addr: server.Addr()})
		defer client.Close()
		clients = append(clients, client)
		if i == 2 {
			server.Close()
		}
	}
	locker, err := core.New(core.Clients(clients...))
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	err = locker.Do(context.Background(), "stock:42", func(context.Context) error {
		fmt.Println("two of three agree")
		return nil
	})
	fmt.Println(err)
	// Output:
	// two of three agree
	// <nil>
}

// A service that talks to Redis by another client keeps it: here redigo.
func ExamplePools() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	pool := &redis.Pool{Dial: func() (redis.Conn, error) { return redis.Dial("tcp", server.Addr()) }}
	defer pool.Close()

	locker, err := core.New(core.Pools(redigopool.NewPool(pool)))
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	lock, err := locker.Acquire(context.Background(), "stock:42")
	if err != nil {
		panic(err)
	}
	fmt.Println(lock.Release(context.Background()))
	// Output: <nil>
}

// With no prefix a service that has moved to onelane, and one that still uses redsync, exclude each other.
func ExampleWithPrefix() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	redigo := &redis.Pool{Dial: func() (redis.Conn, error) { return redis.Dial("tcp", server.Addr()) }}
	defer redigo.Close()
	pool := redigopool.NewPool(redigo)

	mutex := redsync.New(pool).NewMutex("stock:42")
	if err := mutex.Lock(); err != nil {
		panic(err)
	}
	locker, err := core.New(core.Pools(pool), core.WithPrefix(""))
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	_, err = locker.TryAcquire(context.Background(), "stock:42")
	fmt.Println(errors.Is(err, core.ErrTaken))
	// Output: true
}

// Many callers at once, each with another key: their calls travel together.
func ExamplePipelined() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr()})
	defer client.Close()
	locker, err := core.New(core.Clients(client), core.Pipelined())
	if err != nil {
		panic(err)
	}
	defer locker.Close()

	var orders sync.WaitGroup
	for i := range 100 {
		orders.Go(func() {
			err := locker.Do(context.Background(), fmt.Sprint("order:", i), func(context.Context) error { return nil })
			if err != nil {
				panic(err)
			}
		})
	}
	orders.Wait()
	fmt.Println(len(server.Keys()), "left")
	// Output: 100 left
}

// The adapters use the default Locker where none is named.
func ExampleSetDefault() {
	locker, err := core.New(testutil.Memory()) // core.Clients(redisClient) in a service
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	core.SetDefault(locker)
	defer core.SetDefault(nil)
	fmt.Println(core.Default() == locker)
	// Output: true
}

// A lock that is lost is always logged.
func ExampleWithLogger() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.LevelKey || a.Key == slog.MessageKey || a.Key == "key" || a.Key == "reason" {
			return a
		}
		return slog.Attr{} // times and tokens, which no test can know
	}}))
	locker, err := core.New(testutil.Memory(), core.WithLogger(logger))
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	lock, err := locker.Acquire(context.Background(), "stock:42", core.WithMaxHold(20*time.Millisecond), core.WithTTL(20*time.Millisecond))
	if err != nil {
		panic(err)
	}
	<-lock.Context().Done()
	fmt.Println(locker.Logger() == logger)
	// Output:
	// level=WARN msg="core: lock lost" key=stock:42 reason=max_hold
	// true
}

// Metrics go where the service's other metrics go: mostly to otel.GetMeterProvider, and then nothing is to be said.
func ExampleWithMeterProvider() {
	reader := sdkmetric.NewManualReader() // a service has an exporter, for Prometheus for instance
	locker, err := core.New(testutil.Memory(), core.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
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
	fmt.Println(locker.MeterProvider() != nil) // for what is built on a Locker, and reports to the same place
	// Output:
	// onelane.locks.held 1
	// true
}

// How long a request waited for a lock is a span in its trace.
func ExampleWithTracerProvider() {
	spans := tracetest.NewSpanRecorder() // a service has an exporter
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	locker, err := core.New(testutil.Memory(), core.WithTracerProvider(provider))
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
	// Output:
	// onelane.acquire
	// POST /orders
}
