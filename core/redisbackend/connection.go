package redisbackend

import (
	"bufio"
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// largeChunk is a part of a large reply. While such parts come, the call goes on.
	largeChunk = 4 << 10
	// flowTimeout is how long a large reply may pause, and flowLimit how long it may take.
	flowTimeout = 250 * time.Millisecond
	flowLimit   = 30 * time.Second
	// slowestWrite is how many bytes a second a large value is given time for.
	slowestWrite = 4 << 20
)

// connection is one connection to Redis, used by one goroutine at a time.
type connection struct {
	client *redis.Client // has one connection, and is not used after its first answer
	wire   net.Conn      // that connection
	reader *bufio.Reader
	buffer []byte

	end  time.Time // when it is to be replaced, or zero
	made time.Time
	used time.Time

	soft, hard time.Time // when a call without an answer ends, and any call
	received   int       // by this call
}

// newConnection makes a connection with the options of a client: it dials, authenticates and asks
// for a first answer.
func newConnection(ctx context.Context, options redis.Options) (*connection, error) {
	// If SELECT or OnConnect fails, PING returns that error. The connection may then be in
	// database 0, so it is not used.
	initialized, onConnect := false, options.OnConnect
	options.OnConnect = func(ctx context.Context, c *redis.Conn) error {
		if onConnect != nil {
			if err := onConnect(ctx, c); err != nil {
				return err
			}
		}
		initialized = true
		return nil
	}
	client, wire, err := dial(ctx, options)
	if err != nil {
		return nil, err
	}
	cn := &connection{client: client, wire: wire.Conn}
	// A server that forbids PING answers, too.
	// A redis.Conn would panic here if there is a StreamingCredentialsProvider.
	if err := client.Ping(ctx).Err(); err != nil && (!initialized || !isServerReply(err) || hasCode(err, "NOAUTH", "WRONGPASS")) {
		cn.close()
		return nil, err
	}
	wire.over.Store(true)
	cn.reader = bufio.NewReaderSize(cn, largeChunk)
	return cn, nil
}

var errOneConnection = errors.New("redisbackend: this client has one connection, and it ended")

// lent is a connection that go-redis uses for the handshake. After that go-redis can neither write
// nor read, because a command of its own would shift the answers to ours.
type lent struct {
	net.Conn
	over atomic.Bool
}

func (l *lent) Read(b []byte) (int, error) {
	if l.over.Load() {
		return 0, net.ErrClosed
	}
	return l.Conn.Read(b)
}

func (l *lent) Write(b []byte) (int, error) {
	if l.over.Load() {
		return 0, net.ErrClosed
	}
	return l.Conn.Write(b)
}

// dial returns a client whose only connection is wire.
func dial(ctx context.Context, options redis.Options) (client *redis.Client, wire *lent, err error) {
	made, err := options.Dialer(ctx, options.Network, options.Addr)
	if err != nil {
		return nil, nil, err
	}
	wire = &lent{Conn: made}
	used := false
	options.Dialer = func(context.Context, string, string) (net.Conn, error) {
		if used {
			return nil, errOneConnection
		}
		used = true
		return wire, nil
	}
	return redis.NewClient(&options), wire, nil
}

// old reports whether cn was to be replaced before t.
func (cn *connection) old(t time.Time) bool { return !cn.end.IsZero() && t.After(cn.end) }

// gone reports whether cn, which is idle, must not be used: the server has closed it, or has sent
// an answer that nobody asked for.
func (cn *connection) gone() bool {
	if !readable(cn.wire) {
		return false
	}
	_ = cn.wire.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := cn.reader.Peek(1)
	// After a time-out, there was only a message of TLS, and it has been read. But on a busy
	// machine the time may be over before the read: then there is still something to read.
	return !isTimeout(err) || readable(cn.wire)
}

func (cn *connection) close() {
	_ = cn.wire.Close()
	_ = cn.client.Close()
}

// exec sends commands and reads their replies into them. It takes until soft, but longer if a large
// value is on its way, and never longer than the caller waits. The error is the connection's.
func (cn *connection) exec(commands []*command, size int, soft, caller time.Time) error {
	cn.soft = soft.Add(time.Duration(size) * (time.Second / slowestWrite))
	cn.hard, cn.received = cn.soft.Add(flowLimit), 0
	if !caller.IsZero() && caller.Before(cn.hard) {
		cn.hard = caller
	}
	b := cn.buffer[:0]
	for _, c := range commands {
		b = appendCommand(b, c)
	}
	if cn.buffer = b; cap(b) > keptBuffer {
		cn.buffer = nil
	}
	_ = cn.wire.SetDeadline(cn.deadline())
	_, err := cn.wire.Write(b)
	for _, c := range commands {
		if err == nil {
			if c.Value, c.Err = readReply(cn.reader, 0); !isIntact(c.Err) {
				err = c.Err
			}
			continue
		}
		c.Err = err
	}
	return err
}

func (cn *connection) deadline() time.Time {
	if cn.soft.Before(cn.hard) {
		return cn.soft
	}
	return cn.hard
}

// Read gives a large reply more time while it comes.
func (cn *connection) Read(b []byte) (int, error) {
	n, err := cn.wire.Read(b)
	before := cn.received
	cn.received += n
	if cn.received/largeChunk > before/largeChunk {
		if flowing := time.Now().Add(flowTimeout); flowing.After(cn.soft) {
			cn.soft = flowing
			_ = cn.wire.SetReadDeadline(cn.deadline())
		}
	}
	return n, err
}
