package core_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onelane/onelane/core"
)

// simWorld is what all simulated processes share: the nodes, the messages between, and what was seen.
type simWorld struct {
	plan  *simPlan
	off   simRules
	start time.Time

	mu        sync.Mutex
	nodes     []*simHost
	processes []*simProcess
	cut       map[[2]int]time.Time // process, node → until when
	sent      map[uint64]uint64    // how often the same was said
	healed    bool                 // no faults any more
	forgot    bool                 // a node has lost its data
	released  map[string]bool      // owners whose release was definite
	revoked   map[string]time.Duration
	history   *simHistory
	resources map[string]*simResource
}

// simHost is where a node runs.
type simHost struct {
	node    *simNode
	id      int
	jump    time.Duration // of its clock
	runs    int           // how often it was started
	down    time.Time     // until when it refuses
	stopped time.Time     // until when it says nothing
}

// simProcess is one process of the service.
type simProcess struct {
	id      int
	locker  *core.Locker
	stopped time.Time // until when it stands still
	died    time.Time
	leases  int

	unsealed map[string]time.Duration // when this process was last told that it has unsealed a key
}

func newWorld(p *simPlan, off simRules) *simWorld {
	w := &simWorld{plan: p, off: off, start: time.Now(), cut: make(map[[2]int]time.Time), sent: make(map[uint64]uint64), released: make(map[string]bool), revoked: make(map[string]time.Duration),
		history: &simHistory{start: time.Now(), noting: p.noting}, resources: make(map[string]*simResource)}
	for i := range p.nodes {
		h := &simHost{id: i}
		h.node = newSimNode(func() int64 {
			since := time.Duration(float64(time.Since(w.start)) * p.rates[i])
			return w.start.Add(since + h.jump).UnixMicro()
		}, off.rules)
		h.node.seen = w.appeared
		h.restarts(-p.age)
		w.nodes = append(w.nodes, h)
	}
	for i := range p.processes {
		w.processes = append(w.processes, &simProcess{id: i, unsealed: make(map[string]time.Duration)})
	}
	for _, f := range p.faults {
		time.AfterFunc(f.at, func() { w.strike(f) })
	}
	return w
}

// strike makes a fault happen.
func (w *simWorld) strike(f simFault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.healed {
		return
	}
	w.history.note("fault %+v", f)
	if w.plan.sane && f.kind == clockJumps && w.nodes[f.node].matters() { // the assumptions hold as long as seals last
		return
	}
	h, p, until := w.nodes[f.node], w.processes[f.process], time.Now().Add(f.last)
	later := func(end *time.Time) {
		if until.After(*end) {
			*end = until
		}
	}
	switch f.kind {
	case nodeStops:
		later(&h.stopped)
	case nodeIsEmpty:
		if !w.plan.sane || !h.matters() {
			clear(h.node.data)
			w.forgot = true
		}
		fallthrough
	case nodeIsDown:
		later(&h.down)
		h.restarts(time.Until(h.down))
	case clockJumps:
		h.jump += f.jump
	case linkIsCut:
		w.cut[[2]int{f.process, f.node}] = until
	case processStops:
		later(&p.stopped)
	case processDies:
		p.died = time.Now()
	}
}

// restarts begins a new run that is up after a while.
func (h *simHost) restarts(after time.Duration) {
	h.runs++
	h.node.runID, h.node.started = fmt.Sprintf("run%dof%d", h.runs, h.id), h.node.clock()+after.Microseconds()
}

// matters says that the node has seals: they are to last for their whole retention.
func (h *simHost) matters() bool {
	for _, v := range h.node.data {
		if sealed(v.text) {
			return true
		}
	}
	return false
}

// appeared notices an owner that is back after its release was definite. The caller holds mu.
func (w *simWorld) appeared(by, key, value string) {
	_, revoked := w.revoked[value]                                   // before its Acquire was told, perhaps
	if w.released[key+value] && by != "quorum_acquire" && !revoked { // which may be late; what it grants is given back
		w.history.violate("I3", "%s holds %s after its release, by a late %s", value, key, by)
	}
}

// awake waits until the process p runs; false means that it is dead. After a pause not all go on at the same instant: late is the caller's own.
func (w *simWorld) awake(p *simProcess, late time.Duration) bool {
	for {
		w.mu.Lock()
		pause, died := time.Until(p.stopped), p.died
		w.mu.Unlock()
		if !died.IsZero() || pause <= 0 {
			return died.IsZero()
		}
		time.Sleep(pause + late)
	}
}

// fate is what becomes of one message.
type fate struct {
	there, back, giveUp, stagger            time.Duration
	lost, replyLost, broken, refused, twice bool
}

