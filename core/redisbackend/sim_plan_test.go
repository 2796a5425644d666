package redisbackend

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
)

// simPlan is everything that a seed decides. It is drawn before a run.
type simPlan struct {
	seed    uint64
	nodes   int
	sane    bool // leases last as long as they should
	strict  bool // nothing is lost at all
	net     simNet
	offsets []time.Duration // of the nodes' and then the clients' clocks
	faults  []simFault
	clients [][]simStep
	log     bool
	// tidiless: see simWorld.
	tidiless bool
}

type simFaultKind int

const (
	nodeHangs simFaultKind = iota
	nodeIsDown
	nodeIsEmpty // it is down and comes back without data
	leaseEnds   // too soon
	linkIsCut
)

type simFault struct {
	kind          simFaultKind
	at, last      time.Duration
	node, process int
}

// simKind is what a plan is about.
type simKind int

const (
	simMixed    simKind = iota // Everything except faults that lose data or leases.
	simExpiring                // Leases end too soon. Tokens, seals and orphans must be right.
	simEmptying                // Nodes restart empty in turn. Leases and tokens must be right.
	simKinds
)

func newSimPlan(seed uint64, kind simKind) *simPlan {
	r := rand.New(rand.NewPCG(seed, uint64(kind)+7))
	p := &simPlan{seed: seed, nodes: 3 + 2*r.IntN(2), sane: kind != simExpiring}
	loss := []float64{0, .02, .1, .2}[r.IntN(4)]
	p.net = simNet{lost: loss, replyLost: loss / 2, slow: loss, twice: loss, slowest: between(r, time.Millisecond, 200*time.Millisecond)}
	clients := 2 + r.IntN(3)
	for range p.nodes + clients {
		p.offsets = append(p.offsets, between(r, -900*time.Millisecond, 900*time.Millisecond))
	}
	if r.IntN(4) == 0 {
		p.offsets[p.nodes] = 10 * time.Minute // its first client's clock is wrong
	}
	length := 2 * time.Second
	sealing := r.IntN(3) == 0
	if sealing && kind == simMixed {
		p.net.lost, p.net.replyLost = .3, .1
	}
	switch kind {
	case simMixed:
		p.strict = loss == 0 && !sealing && r.IntN(2) == 0
		for range r.IntN(4) {
			if p.strict {
				break
			}
			k := []simFaultKind{nodeHangs, nodeIsDown, linkIsCut}[r.IntN(3)]
			p.faults = append(p.faults, simFault{k, between(r, 0, length), between(r, 0, 800*time.Millisecond), r.IntN(p.nodes), r.IntN(clients)})
		}
	case simExpiring:
		for range 2 + r.IntN(8) {
			k := []simFaultKind{leaseEnds, leaseEnds, linkIsCut, nodeIsDown}[r.IntN(4)]
			p.faults = append(p.faults, simFault{k, between(r, 0, length), between(r, 0, 500*time.Millisecond), r.IntN(p.nodes), r.IntN(clients)})
		}
	case simEmptying:
		length = 12 * time.Second
		for at := between(r, 0, time.Second); at < length; at += between(r, 3500*time.Millisecond, 6*time.Second) {
			p.faults = append(p.faults, simFault{nodeIsEmpty, at, between(r, 0, 100*time.Millisecond), r.IntN(p.nodes), 0})
		}
	}
	for range clients {
		p.clients = append(p.clients, newSimSteps(r, kind, length, sealing))
	}
	return p
}

