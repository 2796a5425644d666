package etcdbackend_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/etcdbackend"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/internal/ownertext"
	"github.com/onelane/onelane/internal/pausetest"
)

var ok, want, eventually = check.OK, check.Want, check.Eventually

func TestMain(m *testing.M) {
	if pausetest.Child(atAddress) {
		return
	}
	check.Parallel(4)
	check.Main(m)
}

// open returns a backend on a client, as a process has it. It is closed with the test. Its time-out is
// long: a busy machine may stand still for longer than a quarter of the default.
func open(t testing.TB, client *clientv3.Client, opts ...etcdbackend.Option) core.Sealer {
	t.Helper()
	opts = append([]etcdbackend.Option{etcdbackend.WithTimeout(20 * time.Second)}, opts...)
	b, err := etcdbackend.New(client, opts...).Open(core.Environment{
		TTL: time.Minute, Logger: slog.New(slog.DiscardHandler), Meter: noop.Meter{},
	})
	ok(t, "Open", err)
	t.Cleanup(func() { ok(t, "Close", b.Close()) })
	return b.(core.Sealer)
}

// locker returns a Locker whose calls wait long for a busy machine.
func locker(t testing.TB, client *clientv3.Client, opts ...core.Option) *core.Locker {
	t.Helper()
	return check.Locker(t, etcdbackend.New(client, etcdbackend.WithTimeout(20*time.Second)), opts...)
}

// hasty returns a Locker whose calls give up a member that hangs after half a second.
func hasty(t testing.TB, client *clientv3.Client, opts ...core.Option) *core.Locker {
	t.Helper()
	return check.Locker(t, etcdbackend.New(client, etcdbackend.WithTimeout(2*time.Second)), opts...)
}

func request(key string, ttl, orphan time.Duration) core.Request {
	return core.Request{Key: key, Owner: ownertext.New("test", "", orphan), TTL: ttl, Orphan: orphan}
}

// acquire gets the lock. On a busy machine a short lease may end before the answer comes. Then another
// owner asks again.
func acquire(t testing.TB, b core.Backend, r core.Request) (g core.Grant) {
	t.Helper()
	eventually(t, "Acquire", func() bool {
		var err error
		g, err = b.Acquire(t.Context(), r)
		r.Owner = request(r.Key, r.TTL, r.Orphan).Owner
		return err == nil
	})
	return g
}

func status(b core.Backend, key string) core.Status {
	st, err := b.Inspect(context.Background(), key)
	if err != nil {
		return -1
	}
	return st.Status
}

// keys counts the keys in etcd that begin with a text.
func keys(t testing.TB, client *clientv3.Client, prefix string) int64 {
	t.Helper()
	resp, err := client.Get(context.Background(), prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	ok(t, "Get", err)
	return resp.Count
}
