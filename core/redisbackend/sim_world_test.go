package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	"github.com/onelane/onelane/core"
)

const (
	simKey         = "onelane:{k}"
	simTTL         = time.Second // the Lockers' default
	simNodeTimeout = 60 * time.Millisecond
)

// simNet is how likely a message has which fate.
type simNet struct {
	lost, replyLost, slow, twice float64
	slowest                      time.Duration
}

// simWorld is what simulated processes share: nodes, and the messages to them.
type simWorld struct {
	// tidiless switches clean-ups off: their workers take turns in any order.
	tidiless bool
	seed     uint64
	start    time.Time
	off      simRules

	mu    sync.Mutex
	net   simNet
	nodes []*simHost
	cut   map[[2]int]time.Time // process, node: until when nothing arrives
	sent  map[uint64]uint64    // how often the same was said
	notes []string             // what arrived, if noting
	log   bool

	onAccept func() // called when an accept arrives
}

// simHost is where a node runs.
type simHost struct {
	*simNode
	id, runs int
	offset   time.Duration // of its clock
	down     time.Time     // until when it refuses connections
	hangs    time.Time     // until when it does not answer
}

func newSimWorld(seed uint64, nodes int, off simRules) *simWorld {
	w := &simWorld{seed: seed, start: time.Now(), off: off, cut: make(map[[2]int]time.Time), sent: make(map[uint64]uint64)}
	stamps := make(map[string]stamp)
	for i := range nodes {
		h := &simHost{id: i}
		h.simNode = newSimNode(func() int64 { return time.Now().Add(h.offset).UnixMicro() }, off)
		h.stamps = stamps
		h.restart(-time.Hour)
		w.nodes = append(w.nodes, h)
	}
	return w
}

// restart begins a new run of a node's server.
func (h *simHost) restart(in time.Duration) {
	h.runs++
	h.runID = fmt.Sprintf("run%dof%d", h.runs, h.id)
	h.started = h.clock() + in.Microseconds()
}

// process makes the quorum as a process sees it, with a clock of its own.
func (w *simWorld) process(id int, offset time.Duration) *quorum {
	env := core.Environment{TTL: simTTL, Logger: slog.New(slog.DiscardHandler), Meter: noop.NewMeterProvider().Meter("")}
	var nodes []*node
	for i := range w.nodes {
		n := newNode(&simConn{w, id, i}, newLatency(simNodeTimeout), env)
		n.jitter = func(d time.Duration) time.Duration {
			r := rand.New(rand.NewPCG(w.seed+uint64(id)<<32, uint64(time.Since(w.start))))
			return d/2 + time.Duration(r.Int64N(int64(d)+1))
		}
		if w.tidiless {
			n.stop()
			n.cleaning.Close(0)
		}
		nodes = append(nodes, n)
	}
	q := newQuorum(nodes, env, false)
	q.now = func() time.Time { return time.Now().Add(offset) }
	return q
}

// simConn is a process's way to a node.
type simConn struct {
	w             *simWorld
	process, node int
}

func (c *simConn) Address() string { return fmt.Sprint("node", c.node) }
func (c *simConn) Close() error    { return nil }

// fate is what becomes of one message.
type fate struct {
	there, back, giveUp, again time.Duration
	lost, replyLost, twice     bool
}

func between(r *rand.Rand, a, b time.Duration) time.Duration {
	return a + time.Duration(r.Int64N(int64(b-a)+1))
}

