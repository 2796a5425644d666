//go:build !race

package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/leases"
)

// simFaults are those of a random run. Clients die, and are slow, in all of them.
type simFaults struct {
	nodeOff, clientOff time.Duration   // clocks are off true time by at most this.
	badNode, badClient time.Duration   // node 0 and client 0 are off by this instead, if not 0.
	steps              bool            // the nodes' clocks step within nodeOff.
	back               time.Duration   // all nodes' clocks step back by this, once.
	restarts           simRestarts     // of nodes.
	ttls               []time.Duration // of the clients.
	length             time.Duration   // of a run.
	owners             bool            // R2: the attempts of a client share an owner.
	late               bool            // R1: a renewal counts that comes late.
}

type simRestarts int

const (
	simEach simRestarts = iota // each node for itself
	simAll                     // all at once
	simNone
)

// tokensOnly reports whether leases may break: then tokens go up in the order of the calls.
func (f simFaults) tokensOnly() bool { return f.steps || f.back > 0 }

func inside() simFaults {
	const ms, s = time.Millisecond, time.Second
	return simFaults{nodeOff: s, clientOff: s, ttls: []time.Duration{300 * ms, s, 3 * s, 6 * s}, length: 30 * s}
}

// simRun is one random run.
type simRun struct {
	*simWorld
	simFaults
	end     time.Time
	running sync.WaitGroup
	holds   []*simHold
	newest  uint64 // the largest token so far
	tokens  map[uint64]bool
	count   simCount
	bad     string // the first violation
}

type simCount struct{ runs, attempts, holds, renewals, losses, violations int }

func (c *simCount) add(o simCount, bad string) {
	c.runs++
	c.attempts += o.attempts
	c.holds += o.holds
	c.renewals += o.renewals
	c.losses += o.losses
	if bad != "" {
		c.violations++
	}
}

// simHold is what a client believes to hold.
type simHold struct {
	owner string
	token uint64
	ends  time.Time // its deadline, or when it was over
	over  bool
}

// simulate runs a seed in its own bubble.
func simulate(t *testing.T, l *simLua, seed uint64, nodes int, f simFaults, prepare func(*simWorld)) (run *simRun) {
	synctest.Test(t, func(*testing.T) {
		r := rand.New(rand.NewPCG(seed, uint64(nodes)))
		run = &simRun{simFaults: f, end: time.Now().Add(f.length), tokens: make(map[uint64]bool)}
		var longest time.Duration
		clients := make([]simClient, 2+r.IntN(2))
		for i := range clients {
			clients[i] = simClient{simRun: run, id: i, rand: rand.New(rand.NewPCG(seed, uint64(i)+1<<32)), ttl: f.ttls[r.IntN(len(f.ttls))],
				timeout: 300 * time.Millisecond, offset: edge(r, f.clientOff)}
			if longest = max(longest, clients[i].ttl); r.IntN(3) == 0 {
				clients[i].timeout = clients[i].ttl // answers may be slow
			}
			if i == 0 && f.badClient != 0 {
				clients[i].offset = f.badClient
			}
		}
		w := newSimWorld(seed, nodes, longest, l)
		run.simWorld = w
		w.net = simNet{lost: []float64{0, .03, .2}[r.IntN(3)], late: .08, latest: 6 * time.Second, twice: .05}
		for i, h := range w.nodes {
			h.offset, h.phase = edge(r, max(f.nodeOff-20*time.Millisecond, 0)), between(r, 1, 8*time.Second)
			if i == 0 && f.badNode != 0 {
				h.offset = f.badNode
			}
			h.begin()
			h.started -= 24 * 3600 * 1e6
			h.saves = []int64{0, 0, 20}[r.IntN(3)]
			h.denied = []string{"", "", "LASTSAVE"}[r.IntN(3)]
		}
		if prepare != nil {
			prepare(w)
		}
		for i := range clients {
			run.running.Go(clients[i].loop)
		}
		run.strike(r)
		run.running.Wait()
		time.Sleep(30 * time.Second) // what is under way ends
		close(w.jobs)
	})
	if run.bad == "" && run.broken != nil {
		run.bad = run.broken.Error()
	}
	return run
}

// edge picks a difference of clocks of at most d, often d itself.
func edge(r *rand.Rand, d time.Duration) time.Duration {
	if r.IntN(2) == 0 {
		return []time.Duration{-d, d}[r.IntN(2)]
	}
	return between(r, -d, d)
}

func (run *simRun) over() bool {
	over := false
	run.do(func() { over = run.bad != "" || !time.Now().Before(run.end) })
	return over
}

