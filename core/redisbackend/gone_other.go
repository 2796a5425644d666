//go:build !unix

package redisbackend

import "net"

// readable is not known here.
func readable(net.Conn) bool { return false }
