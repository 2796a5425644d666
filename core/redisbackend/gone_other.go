//go:build !unix

package redisbackend

import "net"

// readable reports false, because only gone_unix.go knows how to ask.
func readable(net.Conn) bool { return false }
