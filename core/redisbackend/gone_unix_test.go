//go:build unix

package redisbackend

import (
	"net"
	"testing"
	"time"
)

// haltedConn stands for a process that gets no CPU between setting a deadline and reading.
type haltedConn struct{ *net.TCPConn }

func (c haltedConn) SetReadDeadline(t time.Time) error {
	err := c.TCPConn.SetReadDeadline(t)
	time.Sleep(time.Until(t) + 20*time.Millisecond)
	return err
}

func TestWire_GoneOnABusyMachine(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ours, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	theirs, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	cn := newWire(haltedConn{ours.(*net.TCPConn)})
	if cn.gone() {
		t.Fatal("the connection is open, and gone says that it is closed")
	}
	_ = theirs.Close()
	for !newReadable(ours)() {
		time.Sleep(time.Millisecond)
	}
	if !cn.gone() {
		t.Error("the server has closed the connection, and gone says no")
	}
}
