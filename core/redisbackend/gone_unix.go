//go:build unix

package redisbackend

import (
	"errors"
	"net"
	"syscall"
)

// newReadable returns a function that reports, without waiting, whether there is something to read on
// an idle connection: data or its end. It reports false for a connection of a Dialer that is not a
// socket. One goroutine at a time may call it.
func newReadable(wire net.Conn) func() bool {
	if secure, ok := wire.(interface{ NetConn() net.Conn }); ok { // TLS
		wire = secure.NetConn()
	}
	socket, ok := wire.(syscall.Conn)
	if !ok {
		return never
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return never
	}
	waits := false
	peek := func(fd uintptr) {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK) // the socket does not block
		waits = errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR)
	}
	return func() bool { return raw.Control(peek) == nil && !waits }
}
