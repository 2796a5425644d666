//go:build !unix

package redisbackend

import "net"

// newReadable returns never, because only gone_unix.go knows how to ask.
func newReadable(net.Conn) func() bool { return never }
