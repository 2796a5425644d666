package rueidisdriver_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/goleak"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/check"
)

var ok, want, eventually = check.OK, check.Want, check.Eventually

func TestMain(m *testing.M) { goleak.VerifyTestMain(settling{m}) }

// settling gives goroutines that end by themselves the time for it: a dial to a dead node ends at its
// time-out.
type settling struct{ *testing.M }

func (m settling) Run() int {
	code := m.M.Run()
	for end := time.Now().Add(2 * rueidis.DefaultDialTimeout); goleak.Find() != nil && time.Now().Before(end); {
	}
	return code
}

// client returns a client that is closed with the test.
func client(t testing.TB, o rueidis.ClientOption) rueidis.Client {
	t.Helper()
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

// open returns a backend that is closed with the test.
func open(t testing.TB, o core.Opener) core.Backend {
	t.Helper()
	b, err := o.Open(core.Environment{TTL: time.Minute, Logger: slog.New(slog.DiscardHandler), Meter: noop.Meter{}})
	ok(t, "Open", err)
	t.Cleanup(func() { ok(t, "Close", b.Close()) })
	return b
}

// locker returns a Locker that is closed with the test.
func locker(t testing.TB, o core.Opener, opts ...core.Option) *core.Locker {
	t.Helper()
	l, err := core.New(o, append([]core.Option{core.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
	ok(t, "New", err)
	t.Cleanup(func() { ok(t, "Close", l.Close()) })
	return l
}

func acquire(t testing.TB, l *core.Locker, key string, opts ...core.AcquireOption) *core.Lock {
	t.Helper()
	k, err := l.Acquire(t.Context(), key, opts...)
	ok(t, "Acquire", err)
	return k
}
