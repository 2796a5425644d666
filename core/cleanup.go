package core

import (
	"context"
	"errors"
	"sync"
	"time"
)

// A request may be under way longer than its caller waits, and a release on another connection may overtake it: whatever a release
// finds, it is sent again after these pauses.
var overtaken = [...]time.Duration{20 * time.Millisecond, 200 * time.Millisecond, 2 * time.Second}

const (
	maxCleaning  = 4096 // clean-ups of one node that wait
	cleaners     = 4    // of one node, while there is something to clean up
	firstCleanUp = 10 * time.Millisecond
	lastCleanUp  = time.Second // between tries
)

// cleaning is what calls of unknown outcome may have left on one node. A few goroutines see to it while there is something; a
// node that hangs for a while loses thousands of calls, and each of them may have left a key.
type cleaning struct {
	max int

	mu      sync.Mutex
	waiting []cleanUp
	later   int // clean-ups that are to be done again after a pause
	workers int
	warned  int64 // in which second something was said
}

// cleanUp is a lease that must not stay, and when it has lapsed by itself.
type cleanUp struct {
	grant Grant
	until time.Time
	again int // how often it was done
}

func newCleaning(max int) *cleaning { return &cleaning{max: max} }

// add says whether there is room, and whether the caller should be one more worker.
func (c *cleaning) add(u cleanUp) (room, work bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if u.again > 0 {
		c.later--
	} else if len(c.waiting)+c.later >= c.max {
		return false, false
	}
	c.waiting = append(c.waiting, u)
	if work = c.workers < cleaners; work {
		c.workers++
	}
	return true, work
}

// next takes the oldest, or ends a worker.
func (c *cleaning) next(over bool) (u cleanUp, more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) == 0 || over {
		c.workers--
		c.waiting = nil // no room is kept for it
		return u, false
	}
	u, c.waiting = c.waiting[0], c.waiting[1:]
	return u, true
}

// again puts back what could not be done.
func (c *cleaning) again(u cleanUp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, u)
}

// wait counts one that comes again.
func (c *cleaning) wait() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.later++
}

// quiet says whether nothing was said in this second.
func (c *cleaning) quiet() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now().Unix()
	said := c.warned == now
	c.warned = now
	return !said
}

// cleanUp releases what a call of unknown outcome may have left behind: in the background, once a call that was
// given up has returned, for at most ttl, after which it has lapsed.
func (b *redisBackend) cleanUp(g Grant, ttl time.Duration, late <-chan struct{}) {
	switch {
	case ttl <= 0 || b.done.Err() != nil:
	case late == nil:
		b.cleanUpSoon(g, ttl)
	default: // it may have its effect at any time until then; there are at most maxStuck of them
		go func() {
			select {
			case <-late:
				b.cleanUpSoon(g, ttl)
			case <-b.done.Done():
			}
		}()
	}
}

func (b *redisBackend) cleanUpSoon(g Grant, ttl time.Duration) {
	b.cleanUpNow(cleanUp{grant: g, until: time.Now().Add(ttl)})
}

func (b *redisBackend) cleanUpNow(u cleanUp) {
	room, work := b.cleaning.add(u)
	if !room && b.cleaning.quiet() {
		b.logger.Warn("core: too many clean-ups under way; keys stay held until their leases end", "key", u.grant.Key, "until", u.until)
	}
	if work {
		go b.cleanAll()
	}
}

// cleanUpAgain does after a pause what was done just now.
func (b *redisBackend) cleanUpAgain(u cleanUp) {
	if u.again == len(overtaken) || time.Until(u.until) < overtaken[u.again] {
		return
	}
	pause := overtaken[u.again]
	u.again++
	b.cleaning.wait()
	time.AfterFunc(pause, func() {
		if b.done.Err() == nil {
			b.cleanUpNow(u)
		}
	})
}

// cleanAll works until there is nothing to clean up.
func (b *redisBackend) cleanAll() {
	pause := firstCleanUp
	for {
		u, more := b.cleaning.next(b.done.Err() != nil)
		if !more {
			return
		}
		err := b.clean(u)
		switch {
		case err == nil:
			pause = firstCleanUp
			b.cleanUpAgain(u)
			continue
		case b.done.Err() != nil: // closed
		case u.again > 0: // it was done before
			b.cleanUpAgain(u)
		case time.Now().Before(u.until):
			b.cleaning.again(u)
		case b.cleaning.quiet():
			b.logger.Warn("core: clean-up failed; the key was held until its lease ended", "key", u.grant.Key, "error", err)
		}
		select {
		case <-time.After(b.jitter(pause)):
			pause = min(2*pause, lastCleanUp)
		case <-b.done.Done():
		}
	}
}

// clean makes one try.
func (b *redisBackend) clean(u cleanUp) error {
	if b.breaker != nil && b.breaker.leaveOut(time.Now()) {
		return errLeftOut
	}
	ctx, cancel := context.WithDeadline(b.done, u.until)
	defer cancel()
	_, err := b.call(ctx, u.grant.Key, releaseScript, []string{u.grant.Key}, u.grant.Owner, b.channel(u.grant.Key))
	if errors.Is(err, ErrUnavailable) {
		return err
	}
	return nil
}
