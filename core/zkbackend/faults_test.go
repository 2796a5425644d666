package zkbackend_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/zkbackend"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

// In faults, four clients, each with its own session, go on through whatever happens to a minority,
// and after all servers were down. A key has one holder at a time, and its tokens increase.
func faults(t *testing.T, nodes testutil.ZooKeeperNodes) {
	proxies := make([]*proxy, len(nodes))
	addrs := make([]string, len(nodes))
	for i, n := range nodes {
		proxies[i] = newProxy(t, n.Addr())
		addrs[i] = proxies[i].addr()
	}
	h := newHistory()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for id := range clients {
		l := locker(t, polled{zkbackend.New(addrs, zkbackend.WithTimeout(time.Second))},
			core.WithTTL(2*time.Second), core.WithToken(), core.WithOutageWait(patience))
		all.Go(func() { h.client(t, ctx, id, l) })
	}
	h.progress(t, "at first")

	leader := nodes.Leader()
	nodes[leader].Kill()
	h.progress(t, "the leader was killed")
	nodes[leader].Restart()
	h.progress(t, "it is back")

	if check.Long {
		leader = nodes.Leader()
		nodes[leader].Stop()
		h.progress(t, "the leader hangs")
		nodes[leader].Cont()
		h.progress(t, "it goes on")
	}

	// The leader does not hear from the others, which elect another one meanwhile. When it goes on,
	// it does not know.
	leader = nodes.Leader()
	others := []*testutil.ZooKeeperNode{nodes[(leader+1)%len(nodes)], nodes[(leader+2)%len(nodes)]}
	for _, n := range others {
		n.Stop()
	}
	nodes[leader].Stop()
	for _, n := range others {
		n.Cont()
	}
	h.progress(t, "the others elect a leader")
	nodes[leader].Cont()
	h.progress(t, "the old leader goes on")

	follower := (nodes.Leader() + 1) % len(nodes)
	if check.Long {
		nodes[follower].Stop()
		h.progress(t, "a follower hangs")
		nodes[follower].Cont()
	}
	proxies[follower].part(true)
	h.progress(t, "a server cannot be reached")
	proxies[follower].part(false)

	for _, n := range nodes {
		n.Kill()
	}
	var restarts sync.WaitGroup
	for _, n := range nodes {
		restarts.Go(n.Restart)
	}
	restarts.Wait()
	h.progress(t, "all servers were restarted")
	cancel()
	all.Wait()
	h.check(t)
}

// A holder that reaches no server loses its lock in time: before another gets the key.
func TestHolder_CutOff(t *testing.T) {
	t.Parallel()
	node := shared(t)
	p := newProxy(t, node.Addr())
	opts := []core.Option{core.WithToken(), core.WithOutageWait(patience)}
	cut := locker(t, at(t, p.addr()), append(opts, core.WithTTL(time.Second))...)
	other := locker(t, at(t, node.Addr()), append(opts, core.WithTTL(time.Minute))...)
	first, err := cut.Acquire(t.Context(), "k")
	ok(t, "Acquire", err)
	p.part(true)
	second, err := other.Acquire(t.Context(), "k")
	ok(t, "Acquire after the lease", err)
	select {
	case <-first.Context().Done():
	default:
		t.Error("another holds the key, and the first holder's context goes on")
	}
	want(t, "the first holder's lock", first.Err(), core.ErrLost)
	p.part(false)
	before, err := first.Token(t.Context())
	ok(t, "Token", err)
	after, err := second.Token(t.Context())
	ok(t, "Token", err)
	if after <= before {
		t.Errorf("token %d after %d", after, before)
	}
	err = first.Release(t.Context())
	if err != nil && !errors.Is(err, core.ErrLost) {
		t.Errorf("Release of the lost lock: %v", err)
	}
	ok(t, "Release", second.Release(t.Context()))
	again, err := cut.Acquire(t.Context(), "k", core.WithTTL(time.Minute))
	ok(t, "Acquire by who was cut off", err)
	ok(t, "Release", again.Release(t.Context()))
}

