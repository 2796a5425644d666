package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

const (
	// largestBatch bounds a pipeline, so that its answers come while they are waited for.
	largestBatch = 256
	// longestShared is the size of a call that still shares a pipeline.
	longestShared = 16 << 10
	// slowestWrite is how many bytes a second a large value is given time for.
	slowestWrite = 4 << 20
)

// errReplica ends a connection, and the idle ones with it. See driver.FromReplica. A new connection
// is kept for a while: the next one would lead to the same replica, which still answers reads.
var errReplica = fmt.Errorf("redisbackend: this Redis is a replica: %w", net.ErrClosed)

var errSilentNode = errors.New("redisbackend: this Redis does not answer the calls before this one")

// call is what one caller sends: one command, or two that belong together.
type call struct {
	commands []*command
	size     int
	caller   time.Time // the deadline of the caller's context, or zero
	queued   time.Time // since when it waits for a connection

	done chan struct{} // closed when it was answered, or will not be sent
	err  error         // why it was not sent, or the first command's error

	// guarded by connections.mu
	taken bool // it is being sent, or will not be
}

func (w *call) finish(err error) {
	w.err = err
	close(w.done)
}

// do sends commands and returns the first one's error. If a connection is idle, the caller uses it;
// else the call waits for one. If ctx ends while the call is under way, late is closed when it
// ended.
func (c *connections) do(ctx context.Context, commands ...*command) (late <-chan struct{}, err error) {
	now := time.Now()
	if err := contextError(ctx); err != nil {
		return nil, notSent(err)
	}
	caller, _ := ctx.Deadline()
	c.mu.Lock()
	if c.crowdedLocked(0) {
		// It goes along with others.
	} else if cn := c.take(now); cn != nil {
		c.useLocked(cn, 1)
		c.mu.Unlock()
		c.put(cn, c.exec(cn, commands, sizeOf(commands), caller, now))
		return nil, commands[0].Err
	}
	w := &call{commands: commands, size: sizeOf(commands), caller: caller, done: make(chan struct{})}
	err = c.enqueue(w, now)
	c.mu.Unlock()
	if err != nil {
		return nil, notSent(err)
	}
	select {
	case <-w.done:
		return nil, w.err
	case <-ctx.Done():
	}
	if c.withdraw(w) {
		return nil, notSent(ctx.Err())
	}
	select {
	case <-w.done: // just now
		return nil, w.err
	default:
		return w.done, ctx.Err()
	}
}

// enqueue makes a call wait for a connection. c.mu is held.
func (c *connections) enqueue(w *call, now time.Time) error {
	c.grow(now)
	if err := c.hopeless(now); err != nil {
		return err
	}
	w.queued = now
	c.waiting = append(c.waiting, w)
	c.relieveLocked()
	if !c.armed {
		c.armed = true
		time.AfterFunc(c.untilLocked(w).Sub(now), c.expire)
	}
	return nil
}

// untilLocked returns how long a call waits for a connection: until Redis has been silent for as long
// as a call may take. However many calls there are, none is given up while Redis answers.
func (c *connections) untilLocked(w *call) time.Time {
	if c.live == 0 {
		return c.since.Add(c.patience())
	}
	last := w.queued
	if c.heard.After(last) {
		last = c.heard
	}
	return last.Add(c.latency.timeout() + c.replicas.patience(time.Time{}, last))
}

// withdraw takes back a call that was not sent yet. It reports whether it did.
func (c *connections) withdraw(w *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.taken {
		return false
	}
	w.taken = true
	return true
}

// expire gives up the calls that waited too long.
func (c *connections) expire() {
	c.mu.Lock()
	now := time.Now()
	var over []*call
	var next time.Time
	left := c.waiting[:0]
	for _, w := range c.waiting {
		if w.taken {
			continue
		}
		until := c.untilLocked(w)
		if !now.Before(until) {
			w.taken = true
			over = append(over, w)
			continue
		}
		left = append(left, w)
		if next.IsZero() || until.Before(next) {
			next = until
		}
	}
	clear(c.waiting[len(left):])
	c.waiting, c.armed = left, len(left) > 0
	if c.armed {
		time.AfterFunc(next.Sub(now), c.expire)
	}
	why := errConnecting
	if c.live > 0 {
		why = errSilentNode
	}
	c.mu.Unlock()
	for _, w := range over {
		w.finish(notSent(why))
	}
}

