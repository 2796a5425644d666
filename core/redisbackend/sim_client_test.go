package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onelane/onelane/core"
)

type simEnd int

const (
	endRelease simEnd = iota
	endSeal
	endCrashInSeal // the seal reaches some nodes, and the process is gone
	endNothing     // the process is gone
)

// simStep is one thing that a client does.
type simStep struct {
	think   time.Duration
	unseal  bool
	inspect bool

	ttl, orphan time.Duration
	adopt       bool
	tries       int
	bound       time.Duration // of each call; 0: none
	hold        time.Duration
	extends     int
	end         simEnd
	reach       uint64 // the nodes that a crash in a seal reaches
}

// simClient drives the verbs of a Backend.
type simClient struct {
	id     int
	q      *quorum
	w      *simWorld
	h      *simHistory
	leases int
	strict bool // nothing is lost, so that a lease must last until its deadline
}

func (c *simClient) bounded(bound time.Duration) (context.Context, context.CancelFunc) {
	if bound == 0 {
		return context.WithCancel(context.Background())
	}
	return context.WithTimeout(context.Background(), bound)
}

func (c *simClient) run(steps []simStep) {
	for _, s := range steps {
		time.Sleep(s.think)
		switch {
		case s.unseal:
			c.unseal(s)
		case s.inspect:
			c.inspect(s)
		default:
			c.lock(s)
		}
	}
}

func (c *simClient) unseal(s simStep) {
	ctx, cancel := c.bounded(s.bound)
	defer cancel()
	o := simOp{kind: opUnseal, client: c.id, sure: true, call: c.h.now()}
	err := c.q.Unseal(ctx, simKey)
	if o.ret = c.h.now(); err != nil {
		o.sure, o.ret = false, never
	}
	c.h.saw("unseal" + outcomeOf(err))
	c.h.add(o)
}

func (c *simClient) inspect(s simStep) {
	ctx, cancel := c.bounded(s.bound)
	defer cancel()
	o := simOp{client: c.id, sure: true, call: c.h.now()}
	st, err := c.q.Inspect(ctx, simKey)
	o.ret = c.h.now()
	c.h.saw("inspect" + outcomeOf(err))
	if err != nil {
		return
	}
	switch st.Status {
	case core.Free:
		o.kind = opFree
	case core.Sealed:
		o.kind, o.value = opSealed, string(st.Value)
	case core.Orphaned:
		o.kind, o.hold = opOrphaned, c.h.hold(st.Owner)
	default:
		return
	}
	c.h.add(o)
}

func outcomeOf(err error) string {
	for _, e := range []error{core.ErrTaken, core.ErrSealed, core.ErrOrphaned, core.ErrLost, core.ErrUnavailable} {
		if errors.Is(err, e) {
			return ": " + e.Error()
		}
	}
	if err != nil {
		return ": " + err.Error()
	}
	return ": done"
}

// lock acquires the key in a few tries and does with it what the step says.
func (c *simClient) lock(s simStep) {
	adopt := ""
	for range s.tries {
		g, hold, err := c.acquire(s, adopt)
		if err == nil {
			c.hold(s, g, hold)
			return
		}
		var orphaned *core.OrphanedError
		switch {
		case errors.As(err, &orphaned) && s.adopt && adopt == "":
			adopt = orphaned.Owner
		case errors.Is(err, core.ErrSealed), errors.Is(err, core.ErrOrphaned):
			return
		}
		c.q.pause(context.Background(), 40*time.Millisecond)
	}
}