// A server that hangs bounds every call, and Close.
func TestCalls_AreBounded(t *testing.T) {
	t.Parallel()
	node := testutil.ZooKeeper(t)
	b, err := zkbackend.New([]string{node.Addr()}, zkbackend.WithTimeout(200*time.Millisecond)).
		Open(core.Environment{Logger: quiet})
	ok(t, "Open", err)
	var g core.Grant
	eventually(t, "Acquire", func() bool {
		g, err = b.Acquire(t.Context(), request("k", time.Hour))
		return err == nil
	})
	node.Stop()
	eventually(t, "Ping says what it waited for", func() bool { // unless the connection breaks in that moment
		err = b.Ping(t.Context())
		want(t, "Ping", err, core.ErrUnavailable)
		return strings.Contains(err.Error(), "did not answer within 200ms")
	})
	for name, call := range map[string]func(context.Context) error{
		"Acquire": func(ctx context.Context) error { _, err := b.Acquire(ctx, request("k2", time.Hour)); return err },
		"Extend":  func(ctx context.Context) error { _, err := b.Extend(ctx, g, time.Hour); return err },
		"Release": func(ctx context.Context) error { _, err := b.Release(ctx, g); return err },
		"Seal":    func(ctx context.Context) error { return b.(core.Sealer).Seal(ctx, g, nil, time.Hour) },
		"Unseal":  func(ctx context.Context) error { return b.(core.Sealer).Unseal(ctx, "k") },
		"Inspect": func(ctx context.Context) error { _, err := b.Inspect(ctx, "k"); return err },
		"Watch":   func(ctx context.Context) error { _, _, err := b.Watch(ctx, "k"); return err },
		"Ping":    b.Ping,
	} {
		err := call(t.Context())
		want(t, name, err, core.ErrUnavailable)
		if errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v matches the error of a context that did not end", name, err)
		}
		eventually(t, name+" ends at its deadline", func() bool { // unless the connection breaks in that moment
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			return errors.Is(call(ctx), context.DeadlineExceeded)
		})
	}
	ok(t, "Close", b.Close())
	node.Cont()
	want(t, "Ping after Close", b.Ping(t.Context()), core.ErrUnavailable)
}

// deadlines are the read deadlines of a connection.
type deadlines struct {
	net.Conn
	latest *atomic.Int64 // how far ahead, in ns
}

func (d deadlines) SetReadDeadline(end time.Time) error {
	if ahead := int64(time.Until(end)); !end.IsZero() && ahead > d.latest.Load() {
		d.latest.Store(ahead)
	}
	return d.Conn.SetReadDeadline(end)
}

// A server that takes connections and does not answer is left for another one. The library would wait
// for 26 s.
func TestConnect_HungServer(t *testing.T) {
	t.Parallel()
	node := shared(t)
	hung := newProxy(t, node.Addr())
	hung.part(true)
	defer hung.part(false)
	var latest atomic.Int64
	dial := func(network, addr string, timeout time.Duration) (net.Conn, error) {
		if addr != hung.addr() {
			return dialPatiently(network, addr, timeout)
		}
		c, err := net.DialTimeout(network, addr, timeout)
		if err != nil {
			return nil, err
		}
		return deadlines{c, &latest}, nil
	}
	for latest.Load() == 0 { // until the server that hangs is the first by chance
		l := locker(t, zkbackend.New([]string{hung.addr(), node.Addr()}, zkbackend.WithDialer(dial),
			zkbackend.WithRoot(rootOf(t)), zkbackend.WithTimeout(10*time.Second)), core.WithOutageWait(patience))
		k, err := l.Acquire(t.Context(), "k")
		ok(t, "Acquire", err)
		ok(t, "Release", k.Release(t.Context()))
	}
	if d := time.Duration(latest.Load()); d > 3*time.Second {
		t.Errorf("it waits for up to %v", d)
	}
}
