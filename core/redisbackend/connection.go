package redisbackend

import (
	"bufio"
	"net"
	"time"
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
	wire     net.Conn
	readable func() bool // without waiting
	reader   *bufio.Reader
	buffer   []byte

	end  time.Time // when it is to be replaced, or zero
	made time.Time
	used time.Time

	soft, hard time.Time // when a call without an answer ends, and any call
	received   int       // by this call
}

func newConnection(wire net.Conn) *connection {
	cn := &connection{wire: wire, readable: newReadable(wire)}
	cn.reader = bufio.NewReaderSize(cn, largeChunk)
	return cn
}

func never() bool { return false }

// old reports whether cn was to be replaced before t.
func (cn *connection) old(t time.Time) bool { return !cn.end.IsZero() && t.After(cn.end) }

// gone reports whether cn, which is idle, must not be used: the server has closed it, or has sent
// an answer that nobody asked for.
func (cn *connection) gone() bool {
	if !cn.readable() {
		return false
	}
	_ = cn.wire.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := cn.reader.Peek(1)
	// After a time-out, there was only a message of TLS, and it has been read. But on a busy
	// machine the time may be over before the read: then there is still something to read.
	return !isTimeout(err) || cn.readable()
}

func (cn *connection) close() { _ = cn.wire.Close() }

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
