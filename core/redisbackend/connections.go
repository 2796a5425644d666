package redisbackend

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

const (
	// connectWait is how long a call waits for the first connection, or NodeTimeout if that is longer.
	// Dialing goes on without the call.
	connectWait = time.Second

	// longestConnect bounds a connect if the client library has no limit.
	longestConnect = 30 * time.Second

	// A dial that failed is not repeated before firstDialPause, then longer, up to longestDialPause.
	firstDialPause   = 5 * time.Millisecond
	longestDialPause = 250 * time.Millisecond

	// Over a slow link there may be farFactor times as many connections. On a near Redis, callers
	// that share a pipeline are quicker than callers that have a connection each.
	farFactor = 4

	// With crowd calls under way to a near Redis, only crowdConnections are used. Pipelines are deeper
	// then, and a lock costs less.
	crowd            = 6
	crowdConnections = 2
	// crowdPatience is how long a call waits for them while others are idle: they may hang.
	crowdPatience = 10 * time.Millisecond

	// A connection that nobody used for idleTime is closed.
	idleTime = time.Minute
)

var (
	errConnecting = errors.New("redisbackend: still connecting")
	errNotSent    = driver.ErrNotSent
)

// notSent says that a call had no effect, because it was not sent.
func notSent(cause error) error { return driver.NotSent(cause) }

// connection is a connection of a client library, with what connections notes of it.
type connection struct {
	driver.Connection
	calls int       // that it sends now, guarded by connections.mu
	end   time.Time // when it is to be replaced, or zero
	made  time.Time
	used  time.Time
}

// old reports whether cn was to be replaced before t.
func (cn *connection) old(t time.Time) bool { return !cn.end.IsZero() && t.After(cn.end) }

// connections are up to max connections to one Redis, or more over a slow link. They are made in
// the background: a call that is given up does not end a dial. Calls that find all of them busy
// wait, and share a pipeline.
type connections struct {
	node    driver.Node
	latency *latency
	// replicas makes each pipeline end with WAIT, or is nil.
	replicas *replicas
	max      int
	done     context.Context
	stop     context.CancelFunc

	mu      sync.Mutex
	idle    []*connection // the last used one at the end
	spare   []*connection // disconnected
	live    int           // connections that are idle or in use
	flying  int           // calls that connections send now
	dialing int
	waiting []*call
	armed   bool        // expire is due
	relief  bool        // relieveLocked is due
	heard   time.Time   // when Redis last answered
	janitor *time.Timer // of idle connections
	closed  bool

	failed error     // of the last dial, nil after a success.
	slow   bool      // the last dial failed only after patience.
	fresh  time.Time // when a dial last succeeded.
	since  time.Time // when the last connection went, or the first dial after that began.
	retry  time.Time // no dial before it
	pause  time.Duration
}

func newConnections(d driver.Node, l *latency, r *replicas, most int) *connections {
	d.ConnectLimit = cmp.Or(d.ConnectLimit, longestConnect)
	c := &connections{node: d, latency: l, replicas: r, max: most}
	c.done, c.stop = context.WithCancel(context.Background())
	return c
}

// crowdedLocked reports whether a call should wait for a connection that is in use, beside self.
func (c *connections) crowdedLocked(self int) bool {
	return c.flying >= crowd && c.live-len(c.idle)-self >= crowdConnections && !c.latency.far() &&
		(len(c.waiting) == 0 || time.Since(c.waiting[0].queued) < crowdPatience)
}

// relieveLocked lets calls that wait have an idle connection, now or after crowdPatience.
func (c *connections) relieveLocked() {
	switch {
	case len(c.waiting) == 0 || len(c.idle) == 0:
	case !c.crowdedLocked(0):
		if cn := c.take(time.Now()); cn != nil {
			go c.put(cn, nil)
		}
	case !c.relief:
		c.relief = true
		time.AfterFunc(crowdPatience, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.relief = false
			c.relieveLocked()
		})
	}
}

// take returns an idle connection, or nil. c.mu is held.
func (c *connections) take(now time.Time) *connection {
	for len(c.idle) > 0 {
		last := len(c.idle) - 1
		cn := c.idle[last]
		c.idle[last] = nil
		c.idle = c.idle[:last]
		if cn.old(c.fresh) || c.node.IdleLimit > 0 && now.Sub(cn.used) >= c.node.IdleLimit {
			c.forget(1)
			go c.drop(cn)
			continue
		}
		if cn.old(now) && c.dialing == 0 && !now.Before(c.retry) {
			// It is used until the next one is there.
			c.dialing++
			go c.connect()
		}
		return cn
	}
	return nil
}

// put gives a connection back after a call that ended with err. If calls wait, they are sent.
func (c *connections) put(cn *connection, err error) {
	if batch := c.next(cn, err); batch != nil {
		go c.run(cn, batch)
	}
}

// next returns the calls to send on a connection after a call that ended with err. If no call waits,
// it gives the connection back and returns nil.
func (c *connections) next(cn *connection, err error) []*call {
	c.mu.Lock()
	c.flying -= cn.calls
	cn.calls = 0
	if !isIntact(err) {
		c.discard(cn, err)
		c.relieveLocked()
		c.mu.Unlock()
		c.drop(cn)
		return nil
	}
	if !c.crowdedLocked(1) {
		if batch := c.nextBatch(); batch != nil {
			c.heard = time.Now()
			c.useLocked(cn, len(batch))
			c.mu.Unlock()
			return batch
		}
	}
	keep := c.keep(cn)
	c.relieveLocked()
	c.mu.Unlock()
	if !keep {
		c.drop(cn)
	}
	return nil
}

