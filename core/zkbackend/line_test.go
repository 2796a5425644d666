package zkbackend

import (
	"io"
	"net"
	"testing"
)

// A library that sends the first message in parts must not end the process.
func TestLine_FirstMessageInParts(t *testing.T) {
	client, server := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, server)
	}()
	l := &line{Conn: client, forget: true}
	for _, part := range [][]byte{make([]byte, 4), make([]byte, 44)} {
		if n, err := l.Write(part); n != len(part) || err != nil {
			t.Errorf("Write of %d bytes = %d, %v", len(part), n, err)
		}
	}
	_ = client.Close()
	<-done
	_ = server.Close()
}
