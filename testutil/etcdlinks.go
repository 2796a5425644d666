package testutil

import (
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"sync"
	"testing"
)

// etcdLinks are proxies between the members of an etcd: one in front of each, for its peers. A peer
// says in each request who it is.
type etcdLinks struct {
	mu        sync.Mutex
	listeners []net.Listener
	targets   []string
	ids       []string // of the members, as they write them
	isolated  map[int]bool
	open      map[net.Conn]link
}

// link is a connection of a member with an ID to another one.
type link struct {
	from string
	to   int
}

func newEtcdLinks(t testing.TB, n int) *etcdLinks {
	t.Helper()
	l := &etcdLinks{targets: make([]string, n), ids: make([]string, n), isolated: make(map[int]bool), open: make(map[net.Conn]link)}
	for i := range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatalf("testutil: %v", err)
		}
		l.listeners = append(l.listeners, listener)
		t.Cleanup(func() { _ = listener.Close() })
		go l.accept(i, listener)
	}
	return l
}

// advertise returns the URL of the proxy in front of member i.
func (l *etcdLinks) advertise(i int, listen string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.targets[i] = listen
	return "http://" + l.listeners[i].Addr().String()
}

// learn asks the members who they are.
func (l *etcdLinks) learn(members EtcdMembers) {
	for i, m := range members {
		eventually(m.t, "a member of etcd says who it is", func() bool { // a busy machine may miss the time-out
			status, err := m.status()
			if err != nil {
				return false
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			l.ids[i] = fmt.Sprintf("%x", status.Header.MemberId)
			return true
		})
	}
}

// isolate cuts a member off from all others, or ends that.
func (l *etcdLinks) isolate(i int, cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isolated[i] = cut
	for conn, between := range l.open {
		if l.cut(between) {
			_ = conn.Close()
		}
	}
}

func (l *etcdLinks) accept(to int, listener net.Listener) {
	for {
		peer, err := listener.Accept()
		if err != nil {
			return
		}
		go l.serve(to, peer)
	}
}

var etcdPeer = regexp.MustCompile(`(?i)\r\nx-server-from: ([0-9a-f]+)\r\n`)

// serve passes a connection on when its first bytes have said who asks.
func (l *etcdLinks) serve(to int, peer net.Conn) {
	defer peer.Close()
	first := make([]byte, 16<<10)
	n, err := peer.Read(first)
	if err != nil {
		return
	}
	from := ""
	if id := etcdPeer.FindSubmatch(first[:n]); id != nil {
		from = string(id[1])
	}
	if !l.enter(peer, link{from, to}) {
		return
	}
	defer l.leave(peer)
	l.mu.Lock()
	target := l.targets[to]
	l.mu.Unlock()
	member, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer member.Close()
	if _, err := member.Write(first[:n]); err != nil {
		return
	}
	go func() {
		defer member.Close()
		_, _ = io.Copy(member, peer)
	}()
	_, _ = io.Copy(peer, member)
}

// enter notes a connection, unless the members are cut off from each other.
func (l *etcdLinks) enter(conn net.Conn, between link) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut(between) {
		return false
	}
	l.open[conn] = between
	return true
}

// cut reports whether a link must not be. l.mu is held.
func (l *etcdLinks) cut(between link) bool {
	from := slices.Index(l.ids, between.from)
	return l.isolated[between.to] || from >= 0 && l.isolated[from]
}

func (l *etcdLinks) leave(conn net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, conn)
}
