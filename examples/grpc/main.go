// Command grpc is one order service on two transports, Gin and gRPC, with one Locker. Clients click
// twice and retry, and drivers grab the same orders over both transports.
//
//	go run ./examples/grpc              # embedded Redis: nothing to install
//	go run ./examples/grpc -unguarded   # the same service without the kit's lines
//
// It exits with 1 when somebody got two orders, or an order two drivers, and with 2 when it could
// not run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/idempotency"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

type options struct {
	customers, orders int
	redis             string
	unguarded         bool
}

// run is main with everything it touches passed in; it returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	f := flag.NewFlagSet("grpc", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.IntVar(&o.customers, "customers", 100, "how many people order one thing each, from 1 to 1000")
	f.IntVar(&o.orders, "orders", 50, "how many of the orders are grabbed, by 8 drivers each; at most as many as customers")
	f.StringVar(&o.redis, "redis", "", "`host:port` of Redis; embedded by default")
	f.BoolVar(&o.unguarded, "unguarded", false, "run the service without the kit's lines")
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case f.NArg() > 0 || o.customers < 1 || o.customers > 1000 || o.orders < 0 || o.orders > o.customers:
		fmt.Fprintln(stderr, "grpc: -customers must be from 1 to 1000, -orders from 0 to that, and there are no other arguments; see -h")
		return 2
	}
	r, err := play(ctx, o)
	if err != nil {
		fmt.Fprintln(stderr, "grpc:", strings.ReplaceAll(err.Error(), "\n", "; "))
		return 2
	}
	r.print(stdout)
	if r.broken() {
		fmt.Fprintln(stdout, "BROKEN: somebody got two orders, or an order two drivers.")
		return 1
	}
	fmt.Fprintln(stdout, "OK: one order for each customer, and one driver for each order, over both transports.")
	return 0
}

// play starts Redis and both servers, and lets the clients loose.
func play(ctx context.Context, o options) (r result, err error) {
	var stops []func()
	defer func() {
		for _, stop := range slices.Backward(stops) {
			stop()
		}
	}()
	if o.redis == "" {
		m, err := miniredis.Run()
		if err != nil {
			return r, err
		}
		stops = append(stops, m.Close)
		o.redis = m.Addr()
	}
	client := redis.NewClient(&redis.Options{Addr: o.redis})
	stops = append(stops, func() { _ = client.Close() })
	if err := client.Ping(ctx).Err(); err != nil {
		return r, fmt.Errorf("the Redis at %s does not answer: %w", o.redis, err)
	}
	locker, err := core.New(redisbackend.New(client))
	if err != nil {
		return r, err
	}
	stops = append(stops, func() { _ = locker.Close() })
	// After the servers stopped, and before the locks: answers are still to be recorded.
	stops = append(stops, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = idempotency.Shutdown(ctx)
	})
	core.SetDefault(locker)

	b := &book{taken: make(map[string]int)}
	onHTTP, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return r, err
	}
	web := &http.Server{Handler: httpServer(b, o.unguarded), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = web.Serve(onHTTP) }()
	stops = append(stops, func() { _ = web.Close() })
	onGRPC, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return r, err
	}
	server, err := grpcServer(b, o.unguarded)
	if err != nil {
		return r, err
	}
	go func() { _ = server.Serve(onGRPC) }()
	stops = append(stops, server.Stop)

	c, err := newClients(onHTTP.Addr().String(), onGRPC.Addr().String())
	if err != nil {
		return r, err
	}
	stops = append(stops, c.close)
	return c.crowd(ctx, o, b), nil
}