// strike starts what makes faults happen.
func (run *simRun) strike(r *rand.Rand) {
	every := func(most time.Duration, fn func(r *rand.Rand)) {
		r := rand.New(rand.NewPCG(r.Uint64(), 1))
		run.running.Go(func() {
			for time.Sleep(between(r, 1, most)); !run.over(); time.Sleep(between(r, 1, most)) {
				fn(r)
			}
		})
	}
	down := func(r *rand.Rand, i int) {
		run.do(func() { run.nodes[i].down = true })
		d := between(r, 0, 20*time.Millisecond)
		if r.IntN(3) == 0 && run.restarts == simEach {
			d = between(r, 0, 8*time.Second)
		}
		time.Sleep(d)
		run.restart(i, []string{simKeep, simEmpty, simOld, simOld}[r.IntN(4)], r.IntN(100))
	}
	gap := []time.Duration{8 * time.Second, 20 * time.Second, 60 * time.Second}[r.IntN(3)]
	for i, h := range run.nodes {
		if run.restarts == simEach {
			every(gap, func(r *rand.Rand) { down(r, i) })
		}
		if run.steps {
			every(20*time.Second, func(r *rand.Rand) {
				run.do(func() { h.offset = edge(r, run.nodeOff-20*time.Millisecond) })
			})
		}
	}
	if run.restarts == simAll {
		every(40*time.Second, func(r *rand.Rand) {
			for i := range run.nodes {
				down(r, i)
			}
			time.Sleep(time.Second)
		})
	}
	if run.back > 0 {
		time.AfterFunc(between(r, 0, run.length), func() {
			run.do(func() {
				for _, h := range run.nodes {
					h.offset -= run.back
				}
			})
		})
	}
	every(4*time.Second, func(r *rand.Rand) { // a process is cut off from a node
		run.do(func() {
			run.cut[[2]int{r.IntN(max(run.processes, 1)), r.IntN(len(run.nodes))}] = time.Now().Add(between(r, 0, 2*run.longest))
		})
	})
}

// simClient is one process, and the next one after it died.
type simClient struct {
	*simRun
	id              int
	rand            *rand.Rand
	q               *quorum
	ttl             time.Duration
	timeout, offset time.Duration
	attempts, burst int
	failures        int // in a row
}

func (c *simClient) loop() {
	time.Sleep(time.Duration(c.id + 1)) // processes begin one after the other
	for !c.over() {
		if c.q == nil {
			c.do(func() { c.q = c.process(c.offset, c.timeout) })
		}
		if time.Sleep(c.idle()); c.over() {
			return
		}
		g, h, ok := c.acquire()
		if ok {
			c.failures = 0
			c.use(g, h)
			continue
		}
		c.failures = min(c.failures+1, 5)
		time.Sleep(between(c.rand, 1, 200*time.Millisecond<<c.failures))
	}
}

// idle picks how long the client does nothing. Some calls follow one another at once.
func (c *simClient) idle() time.Duration {
	if c.burst > 0 {
		c.burst--
		return between(c.rand, 1, 10*time.Millisecond)
	}
	if c.rand.IntN(10) == 0 {
		c.burst = c.rand.IntN(5)
	}
	switch c.rand.IntN(8) {
	case 0:
		return between(c.rand, 1, 5*time.Millisecond)
	case 1, 2, 3:
		return between(c.rand, 1, 300*time.Millisecond)
	case 7:
		return between(c.rand, 1, 10*time.Second)
	}
	return between(c.rand, 1, 3*time.Second)
}

// die cuts the process off for good. Another one follows.
func (c *simClient) die() {
	c.do(func() {
		c.cut[[2]int{processOf(c.q), -1}] = time.Now().Add(24 * time.Hour)
		c.noteLocked("process %d dies", processOf(c.q))
	})
	c.q = nil
}

// acquire makes one attempt. Now and then the caller gives up, or the process dies, in the middle.
func (c *simClient) acquire() (g core.Grant, h *simHold, ok bool) {
	c.attempts++
	r := core.Request{Key: simKey, Owner: fmt.Sprintf("%d/%d", c.id, c.attempts), TTL: c.ttl, Token: true}
	if c.owners {
		r.Owner = fmt.Sprint(c.id)
	}
	var before uint64
	c.do(func() {
		before = c.newest
		c.count.attempts++
		c.noteLocked("client %d (process %d, %v off) attempts as %s", c.id, processOf(c.q), c.offset, r.Owner)
	})
	ctx := context.Background()
	switch c.rand.IntN(12) {
	case 0:
		bounded, cancel := context.WithTimeout(ctx, between(c.rand, 1, 5*time.Millisecond))
		defer cancel()
		ctx = bounded
	case 1:
		type result struct {
			g   core.Grant
			err error
		}
		results, q, dies := make(chan result, 1), c.q, between(c.rand, 1, 5*time.Millisecond)
		go func() {
			g, err := q.Acquire(ctx, r)
			results <- result{g, err}
		}()
		select {
		case r := <-results:
			return c.acquired(before, r.g, r.err)
		case <-time.After(dies):
			c.die()
			return g, nil, false
		}
	}
	g, err := c.q.Acquire(ctx, r)
	return c.acquired(before, g, err)
}