// fate depends on the seed and on what is said, not on the order in which goroutines run. All delays
// differ, so that no two events are at the same instant.
func (w *simWorld) fate(process, node int, s *script, argv []string) fate {
	hash := fnv.New64a()
	owner := argv[0]
	if strings.HasPrefix(owner, "unseal/") {
		owner = "unseal" // it is random
	}
	_, _ = fmt.Fprint(hash, process, node, scriptName(s), owner, argv[1:])
	id := hash.Sum64()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent[id]++
	r := rand.New(rand.NewPCG(w.seed, id+w.sent[id]<<40))
	delay := func() time.Duration {
		d := between(r, 50*time.Microsecond, 2*time.Millisecond)
		if r.Float64() < w.net.slow {
			d += between(r, 0, w.net.slowest)
		}
		return d
	}
	return fate{there: delay(), back: delay(), giveUp: between(r, 1, 50*time.Microsecond),
		again:     between(r, time.Millisecond, 300*time.Millisecond),
		lost:      r.Float64() < w.net.lost || time.Now().Before(w.cut[[2]int{process, node}]),
		replyLost: r.Float64() < w.net.replyLost, twice: r.Float64() < w.net.twice}
}

type simReply struct {
	v   any
	err error
}

func (c *simConn) Do(ctx context.Context, commands ...*command) (<-chan struct{}, error) {
	cmd := commands[0]
	s, keys, argv := cmd.Script, cmd.Keys, make([]string, len(cmd.Args))
	for i, a := range cmd.Args {
		argv[i] = fmt.Sprint(a)
	}
	f := c.w.fate(c.process, c.node, s, argv)
	replies, late := make(chan simReply, 1), make(chan struct{})
	go func() {
		defer close(late)
		if r, ok := c.travel(f, s, keys, argv); ok {
			replies <- r
		}
	}()
	select {
	case r := <-replies:
		cmd.Value, cmd.Err = r.v, r.err
		return nil, r.err
	case <-ctx.Done():
		time.Sleep(f.giveUp) // not all at the same instant
		return late, context.Cause(ctx)
	}
}

// travel takes a message to its node and the reply back. ok is false if nothing comes back.
func (c *simConn) travel(f fate, s *script, keys, argv []string) (r simReply, ok bool) {
	if f.lost {
		return r, false
	}
	time.Sleep(f.there)
	r = c.arrive(f, s, keys, argv)
	if f.twice {
		go func() {
			time.Sleep(f.again)
			c.arrive(f, s, keys, argv)
		}()
	}
	if f.replyLost {
		if f.again%2 == 0 {
			time.Sleep(f.back)
			return simReply{err: io.EOF}, true // the connection breaks: the call is repeated
		}
		return r, false
	}
	time.Sleep(f.back)
	return r, true
}

var errSimRefused = &net.OpError{Op: "dial", Err: errors.New("connection refused")}

// arrive runs a script where its message arrives.
func (c *simConn) arrive(f fate, s *script, keys, argv []string) simReply {
	w := c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.nodes[c.node]
	for time.Now().Before(h.hangs) {
		d := time.Until(h.hangs)
		w.mu.Unlock()
		time.Sleep(d + f.giveUp)
		w.mu.Lock()
	}
	if time.Now().Before(h.down) {
		return simReply{err: errSimRefused}
	}
	if s == quorumAcceptScript && w.onAccept != nil {
		w.onAccept()
	}
	v := h.run(s, keys, argv)
	if w.log {
		if strings.HasPrefix(argv[0], "unseal/") {
			argv = append([]string{"unseal"}, argv[1:]...)
		}
		w.note("process %d, node %d: %s %q: %v", c.process, c.node, scriptName(s), argv, v[0])
	}
	return simReply{v: v}
}

// note keeps what happened, for a seed that is looked at. w.mu is held.
func (w *simWorld) note(format string, args ...any) {
	if w.log {
		w.notes = append(w.notes, fmt.Sprintf("%v ", time.Since(w.start))+fmt.Sprintf(format, args...))
	}
}

// do runs fn while nothing happens.
func (w *simWorld) do(fn func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fn()
}

// heal ends all faults.
func (w *simWorld) heal() {
	w.do(func() {
		w.net = simNet{}
		clear(w.cut)
		for _, h := range w.nodes {
			h.down, h.hangs = time.Time{}, time.Time{}
		}
	})
}