// drop ends a connection. Another one takes its place later.
func (c *connections) drop(cn *connection) {
	cn.Disconnect()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		cn.Close()
		return
	}
	c.spare = append(c.spare, cn)
}

// useLocked notes how many calls cn sends.
func (c *connections) useLocked(cn *connection, calls int) {
	cn.calls = calls
	c.flying += calls
}

// keep makes cn idle. It reports whether it did. c.mu is held.
func (c *connections) keep(cn *connection) bool {
	if c.closed || cn.old(c.fresh) {
		c.forget(1)
		return false
	}
	c.idle = append(c.idle, cn)
	if c.janitor == nil {
		c.janitor = time.AfterFunc(idleTime, c.sweep)
	}
	return true
}

// pruneLocked closes the idle connections that a new one replaces.
func (c *connections) pruneLocked() {
	c.idle = slices.DeleteFunc(c.idle, func(cn *connection) bool {
		if !cn.old(c.fresh) {
			return false
		}
		c.forget(1)
		go c.drop(cn)
		return true
	})
}

// discard forgets a broken connection. If the server closed it, the idle ones are likely closed,
// too. c.mu is held.
func (c *connections) discard(cn *connection, err error) {
	gone := 1
	if isBroken(err) {
		for _, other := range c.idle {
			go c.drop(other)
		}
		gone += len(c.idle)
		c.idle = nil
	}
	c.forget(gone)
	if len(c.waiting) == 0 {
		return
	}
	c.grow(time.Now())
}

// forget notes that n connections are gone. c.mu is held.
func (c *connections) forget(n int) {
	if c.live -= n; c.live == 0 {
		c.since = time.Now()
	}
}

// fail ends all calls that wait. c.mu is held.
func (c *connections) fail(err error) {
	for _, w := range c.waiting {
		if !w.taken {
			w.taken = true
			w.finish(notSent(err))
		}
	}
	c.waiting = nil
}

// sweep closes the connections that were idle for long, except one.
func (c *connections) sweep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	now := time.Now()
	for len(c.idle) > 1 && now.Sub(c.idle[0].used) > idleTime {
		go c.drop(c.idle[0])
		c.idle = c.idle[1:]
		c.live--
	}
	if cn := c.take(now); cn != nil {
		go c.test(cn)
	}
	c.janitor.Reset(idleTime)
}

// test finds out whether an idle connection still works, and keeps it from being forgotten on the
// way.
func (c *connections) test(cn *connection) {
	c.put(cn, c.exec(cn, []*command{driver.Plain("ping")}, 0, time.Time{}, time.Now()))
}

// grow dials one more connection if that is allowed now. c.mu is held.
func (c *connections) grow(now time.Time) {
	most := c.max
	if c.latency.far() {
		most *= farFactor
	}
	if c.live+c.dialing >= most {
		return
	}
	first := c.live+c.dialing == 0
	if first {
		c.since = now
	}
	switch wait := c.retry.Sub(now); {
	case wait <= 0:
		c.dialing++
		go c.connect()
	case first:
		c.dialing++
		time.AfterFunc(wait, c.connect)
	}
}

// connect makes a connection and puts it to use.
func (c *connections) connect() {
	ctx := c.done
	if ctx.Err() != nil {
		ctx = context.Background() // a late release
	}
	ctx, cancel := context.WithTimeout(ctx, c.node.ConnectLimit)
	defer cancel()
	c.mu.Lock()
	var cn *connection
	if last := len(c.spare) - 1; last >= 0 {
		cn, c.spare = c.spare[last], c.spare[:last]
	}
	c.mu.Unlock()
	if cn == nil {
		cn = &connection{Connection: c.node.Open()}
	}
	began := time.Now()
	err := cn.Connect(ctx)
	c.mu.Lock()
	c.dialing--
	now := time.Now()
	if err != nil {
		c.failed, c.slow = err, now.Sub(began) >= c.patience()
		c.pause = min(max(2*c.pause, firstDialPause), longestDialPause)
		c.retry = now.Add(c.pause)
		if c.live == 0 && c.dialing == 0 {
			c.fail(err)
		}
		c.mu.Unlock()
		c.drop(cn)
		return
	}
	c.live++
	cn.made, cn.used, cn.end = now, now, time.Time{}
	if life := lifeOf(c.node); life > 0 {
		cn.end = now.Add(life)
	}
	c.failed, c.pause, c.retry, c.fresh = nil, 0, time.Time{}, now
	c.pruneLocked()
	c.mu.Unlock()
	c.put(cn, nil)
}

// hopeless returns why a call should not wait for a connection, or nil. c.mu is held.
func (c *connections) hopeless(now time.Time) error {
	switch {
	case c.live > 0:
		return nil
	case c.failed != nil && c.slow:
		return c.failed
	case now.Sub(c.since) >= c.patience():
		return errConnecting
	}
	return nil
}

// patience is how long a call waits for the first connection.
func (c *connections) patience() time.Duration { return max(connectWait, c.latency.fixed) }

func (c *connections) close() {
	c.stop()
	c.mu.Lock()
	unused := append(c.idle, c.spare...)
	c.closed, c.live = true, c.live-len(c.idle)
	c.idle, c.spare = nil, nil
	if c.janitor != nil {
		c.janitor.Stop()
	}
	c.mu.Unlock()
	for _, cn := range unused {
		cn.Close()
	}
}
