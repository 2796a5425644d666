package rueidisdriver_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/core/redisbackend/rueidisdriver"
	"github.com/onelane/onelane/internal/check"
)

var (
	ok         = check.OK
	want       = check.Want
	eventually = check.Eventually
	locker     = check.Locker
	acquire    = check.Acquire
)

func TestMain(m *testing.M) { check.Main(m) }

// client returns a client that is closed with the test.
func client(t testing.TB, o rueidis.ClientOption) rueidis.Client {
	t.Helper()
	o.ConnWriteTimeout = 2 * time.Minute // rueidis does not notice by itself that a connection is silent
	c, err := rueidis.NewClient(o)
	ok(t, "NewClient", err)
	t.Cleanup(c.Close)
	return c
}

// single returns a client of one Redis.
func single(t testing.TB, addr string) rueidis.Client {
	t.Helper()
	return client(t, rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
}

// patient is the backend on one Redis, or on a Redis Cluster, that a busy machine does not make unavailable.
func patient(c rueidis.Client) redisbackend.Config {
	b := rueidisdriver.New(c)
	b.NodeTimeout = 5 * time.Second
	return b
}

// open returns a backend that is closed with the test.
func open(t testing.TB, o core.Opener) core.Backend {
	t.Helper()
	b, err := o.Open(core.Environment{TTL: time.Minute, Logger: slog.New(slog.DiscardHandler), Meter: noop.Meter{}})
	ok(t, "Open", err)
	t.Cleanup(func() { ok(t, "Close", b.Close()) })
	return b
}
