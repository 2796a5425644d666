//go:build unix

package redisbackend

import (
	"errors"
	"net"
	"syscall"
)

// readable reports, without waiting, whether there is something to read on an idle connection: data
// or its end. It reports false for a connection of a Dialer that is not a socket.
func readable(wire net.Conn) bool {
	if secure, ok := wire.(interface{ NetConn() net.Conn }); ok { // TLS
		wire = secure.NetConn()
	}
	socket, ok := wire.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	var b [1]byte
	waits := false
	err = raw.Control(func(fd uintptr) {
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK) // the socket does not block
		waits = errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR)
	})
	return err == nil && !waits
}
