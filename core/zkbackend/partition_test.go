package zkbackend_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/zkbackend"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

// onServer is the backend that reaches one server of an ensemble alone.
func onServer(n *testutil.ZooKeeperNode) core.Opener {
	return polled{zkbackend.New([]string{n.Addr()}, zkbackend.WithTimeout(time.Second))}
}

// In partitions, a server is cut off from its peers, the leader first and then a follower, and its
// clients still reach it. The clients of the others go on. A key has one holder at a time, and its
// tokens increase.
func partitions(t *testing.T, nodes testutil.ZooKeeperNodes) {
	h := newHistory()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	serverOf := func(id int) int { return id % len(nodes) }
	for id := range clients {
		l := locker(t, onServer(nodes[serverOf(id)]), core.WithTTL(2*time.Second), core.WithToken(),
			core.WithOutageWait(patience))
		all.Go(func() { h.client(t, ctx, id, l) })
	}
	h.progress(t, "at first")
	partition := func(name string, server int) {
		t.Helper()
		healed := holderBehind(t, nodes, server)
		var others []int
		for id := range clients {
			if serverOf(id) != server {
				others = append(others, id)
			}
		}
		h.progressOf(t, name+" is cut off", others...)
		testutil.ZooKeeperNodes{nodes[(server+1)%len(nodes)], nodes[(server+2)%len(nodes)]}.Leader()
		healed()
		h.progress(t, name+" is back")
	}
	partition("the leader", nodes.Leader())
	if check.Long {
		partition("a follower", (nodes.Leader()+1)%len(nodes))
	}
	cancel()
	all.Wait()
	h.check(t)
}

// holderBehind cuts a server off that a holder's client uses. That server grants nothing then, and
// the holder loses its lock before another client gets the key from another server. The function
// healed joins the server again.
func holderBehind(t *testing.T, nodes testutil.ZooKeeperNodes, server int) (healed func()) {
	t.Helper()
	behind := locker(t, onServer(nodes[server]), core.WithTTL(2*time.Second), core.WithOutageWait(0))
	other := locker(t, onServer(nodes[(server+1)%len(nodes)]), core.WithOutageWait(patience))
	var k *core.Lock
	eventually(t, "Acquire", func() (got bool) {
		var err error
		k, err = behind.Acquire(t.Context(), "held", core.WithToken())
		return err == nil
	})
	first, err := k.Token(t.Context())
	ok(t, "Token", err)
	nodes[server].Isolate()
	next, err := other.Acquire(t.Context(), "held", core.WithToken(), core.WithWait(patience))
	ok(t, "Acquire from another server", err)
	want(t, "the first holder's lock", k.Err(), core.ErrLost)
	second, err := next.Token(t.Context())
	if ok(t, "Token", err); second <= first {
		t.Errorf("token %d after %d", second, first)
	}
	_, err = behind.TryAcquire(t.Context(), "another")
	want(t, "TryAcquire from the server that is cut off", err, core.ErrUnavailable)
	return func() {
		nodes[server].Rejoin()
		eventually(t, "the server that was cut off serves again", func() bool {
			_, err = behind.TryAcquire(t.Context(), "held")
			return !isUnavailable(err)
		})
		want(t, "TryAcquire of the other's key", err, core.ErrTaken)
		if err := next.Release(t.Context()); !isUnavailable(err) {
			ok(t, "Release", err)
		}
	}
}
