package zkbackend_test

import (
	"errors"
	"fmt"
	"slices"
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
	return zkbackend.New([]string{server}, zkbackend.WithRoot("/"+root), zkbackend.WithTimeout(10*time.Second)), nil
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
	ttl := 3 * time.Second
	for !renews(t, ttl) { // on a busy machine the lease may end before it is renewed
		if ttl *= 2; ttl > 12*time.Second {
			t.Fatal("the lock is lost, whatever its TTL")
		}
	}
}

// renews reports whether a lock with a TTL was held over six renewals.
func renews(t *testing.T, ttl time.Duration) bool {
	t.Helper()
	node := shared(t)
	opts := []core.Option{core.WithTTL(ttl), core.WithOutageWait(patience)}
	l, other := locker(t, at(t, node.Addr()), opts...), locker(t, at(t, node.Addr()), opts...)
	key := fmt.Sprint("k", ttl)
	k, err := l.Acquire(t.Context(), key)
	ok(t, "Acquire", err)
	c, paths := client(t, node.Addr()), keyNodes(t, node.Addr(), rootOf(t))
	path := paths[slices.IndexFunc(paths, func(path string) bool { return strings.Contains(path, key) })]
	eventually(t, "six renewals", func() bool {
		_, err := other.TryAcquire(t.Context(), key)
		if err == nil && time.Now().Before(k.Deadline()) {
			t.Fatal("two holders")
		}
		if k.Err() != nil {
			return true
		}
		want(t, "TryAcquire", err, core.ErrTaken)
		_, stat, err := c.Get(path)
		ok(t, "Get", err)
		return stat.Version > 6
	})
	if err := k.Release(t.Context()); !errors.Is(err, core.ErrLost) {
		ok(t, "Release", err)
		return true
	}
	return false
}