// nextBatch takes the calls that go together next, or nil. A large call goes alone: it would hold
// up the others. c.mu is held.
func (c *connections) nextBatch() []*call {
	var batch []*call
	i := 0
	for ; i < len(c.waiting) && len(batch) < largestBatch; i++ {
		w := c.waiting[i]
		if w.taken {
			continue
		}
		if w.size > longestShared {
			if len(batch) == 0 {
				w.taken = true
				batch = []*call{w}
				i++
			}
			break
		}
		w.taken = true
		batch = append(batch, w)
	}
	clear(c.waiting[:i])
	if c.waiting = c.waiting[i:]; len(c.waiting) == 0 {
		c.waiting = nil
	}
	return batch
}

// run sends a batch, and then what gathered meanwhile, as long as calls wait. A goroutine for each
// batch would have to make its stack larger each time.
func (c *connections) run(cn *connection, batch []*call) {
	for batch != nil {
		err := c.sendBatch(cn, batch)
		for _, w := range batch {
			if w.err == nil {
				w.err = w.commands[0].Err
			}
			close(w.done)
		}
		if len(batch) > 1 {
			runtime.Gosched() // those that were answered may have another call, which goes along
		}
		batch = c.next(cn, err)
	}
}

// sendBatch sends the calls whose callers still wait. The error is the connection's.
func (c *connections) sendBatch(cn *connection, batch []*call) error {
	now := time.Now()
	var commands []*command
	var caller time.Time
	size, bounded := 0, true
	for _, w := range batch {
		if !w.caller.IsZero() && !now.Before(w.caller) {
			w.err = notSent(context.DeadlineExceeded)
			continue
		}
		commands = append(commands, w.commands...)
		size += w.size
		bounded = bounded && !w.caller.IsZero()
		if w.caller.After(caller) {
			caller = w.caller
		}
	}
	if len(commands) == 0 {
		return nil
	}
	if !bounded {
		caller = time.Time{}
	}
	return c.exec(cn, commands, size, caller, now)
}

// exec sends commands on a connection, waits for their replies and notes how long that took. The
// error is the connection's.
func (c *connections) exec(cn *connection, commands []*command, size int, caller, now time.Time) error {
	if err := c.allowed(); err != nil {
		for _, c := range commands {
			c.Err = err
		}
		return nil
	}
	patience := c.replicas.patience(caller, now)
	limit := c.latency.timeout() + patience
	commands = c.replicas.withWait(commands, patience)
	cn.used = now
	end := now.Add(limit).Add(time.Duration(size) * (time.Second / slowestWrite)) // limit may be the longest duration
	err := cn.Exec(commands, end, caller)
	switch {
	case err == nil:
		if c.replicas == nil && size <= longestShared && answerSize(commands) <= longestShared {
			c.latency.answered(time.Since(now))
		}
	case isTimeout(err) && (caller.IsZero() || now.Add(limit).Before(caller)):
		c.latency.exceeded(limit)
		err = noAnswer(limit, err)
		for _, c := range commands {
			if isTimeout(c.Err) {
				c.Err = err
			}
		}
	}
	c.report(err)
	c.replicas.confirm(commands)
	if err == nil && now.Sub(cn.made) > longestDialPause && driver.FromReplica(commands) {
		err = errReplica
	}
	return err
}

// allowed asks the application's Limiter, once for each pipeline. A call that it refuses was not sent.
func (c *connections) allowed() error {
	if c.node.Limiter == nil {
		return nil
	}
	if err := recovered("Limiter", c.node.Limiter.Allow); err != nil {
		return notSent(err)
	}
	return nil
}

// report tells the Limiter how a pipeline ended. An answer of any kind is no failure.
func (c *connections) report(err error) {
	if c.node.Limiter != nil {
		_ = recovered("Limiter", func() error { c.node.Limiter.ReportResult(err); return nil })
	}
}

func sizeOf(commands []*command) (size int) {
	for _, c := range commands {
		size += c.Size()
	}
	return size
}

// answerSize returns about how many bytes the replies have.
func answerSize(commands []*command) (size int) {
	for _, c := range commands {
		switch v := c.Value.(type) {
		case string:
			size += len(v)
		case []any:
			for _, field := range v {
				text, _ := field.(string)
				size += len(text)
			}
		}
	}
	return size
}
