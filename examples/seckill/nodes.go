package main

import (
	"fmt"
	"io"
	"net"
	"sync"
)

// node is a Redis that can be cut off: a separate port in front of the real one.
type node struct {
	addr, upstream string

	mu       sync.Mutex
	listener net.Listener // nil while it is cut off
	conns    map[net.Conn]struct{}
	gone     sync.WaitGroup
}

// newNode listens in front of the Redis at upstream.
func newNode(upstream string) (*node, error) {
	n := &node{addr: "127.0.0.1:0", upstream: upstream, conns: make(map[net.Conn]struct{})}
	return n, n.set(true)
}

// up reports whether clients reach the node.
func (n *node) up() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.listener != nil
}

// set cuts it off, or brings it back at the same address.
func (n *node) set(up bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case up && n.listener == nil:
		listener, err := net.Listen("tcp", n.addr)
		if err != nil {
			return fmt.Errorf("cannot bring the Redis at %s back: %w", n.upstream, err)
		}
		n.listener, n.addr = listener, listener.Addr().String()
		n.gone.Go(func() { n.accept(listener) })
	case !up && n.listener != nil:
		_ = n.listener.Close()
		n.listener = nil
		for c := range n.conns {
			_ = c.Close()
		}
	}
	return nil
}

// close cuts it off and waits for its connections to end.
func (n *node) close() {
	_ = n.set(false)
	n.gone.Wait()
}

func (n *node) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return // cut off
		}
		server, err := net.Dial("tcp", n.upstream)
		if err != nil || !n.keep(client, server) {
			_ = client.Close()
			continue
		}
		n.gone.Go(func() { n.copy(client, server) })
		n.gone.Go(func() { n.copy(server, client) })
	}
}

// keep remembers a pair of connections, unless the node was cut off meanwhile.
func (n *node) keep(client, server net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listener == nil {
		_ = server.Close()
		return false
	}
	n.conns[client], n.conns[server] = struct{}{}, struct{}{}
	return true
}

func (n *node) copy(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range []net.Conn{to, from} {
		_ = c.Close()
		delete(n.conns, c)
	}
}
