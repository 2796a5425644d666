package redisbackend_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/goleak"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/internal/paralleltest"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(childVar + "HOLD"); addr != "" {
		hold(addr)
	}
	paralleltest.Run(4)
	logging.Disable() // go-redis reports faults that tests make
	goleak.VerifyTestMain(settling{m})
}

// settling gives goroutines that end by themselves the time for it: a dial to a dead node ends at its
// time-out.
type settling struct{ *testing.M }

func (m settling) Run() int {
	code := m.M.Run()
	for end := time.Now().Add(2 * dialTimeout); goleak.Find() != nil && time.Now().Before(end); {
	}
	return code
}

// dialTimeout is go-redis's default.
const dialTimeout = 5 * time.Second

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

// locker returns a Locker that is closed with the test.
func locker(t testing.TB, o core.Opener, opts ...core.Option) *core.Locker {
	t.Helper()
	l, err := core.New(o, append([]core.Option{core.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return l
}

// one is the backend on one client.
func one(client redis.UniversalClient) redisbackend.Config { return redisbackend.New(client) }

// newClient returns a client that is closed with the test.
func newClient(t testing.TB, o *redis.Options) *redis.Client {
	t.Helper()
	client := redis.NewClient(o)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func acquire(t testing.TB, l *core.Locker, key string, opts ...core.AcquireOption) *core.Lock {
	t.Helper()
	k, err := l.Acquire(t.Context(), key, opts...)
	if err != nil {
		t.Fatalf("Acquire(%q): %v", key, err)
	}
	return k
}

func token(t testing.TB, k *core.Lock) uint64 {
	t.Helper()
	n, err := k.Token(t.Context())
	ok(t, "Token", err)
	return n
}

func want(t testing.TB, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("%s: got %v, want an error that matches %v", what, err, target)
	}
}

// wantEnded checks that an error is the caller's context's and says nothing about the backend.
func wantEnded(t testing.TB, what string, err, over error) {
	t.Helper()
	if !errors.Is(err, over) {
		t.Errorf("%s: got %v, want an error that matches %v", what, err, over)
	}
	for _, other := range []error{core.ErrUnavailable, core.ErrLost, core.ErrSealed, core.ErrReleased} {
		if errors.Is(err, other) {
			t.Errorf("%s: %v matches %v", what, err, other)
		}
	}
}

func ok(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func status(t testing.TB, l *core.Locker, key string) core.Status {
	t.Helper()
	st, err := l.Inspect(context.Background(), key)
	ok(t, "Inspect", err)
	return st.Status
}

// eventually polls for what happens in the background. It fails after a minute.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: it did not happen within a minute", what)
		}
	}
}
