//go:build !race

package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	"github.com/onelane/onelane/core"
)

const (
	simKey = "onelane:{k}"
	// simEra brings the clocks of a bubble, which begin in 2000, to numbers of 16 digits.
	simEra = 27 * 365 * 24 * time.Hour
)

// simNet is how likely a message has which fate.
type simNet struct {
	lost, late, twice float64
	latest            time.Duration // of a late message
}

// simWorld is what simulated processes share: nodes, and the messages to them. It lives in a bubble of
// testing/synctest. What happens depends on the seed only, because no two events are at one instant.
type simWorld struct {
	seed    uint64
	start   time.Time
	longest time.Duration
	lua     *simLua
	mutant  *strings.Replacer // of the scripts; nil: none
	tune    func(*quorum)     // of the processes; nil: not at all
	// slow, if set, makes messages late. A message that is later than an hour is lost.
	slow func(process, node int, s *script) (there, back time.Duration)

	// One goroutine runs the scripts: the stack of a new one would have to grow.
	jobs chan func()
	done chan struct{}

	mu        sync.Mutex
	net       simNet
	nodes     []*simHost
	processes int
	cut       map[[2]int]time.Time // process, node: until when nothing arrives
	sent      map[uint64]uint64    // how often the same was said
	sources   map[*script]string
	broken    error    // of a script
	notes     []string // what happened, if log is set
	log       bool
}

// simHost is where a node runs.
type simHost struct {
	*simNode
	id, runs int
	offset   time.Duration // of its clock
	phase    time.Duration // of its wobble
	down     bool
	past     []map[string]simEntry
}

func newSimWorld(seed uint64, nodes int, longest time.Duration, l *simLua) *simWorld {
	w := &simWorld{seed: seed, start: time.Now(), longest: longest, lua: l, cut: make(map[[2]int]time.Time),
		sent: make(map[uint64]uint64), sources: make(map[*script]string), jobs: make(chan func()), done: make(chan struct{})}
	go func() {
		for job := range w.jobs {
			job()
			w.done <- struct{}{}
		}
	}()
	for i := range nodes {
		h := &simHost{id: i}
		h.simNode = &simNode{clock: h.now, data: make(map[string]simEntry)}
		h.begin()
		h.started -= int64(24 * time.Hour / time.Microsecond)
		w.nodes = append(w.nodes, h)
	}
	return w
}

// now is the node's clock in µs. It runs at 0.9 % faster or slower than true time, in turns.
func (h *simHost) now() int64 {
	const half = 2 * time.Second
	t := time.Now()
	if h.phase > 0 {
		x := (time.Duration(t.UnixNano()) + h.phase) % (2 * half)
		if x > half {
			x = 2*half - x
		}
		t = t.Add((x - half/2) * 9 / 1000)
	}
	return t.Add(h.offset + simEra).UnixMicro()
}

// begin begins a new run of the node's server.
func (h *simHost) begin() {
	h.runs++
	h.down, h.runID, h.started = false, fmt.Sprintf("run%dof%d", h.runs, h.id), h.now()
}

// The data with which a node starts.
const (
	simKeep  = "keep"
	simEmpty = "empty"
	simOld   = "old"
)

// restart begins a new run. The data are those of past[back] with simOld.
func (w *simWorld) restart(i int, kind string, back int) {
	w.do(func() {
		h := w.nodes[i]
		switch {
		case kind == simOld && len(h.past) > 0:
			h.past = h.past[:1+back%len(h.past)]
			h.data = maps.Clone(h.past[len(h.past)-1])
		case kind != simKeep:
			clear(h.data)
			h.past = nil
		}
		h.begin()
		w.noteLocked("node %d starts (%s): %v", i, kind, h.data)
	})
}

// process makes the quorum as a new process sees it, of all nodes unless some are named.
func (w *simWorld) process(offset, timeout time.Duration, on ...int) *quorum {
	env := core.Environment{TTL: w.longest, Logger: slog.New(slog.DiscardHandler), Meter: noop.NewMeterProvider().Meter("")}
	id := w.processes
	w.processes++
	var nodes []*node
	for i := range w.nodes {
		if len(on) > 0 && !slices.Contains(on, i) {
			continue
		}
		n := newNode(&simConn{w: w, process: id, node: i}, newLatency(timeout), env)
		// Without clean-ups: their workers take turns in any order, so that no seed would be the same twice.
		n.stop()
		n.cleaning.Close(0)
		nodes = append(nodes, n)
	}
	q := newQuorum(nodes, env, w.longest, false)
	if w.tune != nil {
		w.tune(q)
	}
	q.now = func() time.Time { return time.Now().Add(offset + simEra) }
	return q
}

