package redisbackend

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

// connecting is a connection that a test connects. It sends nothing.
type connecting func(context.Context) error

func (c connecting) Connect(ctx context.Context) error           { return c(ctx) }
func (c connecting) Exec([]*command, time.Time, time.Time) error { return nil }
func (c connecting) Disconnect()                                 {}
func (c connecting) Close()                                      {}

// nodeOf returns a node whose connections are all cn.
func nodeOf(cn driver.Connection) driver.Node {
	return driver.Node{Open: func() driver.Connection { return cn }}
}

// The last connection breaks long after it was made, while another one is being made. A call waits for
// that one.
func TestConnections_LastOneBreaksWhileDialing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConnections(nodeOf(connecting(func(context.Context) error {
			time.Sleep(connectWait / 2)
			return nil
		})), newLatency(time.Second), nil, 2)
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
		conns := newConnections(driver.Node{}, c.l, nil, 4)
		conns.live, conns.flying, conns.idle = 4, c.flying, make([]*connection, c.idle)
		if got := conns.crowdedLocked(c.self); got != c.want {
			t.Errorf("%d calls, %d of 4 idle, beside %d: %v", c.flying, c.idle, c.self, got)
		}
	}
}

// crowded returns connections of which two send many calls, and one is idle. No other one can be made.
// One more call waits; its caller does not, so that it is taken but not sent.
func crowded() (c *connections, using []*connection, waits *call) {
	hangs := connecting(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	c = newConnections(nodeOf(hangs), newLatency(time.Minute), nil, 4)
	c.latency.answered(farAway / 2)
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	using = []*connection{{Connection: hangs}, {Connection: hangs}}
	for _, cn := range using {
		c.useLocked(cn, crowd)
	}
	c.live, c.idle = 3, []*connection{{Connection: hangs, made: now, used: now}}
	waits = &call{caller: now, done: make(chan struct{})}
	_ = c.enqueue(waits, now)
	return c, using, waits
}

// endDials ends the dials of crowded. One that begins after stop would not see it.
func endDials(c *connections) {
	synctest.Wait()
	c.stop()
}

// The connections in use hang. A call waits for them no longer than crowdPatience.
func TestConnections_CrowdHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, waits := crowded()
		began := time.Now()
		<-waits.done
		if waited := time.Since(began); waited != crowdPatience {
			t.Errorf("a call waited %v beside an idle connection, want %v", waited, crowdPatience)
		}
		endDials(c)
	})
}

// The connections in use break. A call that waits for them gets the idle one at once.
func TestConnections_CrowdBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, using, waits := crowded()
		began := time.Now()
		for _, cn := range using {
			c.put(cn, context.DeadlineExceeded)
		}
		<-waits.done
		if waited := time.Since(began); waited != 0 {
			t.Errorf("a call waited %v beside an idle connection", waited)
		}
		endDials(c)
	})
}
