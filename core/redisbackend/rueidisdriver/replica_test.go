package rueidisdriver_test

import (
	"context"
	"crypto/tls"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// While the name still leads to a demoted master, a connection that is replaced leads there again.
// So it is not replaced at every call.
func TestFault_ReplicaCostsFewConnections(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	var dials atomic.Int64
	c := client(t, rueidis.ClientOption{InitAddress: []string{node.Addr()}, DisableCache: true,
		DialCtxFn: func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			dials.Add(1)
			return d.DialContext(ctx, "tcp", addr)
		}})
	l := locker(t, patient(c), core.WithOutageWait(0))
	ok(t, "Release", acquire(t, l, "warm").Release(t.Context()))
	ok(t, "REPLICAOF", node.Client().ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
	time.Sleep(300 * time.Millisecond) // the connections are not new
	before, began := dials.Load(), time.Now()
	for range 100 {
		_, err := l.TryAcquire(t.Context(), "k")
		want(t, "TryAcquire", err, core.ErrUnavailable)
	}
	most := 2 + 2*int64(time.Since(began)/(250*time.Millisecond))
	if n := dials.Load() - before; n > most {
		t.Errorf("100 calls made %d connections, want at most %d", n, most)
	}
}