func newSimSteps(r *rand.Rand, kind simKind, length time.Duration, sealing bool) (steps []simStep) {
	orphans := kind != simEmptying && r.IntN(2) == 0
	for at := time.Duration(0); at < length && len(steps) < 6 || kind == simEmptying && at < length; {
		s := simStep{
			think: between(r, 0, 300*time.Millisecond), ttl: between(r, 100*time.Millisecond, 500*time.Millisecond),
			tries: 1 + r.IntN(12), hold: between(r, 0, 150*time.Millisecond), extends: r.IntN(3),
			adopt: r.IntN(2) == 0, reach: r.Uint64() & 31,
		}
		if r.IntN(3) == 0 {
			s.bound = between(r, time.Millisecond, 100*time.Millisecond)
		}
		if orphans && r.IntN(2) == 0 {
			s.orphan = time.Hour
		}
		switch n := r.IntN(20); {
		case kind == simEmptying:
			s.ttl, s.extends = simTTL, r.IntN(12)
			s.end = []simEnd{endRelease, endRelease, endNothing}[r.IntN(3)]
		case n < 3:
			s.unseal = true
		case n < 5:
			s.inspect = true
		default:
			s.end = []simEnd{endRelease, endRelease, endSeal, endSeal, endCrashInSeal, endNothing}[r.IntN(6)]
		}
		if sealing && kind != simEmptying {
			s.ttl, s.hold, s.extends = between(r, 70*time.Millisecond, 150*time.Millisecond), between(r, 0, 20*time.Millisecond), 0
			s.end = []simEnd{endSeal, endCrashInSeal, endCrashInSeal, endRelease}[r.IntN(4)]
		}
		at += s.think + s.hold*time.Duration(1+s.extends)
		steps = append(steps, s)
	}
	return steps
}

// strike makes a fault happen.
func (w *simWorld) strike(f simFault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("fault %+v", f)
	h, until := w.nodes[f.node], time.Now().Add(f.last)
	switch f.kind {
	case nodeHangs:
		h.hangs = until
	case nodeIsEmpty:
		clear(h.data)
		h.down = until
		h.restart(f.last)
	case nodeIsDown:
		h.down = until
		h.restart(f.last)
	case leaseEnds:
		delete(h.data, simKey)
	case linkIsCut:
		w.cut[[2]int{f.process, f.node}] = until
	}
}

// simulate runs a plan in a bubble of its own.
func simulate(t *testing.T, p *simPlan, off simRules) (h *simHistory, w *simWorld, bad []string) {
	synctest.Test(t, func(*testing.T) {
		w = newSimWorld(p.seed, p.nodes, off)
		w.net, w.log, w.tidiless = p.net, p.log, p.tidiless
		for i, n := range w.nodes {
			n.offset = p.offsets[i]
			n.restart(-time.Hour)
		}
		h = newSimHistory(p.sane)
		for _, f := range p.faults {
			time.AfterFunc(f.at, func() { w.strike(f) })
		}
		var all sync.WaitGroup
		for i, steps := range p.clients {
			c := &simClient{id: i, q: w.process(i, p.offsets[p.nodes+i]), w: w, h: h, strict: p.strict}
			all.Go(func() { c.run(steps) })
		}
		all.Wait()
		w.heal()
		time.Sleep(4 * time.Second) // leases end, and nodes abstain no more
		(&simClient{id: len(p.clients), q: w.process(len(p.clients), 0), w: w, h: h, strict: true}).finish()
		time.Sleep(20 * time.Second)
	})
	return h, w, h.violations()
}

// finish checks that the key can be used when all is well again.
func (c *simClient) finish() {
	s := simStep{ttl: simTTL}
	adopt := ""
	for range 6 {
		g, _, err := c.acquire(s, adopt)
		var orphaned *core.OrphanedError
		switch {
		case err == nil:
			if err := c.q.Seal(context.Background(), g, []byte("last"), time.Hour); err != nil {
				c.h.violate("liveness", "Seal: %v", err)
			}
			if st, err := c.q.Inspect(context.Background(), simKey); err != nil || st.Status != core.Sealed || string(st.Value) != "last" {
				c.h.violate("liveness", "Inspect after Seal: %v %q, %v", st.Status, st.Value, err)
			}
			return
		case errors.Is(err, core.ErrSealed):
			if err := c.q.Unseal(context.Background(), simKey); err != nil {
				c.h.violate("liveness", "Unseal: %v", err)
			}
			c.h.add(simOp{kind: opUnseal, client: c.id, sure: true, call: c.h.now(), ret: c.h.now()})
		case errors.As(err, &orphaned):
			adopt = orphaned.Owner
		}
		c.q.pause(context.Background(), 20*time.Millisecond)
	}
	c.h.violate("liveness", "the key cannot be had when all is well")
}