func processOf(q *quorum) int { return q.nodes[0].conn.(*simConn).process }

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
	breaks                     bool // its connection, instead of the reply
}

func between(r *rand.Rand, a, b time.Duration) time.Duration {
	return a + time.Duration(r.Int64N(int64(b-a)+1))
}

// fate depends on the seed and on what is said, not on the order in which goroutines run.
func (w *simWorld) fate(process, node int, s *script, argv []string) fate {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte{byte(process), byte(process >> 8), byte(node)})
	_, _ = io.WriteString(hash, s.Hash)
	for _, a := range argv {
		_, _ = io.WriteString(hash, a)
		_, _ = hash.Write([]byte{0})
	}
	id := hash.Sum64()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent[id]++
	r := rand.New(rand.NewPCG(w.seed, id+w.sent[id]<<40))
	delay := func() time.Duration {
		d := between(r, 250*time.Microsecond, 750*time.Microsecond)
		if r.Float64() < w.net.late {
			d += between(r, 0, w.net.latest)
		}
		return d
	}
	return fate{there: delay(), back: delay(), again: delay(), giveUp: between(r, 1, 50*time.Microsecond),
		lost: r.Float64() < w.net.lost || w.cutOffLocked(process, node), replyLost: r.Float64() < w.net.lost,
		twice: r.Float64() < w.net.twice, breaks: r.IntN(2) == 0}
}

// cutOffLocked reports whether nothing arrives.
func (w *simWorld) cutOffLocked(process, node int) bool {
	return time.Now().Before(w.cut[[2]int{process, node}]) || time.Now().Before(w.cut[[2]int{process, -1}])
}

type simReply struct {
	v   any
	err error
}

func (c *simConn) Do(ctx context.Context, commands ...*command) (<-chan struct{}, error) {
	cmd := commands[0]
	argv := cmd.All()[3+len(cmd.Keys):]
	s, keys := cmd.Script, cmd.Keys
	f := c.w.fate(c.process, c.node, s, argv)
	if c.w.slow != nil {
		there, back := c.w.slow(c.process, c.node, s)
		f.there, f.back, f.lost = f.there+there, f.back+back, f.lost || there > time.Hour
	}
	replies := make(chan simReply, 1)
	go func() {
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
		return nil, context.Cause(ctx)
	}
}

// travel takes a message to its node and the reply back. ok is false if nothing comes back.
func (c *simConn) travel(f fate, s *script, keys, argv []string) (r simReply, ok bool) {
	if f.twice {
		go func() {
			time.Sleep(f.again)
			c.arrive(s, keys, argv)
		}()
	}
	if f.lost {
		return r, false
	}
	time.Sleep(f.there)
	r = c.arrive(s, keys, argv)
	if f.replyLost {
		r = simReply{err: io.EOF}
		if !f.breaks {
			return r, false
		}
	}
	time.Sleep(f.back)
	cut := false
	c.w.do(func() { cut = c.w.cutOffLocked(c.process, c.node) })
	return r, !cut
}

var errSimRefused = &net.OpError{Op: "dial", Err: errors.New("connection refused")}

// arrive runs a script where its message arrives.
func (c *simConn) arrive(s *script, keys, argv []string) (r simReply) {
	c.w.do(func() {
		if c.w.nodes[c.node].down {
			r.err = errSimRefused
			return
		}
		r.v, r.err = c.w.runLocked(c.node, s, keys, argv)
		if c.w.log {
			c.w.noteLocked("process %d, node %d: %s %q: %v %v", c.process, c.node, scriptName(s), argv, r.v, r.err)
		}
	})
	return r
}

// runLocked runs a script on a node.
func (w *simWorld) runLocked(i int, s *script, keys, argv []string) (v any, err error) {
	source := w.sources[s]
	if source == "" {
		if source = s.Src; w.mutant != nil {
			source = w.mutant.Replace(source)
		}
		w.sources[s] = source
	}
	h := w.nodes[i]
	w.jobs <- func() { v, err = w.lua.run(h.simNode, source, keys, argv) }
	<-w.done
	if err != nil && w.broken == nil {
		w.broken = fmt.Errorf("%s: %w", scriptName(s), err)
	}
	if h.changed {
		h.changed = false
		if len(h.past) == 100 {
			h.past = h.past[50:]
		}
		h.past = append(h.past, maps.Clone(h.data))
	}
	return v, err
}

func scriptName(s *script) string {
	return map[*script]string{quorumAcquireScript: "acquire", quorumPromiseScript: "promise",
		quorumExtendScript: "extend", quorumReadScript: "read", releaseScript: "release"}[s]
}

// noteLocked keeps what happened, for a seed that is looked at.
func (w *simWorld) noteLocked(format string, args ...any) {
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
