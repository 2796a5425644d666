package zkbackend

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/onelane/onelane/internal/loglimit"
)

const (
	// sessionTimeout is the shortest that ZooKeeper grants by default. Nothing of a lock hangs on the
	// session: it only bounds how long a server that hangs goes unnoticed, two thirds of it.
	sessionTimeout = 4 * time.Second
	// handshake bounds the time to begin a session. The library would wait ten times as long.
	handshake = sessionTimeout * 2 / 3
)

// servers are the ensemble's addresses, for the library. It resolves names once; these are resolved
// for each connection.
type servers struct {
	mu     sync.Mutex
	addrs  []string
	next   int
	failed int // in turn
}

func (s *servers) Init(addrs []string) error {
	s.addrs = slices.Clone(addrs)
	rand.Shuffle(len(s.addrs), func(i, j int) { s.addrs[i], s.addrs[j] = s.addrs[j], s.addrs[i] })
	return nil
}

func (s *servers) Len() int { return len(s.addrs) }

// Next returns the next server. round reports whether all failed: then the library pauses for 1 s
// and fails the requests that wait.
func (s *servers) Next() (addr string, round bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	addr = s.addrs[s.next%len(s.addrs)]
	s.next++
	s.failed++
	return addr, s.failed > 1 && s.failed%len(s.addrs) == 1%len(s.addrs)
}

// allFailed reports whether each server failed since the last connection.
func (s *servers) allFailed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed > len(s.addrs)
}

func (s *servers) Connected() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = 0
}

// line is the connection to a server. It bounds the handshake, in which the library sets and unsets
// a read deadline once.
type line struct {
	net.Conn
	begun  int  // deadlines of the handshake
	forget bool // the handshake is to say that this client has seen nothing
}

const handshakeDeadlines = 2

// SetReadDeadline has one caller at a time.
func (l *line) SetReadDeadline(t time.Time) error {
	if l.begun < handshakeDeadlines {
		l.begun++
		return nil
	}
	return l.Conn.SetReadDeadline(t)
}

// Write has one caller at a time.
//
// Servers that were set back to a backup answer nobody who has seen more than they have, and the
// library would try them forever. No lock depends on it: a change needs the version that was read.
//
// Write returns no error: the library would answer its own request twice, and wait forever for
// somebody who takes the second answer. It notices the end of the connection when it reads.
func (l *line) Write(p []byte) (int, error) {
	if l.forget {
		l.forget = false
		// seen is the place of the last zxid in the first message, which a later version of the
		// library may send in parts.
		const seen = 8
		if len(p) >= seen+8 {
			p = slices.Clone(p)
			clear(p[seen : seen+8])
		}
	}
	if _, err := l.Conn.Write(p); err != nil {
		_ = l.Conn.Close()
	}
	return len(p), nil
}

// dial makes a connection, which Close ends.
func (b *backend) dial(network, addr string, timeout time.Duration) (net.Conn, error) {
	conn, err := b.opener.dial(network, addr, timeout)
	if err != nil {
		return nil, err
	}
	if err := conn.SetReadDeadline(time.Now().Add(handshake)); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		_ = conn.Close()
		return nil, zk.ErrClosing
	}
	b.line = conn
	return &line{Conn: conn, forget: b.turns.allFailed()}, nil
}

// libraryLog writes what the library reports: connections that fail.
type libraryLog struct{ *backend }

func (l libraryLog) Printf(format string, args ...any) {
	if l.open.Err() != nil {
		return // Close ends the connection
	}
	loglimit.Later(l.logger, slog.LevelWarn, "zkbackend: the connection to ZooKeeper failed; the backend reconnects",
		"detail", fmt.Sprintf(format, args...))
}

// connected returns the connection of the library, authenticated. It makes it at the first call.
func (b *backend) connected() (*zk.Conn, error) {
	conn, err := b.library()
	if err == nil {
		err = b.authorized(conn)
	}
	return conn, err
}

// library returns the library's client, which connects in the background.
func (b *backend) library() (*zk.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, zk.ErrClosing
	}
	if b.conn == nil {
		conn, events, err := zk.Connect(b.servers, sessionTimeout, zk.WithHostProvider(&b.turns),
			zk.WithDialer(b.dial), zk.WithLogger(libraryLog{b}), zk.WithLogInfo(false),
			zk.WithEventCallback(b.event))
		if err != nil {
			return nil, err
		}
		b.conn, b.events = conn, events
		b.work.Go(b.sweep)
	}
	return b.conn, nil
}

// authorized authenticates the first connection. The library does so for the later ones.
func (b *backend) authorized(conn *zk.Conn) error {
	if b.scheme == "" {
		return nil
	}
	b.auth.Lock()
	defer b.auth.Unlock()
	if b.authed {
		return nil
	}
	if err := conn.AddAuth(b.scheme, []byte(b.credentials)); err != nil {
		return err
	}
	b.authed = true
	return nil
}
