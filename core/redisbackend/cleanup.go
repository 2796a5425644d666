package redisbackend

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/loglimit"
)

const (
	maxCleaning  = 1 << 14 // clean-ups of one node that wait
	cleaners     = 4       // of one node, while there is something to clean up
	firstCleanUp = 10 * time.Millisecond
	lastCleanUp  = time.Second
	// A Redis that hung runs a call when it goes on, however long that takes. cleanUpFor is how long
	// a clean-up is tried at least.
	cleanUpFor = 2 * time.Minute
)

// overtaken are the pauses after which a clean-up that succeeded is done again. The request may be
// under way longer than its caller waits, and a release on another connection may overtake it.
var overtaken = [...]time.Duration{20 * time.Millisecond, 200 * time.Millisecond, 2 * time.Second, 10 * time.Second}

// cleaning is what calls of unknown outcome may have left on one node. A few goroutines see to it
// while there is something.
type cleaning struct {
	mu      sync.Mutex
	waiting []cleanUp
	later   int // clean-ups that come back after a pause
	workers int
}

// cleanUp is a lease that must not stay.
type cleanUp struct {
	key, owner string
	until      time.Time
	again      int // how often it was done
}

func newCleaning() *cleaning { return new(cleaning) }

// cleanUp releases in the background what a call of unknown outcome may have left under key in the
// name of owner. It tries until that is definite, or until has passed. Then it releases once more,
// since a request may be under way longer than its caller waits. If late is not nil, the call is
// still under way until late is closed.
func (n *node) cleanUp(key, owner string, until time.Time, late <-chan struct{}) {
	if n.done.Err() != nil {
		return
	}
	if soonest := time.Now().Add(cleanUpFor); until.Before(soonest) {
		until = soonest
	}
	u := cleanUp{key: key, owner: owner, until: until}
	if late == nil {
		n.clean(u)
		return
	}
	// The call may have its effect at any time until then. There are few of them: calls are bounded.
	go func() {
		select {
		case <-late:
			n.clean(u)
		case <-n.done.Done():
		}
	}()
}

// clean gives u to a worker.
func (n *node) clean(u cleanUp) {
	c := n.cleaning
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting)+c.later >= maxCleaning {
		loglimit.Later(n.logger, slog.LevelWarn,
			"redisbackend: too many clean-ups wait, so that keys of failed calls may stay held until their leases end; look at this Redis",
			"redis", n.conn.Address(), "waiting", len(c.waiting)+c.later, "key", u.key)
		return
	}
	c.waiting = append(c.waiting, u)
	if c.workers < cleaners {
		c.workers++
		go n.cleanAll()
	}
}

// cleanLater repeats a clean-up after a pause.
func (n *node) cleanLater(u cleanUp) {
	if u.again == len(overtaken) {
		return
	}
	wait := overtaken[u.again]
	u.again++
	c := n.cleaning
	c.mu.Lock()
	c.later++
	c.mu.Unlock()
	time.AfterFunc(wait, func() {
		c.mu.Lock()
		c.later--
		c.mu.Unlock()
		if n.done.Err() == nil {
			n.clean(u)
		}
	})
}

// next takes the oldest clean-up, or ends a worker.
func (c *cleaning) next(over bool) (u cleanUp, more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) == 0 || over {
		c.workers--
		c.waiting = nil // no room is kept for them
		return u, false
	}
	u, c.waiting = c.waiting[0], c.waiting[1:]
	return u, true
}

// putBack keeps what could not be done now.
func (c *cleaning) putBack(u cleanUp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, u)
}

// cleanAll works until there is nothing to clean up. While the node does not answer, each worker has
// one clean-up in hand and tries ever more seldom.
func (n *node) cleanAll() {
	wait := firstCleanUp
	for {
		u, more := n.cleaning.next(n.done.Err() != nil)
		if !more {
			return
		}
		err := n.cleanOnce(u)
		if err == nil {
			wait = firstCleanUp
			n.cleanLater(u)
			continue
		}
		if time.Now().Before(u.until) {
			n.cleaning.putBack(u)
		} else {
			loglimit.Later(n.logger, slog.LevelWarn, "redisbackend: clean-up given up, so that the key of a failed call may stay held until its lease ends; look at this Redis",
				"redis", n.conn.Address(), "waiting", n.cleaning.backlog(), "key", u.key, "error", err)
		}
		pause(n.done, n.jitter(wait))
		wait = min(2*wait, lastCleanUp)
	}
}

// cleanOnce makes one try. The error is nil if Redis answered.
func (n *node) cleanOnce(u cleanUp) error {
	ctx, cancel := context.WithDeadline(n.done, u.until)
	defer cancel()
	_, _, err := send(ctx, n.router, u.key, n.freeing(u.key, u.owner))
	if errors.Is(err, core.ErrUnavailable) {
		return err
	}
	return nil
}

// backlog returns how many clean-ups wait for Redis.
func (c *cleaning) backlog() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting)
}
