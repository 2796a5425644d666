package zkbackend_test

import (
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/zkbackend"
	"github.com/onelane/onelane/internal/pausetest"
)

// atAddress is the backend at an address and, after a slash, a root; see TestMain.
func atAddress(address string) (core.Opener, error) {
	server, root, _ := strings.Cut(address, "/")
	return zkbackend.New([]string{server}, zkbackend.WithRoot("/"+root)), nil
}

// A process that stands still for longer than its lease loses its lock, and does no harm when it goes
// on.
func TestHolder_Paused(t *testing.T) {
	t.Parallel()
	node := shared(t)
	pausetest.Run(t, node.Addr()+rootOf(t), at(t, node.Addr()))
}

// A lock that is held for longer than its TTL is renewed, and nobody else gets it.
func TestHolder_Renews(t *testing.T) {
	t.Parallel()
	node := shared(t)
	opts := []core.Option{core.WithTTL(3 * time.Second), core.WithOutageWait(patience)}
	l, other := locker(t, at(t, node.Addr()), opts...), locker(t, at(t, node.Addr()), opts...)
	k, err := l.Acquire(t.Context(), "k")
	ok(t, "Acquire", err)
	c, path := client(t, node.Addr()), keyNodes(t, node.Addr(), rootOf(t))[0]
	eventually(t, "six renewals", func() bool {
		_, err := other.TryAcquire(t.Context(), "k")
		want(t, "TryAcquire", err, core.ErrTaken)
		_, stat, err := c.Get(path)
		ok(t, "Get", err)
		return stat.Version > 6
	})
	ok(t, "the lock", k.Err())
	ok(t, "Release", k.Release(t.Context()))
}