func (w *simWorld) fateOf(process, node int, script string, keys, argv []string) fate {
	hash := fnv.New64a()
	_, _ = fmt.Fprint(hash, process, node, script, keys, argv)
	id := hash.Sum64()
	w.mu.Lock()
	w.sent[id]++
	id += w.sent[id] << 32
	n, cut := w.plan.net, time.Now().Before(w.cut[[2]int{process, node}])
	if w.healed {
		n, cut = simNet{slowest: 1}, false
	}
	w.mu.Unlock()
	r := rand.New(rand.NewPCG(w.plan.seed, id))
	delay := func() time.Duration {
		d := between(r, 50*time.Microsecond, 3*time.Millisecond)
		if r.Float64() < n.slow {
			d += between(r, 0, n.slowest)
		}
		return d
	}
	return fate{there: delay(), back: delay(), giveUp: between(r, 1, 50*time.Microsecond), stagger: between(r, 1, 20*time.Millisecond), lost: cut || r.Float64() < n.lost,
		replyLost: r.Float64() < n.replyLost, broken: r.Float64() < n.broken, refused: r.Float64() < n.refused, twice: r.Float64() < n.twice}
}

// errorReply is an error reply.
type errorReply string

func (e errorReply) Error() string { return string(e) }
func (e errorReply) RedisError()   {}

var errRefused = &net.OpError{Op: "dial", Err: errors.New("connection refused")}

type simReply struct {
	v       any
	retried bool
	err     error
}

// link is how a process reaches a node.
func (w *simWorld) link(p *simProcess, node int) core.NodeFunc {
	return func(ctx context.Context, script string, keys []string, args []any) (any, <-chan struct{}, bool, error) {
		argv := texts(args)
		f := w.fateOf(p.id, node, script, keys, argv)
		w.history.note("process %d tells node %d: %s %q %q: %+v", p.id, node+1, script, keys[0], argv, f)
		replies, returned := make(chan simReply, 1), make(chan struct{})
		go func() {
			defer close(returned)
			if r, ok := w.travel(p, w.nodes[node], f, script, keys, argv); ok {
				replies <- r
			}
		}()
		select {
		case r := <-replies:
			return r.v, nil, r.retried, r.err
		case <-ctx.Done():
		}
		time.Sleep(f.giveUp) // not all at the same instant
		if !w.plan.pools {
			return nil, nil, false, context.Cause(ctx)
		}
		return nil, returned, false, context.Cause(ctx)
	}
}

// texts are arguments as Redis gets them.
func texts(args []any) []string {
	argv := make([]string, len(args))
	for i, a := range args {
		if b, ok := a.([]byte); ok {
			a = string(b)
		}
		argv[i] = fmt.Sprint(a)
	}
	return argv
}

// travel takes a message to its node and the reply back; false means that nothing comes back.
func (w *simWorld) travel(p *simProcess, h *simHost, f fate, script string, keys, argv []string) (simReply, bool) {
	const tcp = 5 * time.Second // until a connection is given up
	if !w.awake(p, f.stagger) || f.lost && !f.broken {
		time.Sleep(tcp)
		return simReply{}, false
	}
	time.Sleep(f.there)
	if f.lost {
		return simReply{err: io.EOF}, w.awake(p, f.stagger)
	}
	r := simReply{}
	for n := 0; ; n++ {
		if r.v, r.err = w.arrive(h, f, script, keys, argv); r.err != nil || !f.twice || !w.plan.pools || n > 0 {
			break
		}
		r.retried = true // the client has lost the reply, and says it again by itself
		time.Sleep(f.back)
	}
	switch {
	case f.replyLost:
		time.Sleep(tcp)
		return r, false
	case f.broken && r.err == nil:
		r.v, r.err = nil, io.EOF
	}
	time.Sleep(f.back)
	return r, w.awake(p, f.stagger)
}

// arrive executes a script where the message arrives.
func (w *simWorld) arrive(h *simHost, f fate, script string, keys, argv []string) (any, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		pause := time.Until(h.stopped)
		if pause <= 0 {
			break
		}
		w.mu.Unlock()
		time.Sleep(pause + f.stagger) // they wait in its socket, and are not answered all at once
		w.mu.Lock()
	}
	switch {
	case time.Now().Before(h.down):
		return nil, errRefused
	case f.refused && strings.HasSuffix(script, "acquire"):
		return nil, errorReply("OOM command not allowed when used memory > 'maxmemory'.")
	case f.refused:
		return nil, errorReply("LOADING Redis is loading the dataset in memory")
	}
	v := h.node.run(script, keys, argv)
	if script == "quorum_seal" && argv[6] != "" {
		w.history.saw(fmt.Sprint("repair: ", v[0]))
	}
	w.history.note("node %d: %s %q %q: %q", slices.Index(w.nodes, h)+1, script, keys[0], argv, v)
	return v, nil
}
