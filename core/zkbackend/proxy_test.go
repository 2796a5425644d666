package zkbackend_test

import (
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
)

// proxy stands between a client and a server. It can lose replies, and cut the client off without a
// sign.
type proxy struct {
	net.Listener
	target string
	lose   atomic.Int64           // how many replies to lose, each with its connection
	before atomic.Pointer[func()] // runs before the next change gets through

	mu    sync.Mutex
	apart bool // nothing gets through
	conns []net.Conn
}

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, "Listen", err)
	p := &proxy{Listener: l, target: target}
	var all sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		p.end()
		all.Wait()
	})
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { p.serve(c) })
		}
	})
	return p
}

func (p *proxy) addr() string { return p.Addr().String() }

// part cuts the client off, or joins it again: then its old connections break.
func (p *proxy) part(apart bool) {
	p.mu.Lock()
	p.apart = apart
	p.mu.Unlock()
	if !apart {
		p.end()
	}
}

func (p *proxy) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

func (p *proxy) add(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, c)
}

func (p *proxy) isApart() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.apart
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer server.Close()
	p.add(client)
	p.add(server)
	var back sync.WaitGroup
	defer back.Wait()
	back.Go(func() {
		defer server.Close()
		for {
			f, err := frame(client)
			if err != nil {
				return
			}
			const kind, multi = 8, 14 // where the kind of a request is, and that of a change
			if len(f) > kind+4 && binary.BigEndian.Uint32(f[kind:]) == multi {
				if before := p.before.Swap(nil); before != nil {
					(*before)()
				}
			}
			if !p.isApart() {
				_, _ = server.Write(f)
			}
		}
	})
	defer client.Close()
	for first := true; ; first = false {
		f, err := frame(server)
		if err != nil {
			return
		}
		const xid = 4 // where it is; pings and events have a negative one
		if !first && int32(binary.BigEndian.Uint32(f[xid:])) >= 0 && p.lose.Add(-1) >= 0 {
			return
		}
		if !p.isApart() {
			_, _ = client.Write(f)
		}
	}
}

// frame reads a message with its length.
func frame(c net.Conn) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(c, length[:]); err != nil {
		return nil, err
	}
	body := make([]byte, binary.BigEndian.Uint32(length[:]))
	_, err := io.ReadFull(c, body)
	return slices.Concat(length[:], body), err
}

// Each request has its effect, and the reply is lost with the connection.
func TestLostReply_OutcomeIsResolved(t *testing.T) {
	t.Parallel()
	node := shared(t)
	p := newProxy(t, node.Addr())
	l := locker(t, at(t, p.addr()), core.WithOutageWait(patience))
	warm, err := l.Acquire(t.Context(), "warm")
	ok(t, "Acquire", err)
	ok(t, "Release", warm.Release(t.Context()))
	p.lose.Store(1)
	k, err := l.Acquire(t.Context(), "k")
	ok(t, "Acquire", err)
	p.lose.Store(1)
	ok(t, "Extend", again(t, func() error { return k.Extend(t.Context(), time.Minute) }))
	p.lose.Store(1)
	ok(t, "Seal", again(t, func() error { return k.Seal(t.Context(), []byte("v"), time.Minute) }))
	_, err = l.Acquire(t.Context(), "k")
	want(t, "Acquire of a sealed key", err, core.ErrSealed)
	p.lose.Store(1)
	ok(t, "Unseal", again(t, func() error { return l.Unseal(t.Context(), "k") }))
	k, err = l.Acquire(t.Context(), "k")
	ok(t, "Acquire", err)
	p.lose.Store(1)
	_ = k.Release(t.Context())
	eventually(t, "the key is free", func() bool {
		st, err := l.Inspect(t.Context(), "k")
		return err == nil && st.Status == core.Free
	})
}

// again repeats a call whose outcome is unknown.
func again(t testing.TB, call func() error) error {
	t.Helper()
	var err error
	eventually(t, "an answer", func() bool {
		err = call()
		return err == nil || !isUnavailable(err)
	})
	return err
}

// The key would be held for an hour, and then orphaned for another.
func TestLostReply_AcquireIsUndone(t *testing.T) {
	t.Parallel()
	node := shared(t)
	p := newProxy(t, node.Addr())
	b, direct := open(t, at(t, p.addr())), open(t, at(t, node.Addr()))
	ok(t, "Ping", b.Ping(t.Context()))
	r := request("k", time.Hour)
	r.Orphan = time.Hour
	p.lose.Store(1000) // the sweep may lose some of them; the node above the key is not there yet
	_, err := b.Acquire(t.Context(), r)
	want(t, "Acquire", err, core.ErrUnavailable)
	p.lose.Store(0)
	eventually(t, "an attempt that fails when the nodes above the key are there", func() bool {
		above, err := direct.Acquire(t.Context(), request("k", time.Hour))
		if err != nil {
			return false // an attempt is not undone yet
		}
		_, err = direct.Release(t.Context(), above)
		ok(t, "Release", err)
		p.lose.Store(2) // after one, it might find what it created
		g, err := b.Acquire(t.Context(), request("k", time.Hour))
		if err != nil {
			return isUnavailable(err) && len(keyNodes(t, node.Addr(), rootOf(t))) > 0
		}
		_, _ = b.Release(t.Context(), g)
		return false
	})
	p.lose.Store(0)
	eventually(t, "the key is free", func() bool {
		st, err := direct.Inspect(t.Context(), "k")
		return err == nil && st.Status == core.Free
	})
	eventually(t, "it has no node", func() bool { return len(keyNodes(t, node.Addr(), rootOf(t))) == 0 })
}
