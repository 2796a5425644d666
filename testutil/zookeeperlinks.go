package testutil

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/onelane/onelane/testutil/internal/server"
)

// manyLoopbackAddresses reports whether all of 127.0.0.0/8 is this machine's.
const manyLoopbackAddresses = runtime.GOOS == "linux"

// zookeeperLinks are proxies between the nodes of an ensemble. Each pair of nodes has its own
// proxies in each direction, on a loopback address that only this direction uses. So no node knows
// where another one listens.
type zookeeperLinks struct {
	t   testing.TB
	all sync.WaitGroup // their goroutines

	mu       sync.Mutex
	isolated map[int]bool
	open     map[net.Conn]zookeeperLink
}

// zookeeperLink is the direction of a connection.
type zookeeperLink struct{ from, to int }

// ip is the address at which one node reaches the other.
func (l zookeeperLink) ip() string {
	if l.from == l.to {
		return fmt.Sprintf("127.1.0.%d", l.to+1)
	}
	return fmt.Sprintf("127.1.%d.%d", l.from+1, l.to+1)
}

func newZooKeeperLinks(t testing.TB) *zookeeperLinks {
	l := &zookeeperLinks{t: t, isolated: make(map[int]bool), open: make(map[net.Conn]zookeeperLink)}
	t.Cleanup(l.all.Wait) // when the nodes and the listeners have ended
	return l
}

// route is a server.Route.
func (l *zookeeperLinks) route(from, to int, ports ...int) (ip string, err error) {
	if !manyLoopbackAddresses {
		return server.Direct(from, to, ports...)
	}
	between := zookeeperLink{from, to}
	if from == to {
		return between.ip(), nil
	}
	for _, port := range ports {
		listener, err := net.Listen("tcp", net.JoinHostPort(between.ip(), strconv.Itoa(port)))
		if err != nil {
			return "", err
		}
		l.t.Cleanup(func() { _ = listener.Close() })
		target := net.JoinHostPort(zookeeperLink{to, to}.ip(), strconv.Itoa(port))
		l.all.Go(func() { l.accept(between, listener, target) })
	}
	return between.ip(), nil
}

// isolate cuts a node off from all others, or ends that. Then connections that have lost something
// break.
func (l *zookeeperLinks) isolate(i int, cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isolated[i] = cut
	for conn, between := range l.open {
		if !cut && (between.from == i || between.to == i) {
			_ = conn.Close()
		}
	}
}

func (l *zookeeperLinks) cut(between zookeeperLink) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isolated[between.from] || l.isolated[between.to]
}

func (l *zookeeperLinks) accept(between zookeeperLink, listener net.Listener, target string) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		l.all.Go(func() { l.serve(between, conn, target) })
	}
}

// serve passes a connection on. One that is made while the nodes are cut off from each other hangs
// until they are joined again.
func (l *zookeeperLinks) serve(between zookeeperLink, conn net.Conn, target string) {
	l.enter(conn, between)
	defer l.leave(conn)
	if l.cut(between) {
		_, _ = io.Copy(io.Discard, conn)
		return
	}
	node, err := dialNode(target)
	if err != nil {
		return
	}
	l.enter(node, between)
	defer l.leave(node)
	l.all.Go(func() { l.pass(between, node, conn, nil) })
	l.pass(between, conn, node, between.hide)
}

// dialNode waits a moment for a node that does not listen yet, as the nodes themselves do if they
// are refused.
func dialNode(target string) (conn net.Conn, err error) {
	for range 20 {
		if conn, err = net.Dial("tcp", target); err == nil {
			return conn, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil, err
}

// pass copies what one side says to the other, or to nobody while the nodes are cut off.
func (l *zookeeperLinks) pass(between zookeeperLink, from, to net.Conn, first func([]byte) []byte) {
	defer to.Close()
	for buf := make([]byte, 32<<10); ; first = nil {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		text := buf[:n]
		if first != nil {
			text = first(text)
		}
		if l.cut(between) {
			continue
		}
		if _, err := to.Write(text); err != nil {
			return
		}
	}
}

// hide replaces the address of the node that makes the connection. Its first message to elect a
// leader names that address, and the other node may then connect to it instead.
func (l zookeeperLink) hide(first []byte) []byte {
	self, proxy := zookeeperLink{l.from, l.from}, zookeeperLink{l.to, l.from}
	return bytes.ReplaceAll(first, []byte(self.ip()+":"), []byte(proxy.ip()+":"))
}

// enter notes a connection.
func (l *zookeeperLinks) enter(conn net.Conn, between zookeeperLink) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[conn] = between
}

func (l *zookeeperLinks) leave(conn net.Conn) {
	_ = conn.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, conn)
}
