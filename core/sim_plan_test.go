package core_test

import (
	"math/rand/v2"
	"slices"
	"time"
)

// simPlan is everything that a seed decides. It is drawn before a run; within it, the fate of a message depends on the seed and
// on what the message says, so that the order in which goroutines happen to run changes nothing.
type simPlan struct {
	seed   uint64
	noting bool // keep what happens on the nodes, to be read
	// sane says that the assumptions hold under which locks exclude each other: nodes keep their data while it matters,
	// and their clocks run like ours within 1 % and never jump forward.
	sane        bool
	nodes, keys int
	processes   int
	age         time.Duration // of the nodes when it begins
	nodeTimeout time.Duration // 0: the default
	pools       bool          // calls that are given up go on, as in a redsync pool; else they end, as in a go-redis client
	net         simNet
	rates       []float64 // of the nodes' clocks
	seals       int       // how often somebody seals, and unseals
	unseals     int
	memory      time.Duration // of seals
	revokes     int           // how many of 20 steps are that
	restarts    bool          // all faults are nodes that restart empty
	faults      []simFault
	clients     [][]simStep
}

// simNet says how likely a message has which fate.
type simNet struct {
	lost, replyLost, broken, refused, slow, twice float64
	slowest                                       time.Duration
}

type faultKind int

const (
	nodeStops    faultKind = iota // SIGSTOP: what arrives is answered when it goes on
	nodeIsDown                    // refuses connections, and keeps its data
	nodeIsEmpty                   // is down and comes back without data
	clockJumps                    // by jump
	linkIsCut                     // between a process and a node
	processStops                  // the holder's pause: nothing leaves or reaches it
	processDies
)

type simFault struct {
	kind          faultKind
	at, last      time.Duration
	node, process int
	jump          time.Duration
}

type endKind int

const (
	byRelease endKind = iota
	bySeal
	byLapse
	byNothing // not renewed, and forgotten
)

// simStep is one thing a client does.
type simStep struct {
	think   time.Duration
	key     int
	unseal  bool
	inspect bool
	revoke  bool
	all     bool // the keys of the plan at once

	try       bool
	wait      time.Duration // for the lock
	deadline  bool          // wait is the context's; else WithWait's
	cancel    time.Duration // the context is cancelled in the middle of it; 0: no
	ttl       time.Duration
	noRenew   bool
	hold      [2]time.Duration // before and after an Extend
	extend    time.Duration    // 0: no
	end       endKind
	retention time.Duration
	bound     time.Duration // of the calls that end it
}

const (
	simLongestTTL = 3 * time.Second
	simGap        = 70 * time.Minute // longer than a counter lives
)

var simTTLs = []time.Duration{300 * time.Millisecond, 300 * time.Millisecond, time.Second, simLongestTTL}

func between(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)))
}

