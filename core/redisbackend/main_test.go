package redisbackend_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/internal/check"
)

var (
	ok         = check.OK
	want       = check.Want
	wantEnded  = check.Ended
	eventually = check.Eventually
	locker     = check.Locker
	acquire    = check.Acquire
	long, race = check.Long, check.Race
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(childVar + "HOLD"); addr != "" {
		hold(addr)
	}
	if addr := os.Getenv(childVar + "EVERY"); addr != "" {
		runJob(addr)
	}
	check.Parallel(4)
	logging.Disable() // go-redis reports faults that tests make
	check.Main(m)
}

// open returns a backend that is closed with the test.
func open(t testing.TB, o core.Opener) core.Backend {
	t.Helper()
	return openWith(t, o, slog.New(slog.DiscardHandler))
}

func openWith(t testing.TB, o core.Opener, logger *slog.Logger) core.Backend {
	t.Helper()
	b, err := o.Open(core.Environment{TTL: 10 * time.Second, Logger: logger, Meter: noop.Meter{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ok(t, "Close", b.Close()) })
	return b
}

// one is the backend on one Redis, or on a Redis Cluster, that a busy machine does not make unavailable.
func one(client redis.UniversalClient) redisbackend.Config {
	c := redisbackend.New(client)
	c.NodeTimeout = 5 * time.Second
	return c
}

// pooled is the same on one redsync pool.
func pooled(pool redsyncredis.Pool) redisbackend.Config {
	c := redisbackend.Pools(pool)
	c.NodeTimeout = 5 * time.Second
	return c
}

// newClient returns a client that is closed with the test.
func newClient(t testing.TB, o *redis.Options) *redis.Client {
	t.Helper()
	client := redis.NewClient(o)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func token(t testing.TB, k *core.Lock) uint64 {
	t.Helper()
	n, err := k.Token(t.Context())
	ok(t, "Token", err)
	return n
}

func status(t testing.TB, l *core.Locker, key string) core.Status {
	t.Helper()
	var st core.State
	var err error
	eventually(t, "an answer", func() bool { // a busy machine may be too late for the first one
		st, err = l.Inspect(context.Background(), key)
		return !errors.Is(err, core.ErrUnavailable)
	})
	ok(t, "Inspect", err)
	return st.Status
}
