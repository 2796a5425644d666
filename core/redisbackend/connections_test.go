package redisbackend

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// The last connection breaks long after it was made, while another one is being made. A call waits for
// that one.
func TestConnections_LastOneBreaksWhileDialing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConnections(func() *connection { return new(connection) }, newLatency(time.Second), 2)
		c.dial = func(*connection, context.Context) error {
			time.Sleep(connectWait / 2)
			return nil
		}
		first := make(chan *connection, 1)
		get := func() *connection {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.take(time.Now())
		}
		wait := func() error {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.grow(time.Now())
			return c.hopeless(time.Now())
		}
		if err := wait(); err != nil {
			t.Fatalf("the first call does not wait: %v", err)
		}
		time.Sleep(idleTime / 2)
		first <- get()
		if err := wait(); err != nil {
			t.Fatalf("a second call does not wait: %v", err)
		}
		c.mu.Lock()
		c.discard(<-first, io.EOF)
		c.mu.Unlock()
		if err := wait(); err != nil {
			t.Errorf("a call after the connection broke does not wait: %v", err)
		}
		time.Sleep(time.Second)
		if get() == nil {
			t.Error("no connection was made")
		}
		c.stop()
	})
}
