package zkbackend_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// A change that arrives when another owner has the key changes nothing. That holds even if the node
// has been deleted and made again since, so that its version is the same.
func TestDelayed_OthersLeaseStays(t *testing.T) {
	t.Parallel()
	node := shared(t)
	for name, change := range map[string]func(core.Sealer, core.Grant) error{
		"Release": func(b core.Sealer, g core.Grant) error { _, err := b.Release(t.Context(), g); return err },
		"Extend":  func(b core.Sealer, g core.Grant) error { _, err := b.Extend(t.Context(), g, time.Hour); return err },
		"Seal":    func(b core.Sealer, g core.Grant) error { return b.Seal(t.Context(), g, nil, time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			late(t, node, change)
		})
	}
}

func late(t *testing.T, node *testutil.ZooKeeperNode, change func(core.Sealer, core.Grant) error) {
	p := newProxy(t, node.Addr())
	slow, quick := open(t, at(t, p.addr())), open(t, at(t, node.Addr()))
	ok(t, "Ping", slow.Ping(t.Context()))
	for try := 0; ; try++ { // on a busy machine the lease may end before the change is sent
		g, err := slow.Acquire(t.Context(), request(fmt.Sprint("k", try), time.Second<<try))
		if isUnavailable(err) { // the answer took longer than the lease
			continue
		}
		ok(t, "Acquire", err)
		var others core.Grant
		done := make(chan struct{})
		between := func() {
			defer close(done)
			take := func(ttl time.Duration) (g2 core.Grant) {
				eventually(t, "Acquire", func() bool {
					g2, err = quick.Acquire(t.Context(), request(g.Key, ttl))
					return err == nil
				})
				return g2
			}
			_, err := quick.Release(t.Context(), take(time.Hour))
			ok(t, "Release", err)
			others = take(time.Hour)
		}
		p.before.Store(&between)
		err = change(slow, g)
		select {
		case <-done:
		default:
			p.before.Store(nil)
			continue
		}
		for isUnavailable(err) { // the others took long
			err = change(slow, g)
		}
		want(t, "the late change", err, core.ErrLost)
		st, err := quick.Inspect(t.Context(), g.Key)
		ok(t, "Inspect", err)
		if st.Status != core.Held || st.Owner != others.Owner {
			t.Errorf("after the late change the key is %v, of %q", st.Status, st.Owner)
		}
		return
	}
}

// The holder renews just before a takeover arrives that was decided on an old answer.
func TestDelayed_TakeOverOfARenewedLease(t *testing.T) {
	t.Parallel()
	node := shared(t)
	p := newProxy(t, node.Addr())
	holder, other := open(t, at(t, node.Addr())), open(t, at(t, p.addr()))
	g := acquire(t, holder, request("k", 3*time.Second))
	ok(t, "Close", holder.Close()) // its sweep would remove the node if the lease ended meanwhile
	_, err := other.Acquire(t.Context(), request("k", time.Hour))
	want(t, "Acquire", err, core.ErrTaken)
	c := client(t, node.Addr())
	path := keyNodes(t, node.Addr(), rootOf(t))[0]
	renewed := func() {
		text, stat, err := c.Get(path)
		ok(t, "Get", err)
		_, err = c.Set(path, text, stat.Version)
		ok(t, "Set", err)
	}
	eventually(t, "a takeover", func() bool {
		changed, stop, err := other.Watch(t.Context(), "k") // it looks before it writes
		ok(t, "Watch", err)
		defer stop()
		_ = changed
		p.before.Store(&renewed)
		_, err = other.Acquire(t.Context(), request("k", time.Hour))
		want(t, "Acquire", err, core.ErrTaken)
		return p.before.Load() == nil
	})
	st, err := open(t, at(t, node.Addr())).Inspect(t.Context(), "k")
	ok(t, "Inspect", err)
	if st.Status != core.Held || st.Owner != g.Owner {
		t.Errorf("the key is %v, of %q, want it held by %q", st.Status, st.Owner, g.Owner)
	}
}
