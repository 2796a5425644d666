package redisbackend

import (
	"net"
	"sync/atomic"
	"time"
)

const (
	// largeChunk is a part of a large reply. While such parts come, the call goes on.
	largeChunk = 4 << 10
	// flowTimeout is how long a large reply may pause, and flowLimit how long it may take.
	flowTimeout = 250 * time.Millisecond
	flowLimit   = 30 * time.Second
)

// wire is a network connection whose deadlines the backend sets. go-redis sets none.
type wire struct {
	net.Conn
	readable func() bool // without waiting
	closed   atomic.Bool

	soft, hard time.Time // when a call without an answer ends, and any call
	wrote      bool      // by this call
	received   int       // by this call
}

func newWire(conn net.Conn) *wire { return &wire{Conn: conn, readable: newReadable(conn)} }

func never() bool { return false }

// gone reports whether the connection, which is idle, must not be used. It is closed then, or the
// server has sent an answer that nobody asked for.
func (w *wire) gone() bool {
	if w.closed.Load() {
		return true
	}
	if !w.readable() {
		return false
	}
	_ = w.Conn.SetReadDeadline(time.Now().Add(time.Millisecond))
	var b [1]byte
	_, err := w.Conn.Read(b[:])
	// After a time-out, there was only a message of TLS, and it has been read. But on a busy
	// machine the time may be over before the read: then there is still something to read.
	return !isTimeout(err) || w.readable()
}

// begin starts a call. caller is the deadline of the caller, or zero.
func (w *wire) begin(soft, caller time.Time) {
	w.soft, w.hard, w.received, w.wrote = soft, soft.Add(flowLimit), 0, false
	if !caller.IsZero() && caller.Before(w.hard) {
		w.hard = caller
	}
	_ = w.Conn.SetDeadline(w.deadline())
}

// SetDeadline does nothing. go-redis would take the deadline of begin away with it.
func (w *wire) SetDeadline(time.Time) error { return nil }

func (w *wire) deadline() time.Time {
	if w.soft.Before(w.hard) {
		return w.soft
	}
	return w.hard
}

func (w *wire) Write(b []byte) (int, error) {
	w.wrote = true
	return w.Conn.Write(b)
}

// Read gives a large reply more time while it comes.
func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	before := w.received
	w.received += n
	if w.received/largeChunk > before/largeChunk {
		if flowing := time.Now().Add(flowTimeout); flowing.After(w.soft) && !w.soft.IsZero() {
			w.soft = flowing
			_ = w.Conn.SetReadDeadline(w.deadline())
		}
	}
	return n, err
}

func (w *wire) Close() error {
	w.closed.Store(true)
	return w.Conn.Close()
}

// failedConn is a connection that could not be made. go-redis would count an error of its Dialer, and
// refuse to dial after a few of them.
type failedConn struct {
	net.Conn
	err error
}

func failed(err error) net.Conn {
	closed, _ := net.Pipe()
	_ = closed.Close()
	return failedConn{closed, dialError{err}}
}

func (c failedConn) Read([]byte) (int, error)  { return 0, c.err }
func (c failedConn) Write([]byte) (int, error) { return 0, c.err }

// dialError hides its cause from go-redis. An error of a Sentinel looks like an answer of the server.
type dialError struct{ cause error }

func (e dialError) Error() string { return e.cause.Error() }