// acquire makes one attempt.
func (c *simClient) acquire(s simStep, adopt string) (core.Grant, *simHold, error) {
	ctx, cancel := c.bounded(s.bound)
	defer cancel()
	c.leases++
	r := core.Request{Key: simKey, Owner: fmt.Sprintf("p%d/%d", c.id, c.leases), TTL: s.ttl, Token: true, Orphan: s.orphan, Adopt: adopt}
	o := simOp{kind: opAcquire, client: c.id, hold: c.h.hold(r.Owner), orphan: s.orphan > 0, sure: true, call: c.h.now()}
	if adopt != "" {
		o.adopts = c.h.hold(adopt)
	}
	g, err := c.q.Acquire(ctx, r)
	o.ret = c.h.now()
	c.h.saw("acquire" + outcomeOf(err))
	var sealed *core.SealedError
	var orphaned *core.OrphanedError
	switch {
	case err == nil:
		o.token = g.Token
		hold := &simHold{client: c.id, token: g.Token, call: o.call, from: o.ret}
		c.h.mu.Lock()
		c.h.holds = append(c.h.holds, hold)
		c.h.mu.Unlock()
		c.h.add(o)
		return g, hold, nil
	case errors.As(err, &sealed):
		o.kind, o.value = opSealed, string(sealed.Value)
		c.h.add(o)
	case errors.As(err, &orphaned):
		o.kind, o.hold = opOrphaned, c.h.hold(orphaned.Owner)
		c.h.add(o)
	case errors.Is(err, core.ErrUnavailable) && s.orphan > 0:
		o.kind, o.sure, o.ret = opGhost, false, never
		c.h.add(o)
		o.kind = opRelease // it is withdrawn in the background
		c.h.add(o)
	case errors.Is(err, core.ErrUnavailable) && adopt != "":
		// It may have voided the orphan, and its lease may end before it can restore it.
		o.kind, o.sure, o.ret, o.hold, o.adopts = opRelease, false, never, o.adopts, 0
		c.h.add(o)
	}
	return g, nil, err
}

// hold is what a holder does until it believes no more that it holds the key.
func (c *simClient) hold(s simStep, g core.Grant, hold *simHold) {
	end := simOp{kind: opEnd, client: c.id, hold: c.h.hold(g.Owner), sure: true}
	for range s.extends {
		time.Sleep(min(s.hold, max(time.Until(g.Deadline), 0)))
		if !time.Now().Before(g.Deadline) {
			break
		}
		ctx, cancel := context.WithDeadline(context.Background(), g.Deadline)
		longer, err := c.q.Extend(ctx, g, s.ttl)
		cancel()
		c.h.saw("extend" + outcomeOf(err))
		if err == nil {
			g = longer
		} else if errors.Is(err, core.ErrLost) {
			c.early("Extend", g, err)
			break
		}
	}
	time.Sleep(s.hold)
	hold.to = min(c.h.now(), g.Deadline.Sub(c.h.start))
	end.call, end.ret = hold.to, hold.to
	c.h.add(end)
	switch s.end {
	case endRelease:
		c.release(s, g)
	case endSeal:
		c.seal(s, g, true)
	case endCrashInSeal:
		c.w.do(func() {
			for i := range c.w.nodes {
				if s.reach&(1<<i) == 0 {
					c.w.cut[[2]int{c.id, i}] = time.Now().Add(time.Second)
				}
			}
		})
		c.seal(s, g, false)
	}
}

// early notices a lease that is called lost while it must be there.
func (c *simClient) early(verb string, g core.Grant, err error) {
	if c.strict && time.Now().Before(g.Deadline) {
		c.h.violate("early loss", "%s: %v, %v before its deadline", verb, err, time.Until(g.Deadline))
	}
}

func (c *simClient) release(s simStep, g core.Grant) {
	ctx, cancel := c.bounded(s.bound)
	defer cancel()
	o := simOp{kind: opRelease, client: c.id, hold: c.h.hold(g.Owner), sure: true, call: c.h.now()}
	_, err := c.q.Release(ctx, g)
	if o.ret = c.h.now(); err != nil {
		o.sure, o.ret = false, never
	}
	c.h.saw("release" + outcomeOf(err))
	if errors.Is(err, core.ErrLost) {
		c.early("Release", g, err)
	}
	c.h.add(o)
}

// seal seals, and tries once more if the outcome is unknown. A process that crashed does not learn it.
func (c *simClient) seal(s simStep, g core.Grant, alive bool) {
	hold := c.h.hold(g.Owner)
	o := simOp{kind: opSeal, client: c.id, hold: hold, value: fmt.Sprint("v", hold), call: c.h.now()}
	unknown := false
	for range 2 {
		ctx, cancel := c.bounded(s.bound)
		err := c.q.Seal(ctx, g, []byte(o.value), time.Hour)
		cancel()
		c.h.saw("seal" + outcomeOf(err))
		o.sure = err == nil && alive
		unknown = unknown || err == nil && !alive || errors.Is(err, core.ErrUnavailable)
		if errors.Is(err, core.ErrLost) {
			c.early("Seal", g, err)
		}
		if !errors.Is(err, core.ErrUnavailable) || !alive {
			break
		}
	}
	if o.ret = c.h.now(); !o.sure {
		o.ret = never
	}
	if o.sure || unknown {
		c.h.add(o)
	}
}
