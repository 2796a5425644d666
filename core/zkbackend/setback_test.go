package zkbackend_test

import (
	"encoding/binary"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/core/zkbackend"
)

// setBack is a connection to a server that was deleted, or set back to a backup. Like ZooKeeper, it
// closes the connection of a client that has seen later transactions than the server.
type setBack struct {
	net.Conn
	back  *atomic.Bool
	begun bool
}

func (c *setBack) Write(p []byte) (int, error) {
	const seen = 8 // where the first message has the last zxid
	if !c.begun && c.back.Load() && binary.BigEndian.Uint64(p[seen:]) > 0 {
		_ = c.Conn.Close()
		return 0, io.ErrClosedPipe
	}
	c.begun = true
	return c.Conn.Write(p)
}

// Processes that go on while the servers are set back to a backup connect again by themselves.
func TestConnect_ServersSetBack(t *testing.T) {
	t.Parallel()
	p := newProxy(t, shared(t).Addr())
	var back atomic.Bool
	dial := func(network, addr string, timeout time.Duration) (net.Conn, error) {
		c, err := dialPatiently(network, addr, timeout)
		if err != nil {
			return nil, err
		}
		return &setBack{Conn: c, back: &back}, nil
	}
	b := open(t, at(t, p.addr(), zkbackend.WithDialer(dial)))
	g, err := b.Acquire(t.Context(), request("warm", time.Minute))
	ok(t, "Acquire", err)
	_, err = b.Release(t.Context(), g)
	ok(t, "Release", err)
	back.Store(true)
	p.end()
	eventually(t, "the backend connects again", func() bool { return b.Ping(t.Context()) == nil })
}
