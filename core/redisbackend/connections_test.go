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

// Many calls under way to a near Redis use two connections only, and a call never waits for nobody.
func TestConnections_Crowd(t *testing.T) {
	t.Parallel()
	near, far := newLatency(time.Second), newLatency(time.Second)
	near.answered(farAway / 2)
	far.answered(2 * farAway)
	for _, c := range []struct {
		l                  *latency
		flying, idle, self int
		want               bool
	}{
		{near, crowd, 2, 0, true},
		{near, crowd, 1, 1, true},
		{near, crowd - 1, 2, 0, false},
		{near, crowd, 3, 0, false}, // one connection is in use
		{near, crowd, 2, 1, false}, // one beside that which is free now
		{far, crowd, 2, 0, false},
	} {
		conns := newConnections(nil, c.l, 4)
		conns.live, conns.flying, conns.idle = 4, c.flying, make([]*connection, c.idle)
		if got := conns.crowdedLocked(c.self); got != c.want {
			t.Errorf("%d calls, %d of 4 idle, beside %d: %v", c.flying, c.idle, c.self, got)
		}
	}
}
