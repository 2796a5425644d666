package core

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

const (
	breakerFailures = 3           // in a row, and over at least one node time-out, before a node is left out
	breakerCoolDown = time.Second // then one caller asks it again
)

var errLeftOut = errors.New("core: it is left out, since it kept not answering")

// breaker says whether a node of a quorum is asked for new leases. One that keeps not answering is left out of Acquire for a
// cool-down, and then probed by one caller; any answer, of whatever call, brings it back. (Nygard, "Release It!", 2007.)
type breaker struct {
	timeout  time.Duration // of a call
	coolDown time.Duration
	changed  func(out bool, why error)                    // may be nil; called without the lock
	excluded func(node int, reason string, excluded bool) // may be nil; counts the nodes that are not asked

	restarted atomic.Bool // it abstains

	mu       sync.Mutex
	failures int
	since    time.Time // the first of them
	out      bool
	probeAt  time.Time // from then on the next caller asks a node that is out
}

func newBreaker(timeout time.Duration) *breaker {
	return &breaker{timeout: timeout, coolDown: breakerCoolDown}
}

// note takes a call's outcome into account. caller is the error of the caller's context: when that has ended the call, the node
// is not to blame.
func (b *breaker) note(err, caller error) {
	answered := err == nil || serverReply(err)
	if !answered && caller != nil {
		return
	}
	b.mu.Lock()
	was := b.out
	switch now := time.Now(); {
	case answered:
		b.failures, b.out = 0, false
	case b.failures == 0:
		b.failures, b.since = 1, now
	default:
		if b.failures++; b.failures >= breakerFailures && now.Sub(b.since) >= b.timeout && !b.out {
			b.out, b.probeAt = true, now.Add(b.coolDown)
		}
	}
	out := b.out
	b.mu.Unlock()
	if out != was && b.changed != nil {
		b.changed(out, err)
	}
}

func (b *breaker) isOut() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.out
}

// leaveOut says whether an Acquire goes without the node. Once per cool-down it does not: that call is the probe.
func (b *breaker) leaveOut(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.out && !now.Before(b.probeAt) {
		b.probeAt = now.Add(b.coolDown)
		return false
	}
	return b.out
}

// probeNow makes the next Acquire ask the node.
func (b *breaker) probeNow() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probeAt = time.Time{}
}

// voters are the nodes that an Acquire asks, and those that it leaves out as a set of bits: none when those that are left could
// not make a majority, since then any that comes back is needed at once.
func (q *quorum) voters() (nodes []int, leftOut uint64) {
	out := 0
	for _, n := range q.nodes {
		if n.breaker.isOut() {
			out++
		}
	}
	if out == 0 || out > len(q.nodes)-q.majority() {
		return q.all(), 0
	}
	now := time.Now()
	for i, n := range q.nodes {
		if i < 64 && n.breaker.leaveOut(now) {
			leftOut |= 1 << i
		} else {
			nodes = append(nodes, i)
		}
	}
	return nodes, leftOut
}

// askedFor are the nodes that were asked for a lease. The others cannot hold it, and are counted as if they had said so.
func (q *quorum) askedFor(g Grant) (nodes []int, v votes) {
	if g.leftOut == 0 {
		return q.all(), v
	}
	for i := range q.nodes {
		if g.leftOut&(1<<i) == 0 {
			nodes = append(nodes, i)
		}
	}
	v.no, v.lost = len(q.nodes)-len(nodes), (&reply{status: 4}).lost()
	return nodes, v
}

// report logs that node i is left out, or back, and tells whoever counts it.
func (q *quorum) report(c *config, i int) func(out bool, why error) {
	return func(out bool, why error) {
		if out {
			c.logger.Warn("core: a node of the quorum keeps not answering; new locks go without it until it does", "node", i+1, "error", why)
		} else {
			c.logger.Info("core: a node of the quorum answers again", "node", i+1)
		}
		c.telemetry.excluded(i+1, "timeouts", out)
	}
}

// abstention notes whether node i has just been restarted, for the log and whoever counts it.
func (q *quorum) abstention(i int, restarted bool) {
	n := q.nodes[i]
	if n.breaker.restarted.Load() == restarted || !n.breaker.restarted.CompareAndSwap(!restarted, restarted) {
		return
	}
	if restarted {
		n.logger.Warn("core: a node of the quorum has just started and may have lost what it granted: it grants nothing for one TTL", "node", i+1)
	} else {
		n.logger.Info("core: a node of the quorum that was restarted grants again", "node", i+1)
	}
	if n.breaker.excluded != nil {
		n.breaker.excluded(i+1, "restarted", restarted)
	}
}