// newPlan draws a plan. focus, where it is not nil, changes what the rest is drawn from.
func newPlan(seed uint64, sane bool, focus func(*simPlan)) *simPlan {
	r := rand.New(rand.NewPCG(seed, 0))
	p := &simPlan{seed: seed, sane: sane, nodes: 1 + 2*r.IntN(3), keys: 1 + r.IntN(2), processes: 2 + r.IntN(2), pools: r.IntN(2) == 0}
	if p.age = 0; r.IntN(3) > 0 {
		p.age = time.Hour
	}
	if r.IntN(2) == 0 {
		p.nodeTimeout = between(r, 10*time.Millisecond, 400*time.Millisecond)
	}
	some := func(most float64) float64 { return []float64{0, most / 4, most}[r.IntN(3)] }
	p.net = simNet{lost: some(.2), replyLost: some(.2), broken: some(.1), refused: some(.05), slow: some(.3), twice: some(.1),
		slowest: []time.Duration{60 * time.Millisecond, 500 * time.Millisecond, 4 * time.Second}[r.IntN(3)]}
	p.seals, p.unseals = []int{1, 4, 16}[r.IntN(3)], []int{0, 1, 6}[r.IntN(3)]
	p.revokes = 1
	p.memory = []time.Duration{0, 0, time.Second}[r.IntN(3)]
	if focus != nil {
		focus(p)
	}
	for range p.nodes {
		p.rates = append(p.rates, 1+(r.Float64()-.5)*.018)
	}
	span := between(r, 2*time.Second, 12*time.Second)
	later := func(at time.Duration) time.Duration { return at } // what happens in the second half
	if r.IntN(4) == 0 {
		later = func(at time.Duration) time.Duration {
			if at > span/2 {
				at += simGap
			}
			return at
		}
	}
	for range r.IntN(8) {
		p.faults = append(p.faults, p.drawFault(r, span, later))
	}
	if p.sane && p.nodes == 1 { // its clock is where tokens come from, when it has no counters any more
		lost := func(f simFault) bool { return f.kind == nodeIsEmpty }
		if slices.ContainsFunc(p.faults, lost) {
			p.faults = slices.DeleteFunc(p.faults, func(f simFault) bool { return f.kind == clockJumps })
		}
	}
	for range p.processes * (1 + r.IntN(3)) {
		var steps []simStep
		now := time.Duration(0)
		for at := between(r, 0, span/2); at < span; at += between(r, 0, span/4) {
			s := p.drawStep(r)
			s.think = max(later(at)-now, 0)
			now = later(at)
			steps = append(steps, s)
		}
		p.clients = append(p.clients, steps)
	}
	return p
}

func (p *simPlan) drawFault(r *rand.Rand, span time.Duration, later func(time.Duration) time.Duration) simFault {
	f := simFault{kind: faultKind(r.IntN(7)), at: later(between(r, 0, span)), last: between(r, time.Millisecond, span/3),
		node: r.IntN(p.nodes), process: r.IntN(p.processes), jump: -between(r, 0, time.Minute)}
	if p.restarts {
		f.kind = nodeIsEmpty
	}
	switch {
	case f.kind == nodeIsEmpty && p.sane && p.nodes == 1: // it stays away for the longest lease
		f.last += 2 * simLongestTTL
	case f.kind == nodeIsEmpty: // a quorum waits for the longest lease by itself
		f.last = between(r, time.Millisecond, 100*time.Millisecond)
	case f.kind == clockJumps && !p.sane:
		f.jump = -f.jump
	case f.kind == processDies && r.IntN(2) == 0:
		f.kind = processStops
	}
	return f
}

func (p *simPlan) drawStep(r *rand.Rand) simStep {
	s := simStep{key: r.IntN(p.keys), try: r.IntN(4) == 0, wait: between(r, 10*time.Millisecond, 2*time.Second), deadline: r.IntN(3) == 0,
		ttl: simTTLs[r.IntN(len(simTTLs))], noRenew: r.IntN(3) == 0, bound: between(r, 10*time.Millisecond, time.Second),
		retention: between(r, 200*time.Millisecond, 6*time.Second)}
	if r.IntN(10) == 0 {
		s.cancel = between(r, 0, s.wait)
	}
	if r.IntN(6) == 0 {
		s.retention = 3 * time.Hour
	}
	most := []time.Duration{20 * time.Millisecond, 200 * time.Millisecond, 2 * s.ttl}[r.IntN(3)]
	s.hold = [2]time.Duration{between(r, 0, most), between(r, 0, most)}
	if r.IntN(3) == 0 {
		s.extend = simTTLs[r.IntN(len(simTTLs))]
	}
	switch n := r.IntN(16 + p.seals + p.unseals); {
	case n == 0:
		s.end = byLapse
	case n == 1:
		s.end, s.noRenew = byNothing, true
	case n == 2:
		s.inspect = true
	case n < 16:
	case n < 16+p.seals:
		s.end = bySeal
	default:
		s.unseal = true
	}
	switch n := r.IntN(20); {
	case n < p.revokes:
		s.revoke = true
	case n >= 18:
		s.all = true
	}
	return s
}