// acquired notes what Acquire returned.
func (c *simClient) acquired(before uint64, g core.Grant, err error) (core.Grant, *simHold, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.noteLocked("client %d: unavailable %v", c.id, errors.Is(err, core.ErrUnavailable))
		if !errors.Is(err, core.ErrUnavailable) && !errors.Is(err, core.ErrTaken) {
			c.violateLocked("Acquire: %v", err)
		}
		return g, nil, false
	}
	c.noteLocked("client %d holds as %s: token %d, for %v", c.id, g.Owner, g.Token, time.Until(g.Deadline))
	return g, c.grantedLocked(before, g), true
}

// grantedLocked checks a grant. before is the largest token that was granted before the call.
func (run *simRun) grantedLocked(before uint64, g core.Grant) *simHold {
	now := time.Now()
	run.count.holds++
	run.holds = slices.DeleteFunc(run.holds, func(o *simHold) bool { return o.over || !now.Before(o.ends) })
	if !run.tokensOnly() {
		before = run.newest
		for _, o := range run.holds {
			run.violateLocked("two holders: %s (token %d) and %s (token %d)", o.owner, o.token, g.Owner, g.Token)
		}
		if !now.Before(g.Deadline) {
			run.violateLocked("%s holds after its deadline", g.Owner)
		}
	}
	if g.Token <= before || run.tokens[g.Token] {
		run.violateLocked("token %d of %s, after token %d", g.Token, g.Owner, before)
	}
	run.newest, run.tokens[g.Token] = max(run.newest, g.Token), true
	h := &simHold{owner: g.Owner, token: g.Token, ends: g.Deadline}
	run.holds = append(run.holds, h)
	return h
}

// renewedLocked checks that nobody else holds the key when a renewal succeeds.
func (run *simRun) renewedLocked(h *simHold, g core.Grant) {
	for _, o := range run.holds {
		if o != h && !o.over && time.Now().Before(o.ends) && !run.tokensOnly() {
			run.violateLocked("two holders: %s (token %d) renewed, and %s (token %d)", h.owner, h.token, o.owner, o.token)
		}
	}
	h.ends = g.Deadline
}

// violateLocked notes a violation.
func (run *simRun) violateLocked(format string, args ...any) {
	if run.noteLocked("VIOLATION "+format, args...); run.bad == "" {
		run.bad = fmt.Sprintf(format, args...)
	}
}

// use is what a holder does until it believes no more that it holds the key.
func (c *simClient) use(g core.Grant, h *simHold) {
	left := c.rand.IntN(6)
	if c.rand.IntN(3) == 0 {
		left = 0
	}
	time.Sleep(between(c.rand, 1, c.ttl/3))
	for ; left > 0 && time.Now().Before(h.ends) && !h.over && !c.over(); left-- {
		c.renew(&g, h)
		time.Sleep(between(c.rand, 1, c.ttl/2))
	}
	if !h.over && c.rand.IntN(6) == 0 {
		c.do(func() { h.over = true })
		c.die()
		return
	}
	if c.rand.IntN(8) == 0 && time.Now().Before(h.ends) { // it stands still for too long
		time.Sleep(time.Until(h.ends) + between(c.rand, 1, c.ttl))
	}
	c.do(func() {
		h.over = true
		c.noteLocked("client %d releases as %s", c.id, g.Owner)
	})
	_, _ = c.q.Release(context.Background(), g)
}

func (c *simClient) renew(g *core.Grant, h *simHold) {
	longer, err := c.simFaults.extend(c.q, *g, c.ttl)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noteLocked("client %d renews as %s: %v, lost %v", c.id, g.Owner, err == nil, errors.Is(err, core.ErrLost))
	switch {
	case errors.Is(err, core.ErrLost):
		h.over = true
		c.count.losses++
	case err == nil:
		c.count.renewals++
		c.renewedLocked(h, longer)
		*g = longer
	}
}

// extend calls Extend. With R1, an answer counts that comes late.
func (f simFaults) extend(q *quorum, g core.Grant, ttl time.Duration) (core.Grant, error) {
	asked, deadline := g, leases.Deadline(time.Now(), ttl)
	if f.late {
		asked.Deadline = time.Now().Add(time.Hour)
	}
	longer, err := q.Extend(context.Background(), asked, ttl)
	if f.late && err == nil {
		longer.Deadline = deadline
	}
	return longer, err
}
