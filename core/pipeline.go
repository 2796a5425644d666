package core

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	fullBatch    = 100      // callers that wait behind a batch when the next one goes without waiting for its answers
	largestBatch = 1000     // so that the answers come while they are still waited for
	largestCall  = 32       // locks in one script: Redis does nothing else for about 0.2 ms
	maxBatches   = 4        // of one node on their way at once
	longestAlone = 16 << 10 // a seal longer than this goes alone: it would hold up the others
)

// errNotSent says that a call was given up before it was sent: it left nothing behind.
var errNotSent = errors.New("core: the call was given up before it was sent")

// pipelinedNode is a clientNode that sends what many callers ask at the same time as one pipeline (see [Pipelined]).
//
// go-redis's own autopipeline (AsyncAutoPipeline, experimental in 9.23) is as fast. But what its caller has given up it sends
// nevertheless, and while Redis hangs that is a growing pile of locks to be taken, and released, for nobody.
type pipelinedNode struct {
	*clientNode
	verbs *batches
}

func newPipelinedNode(n node) (node, error) {
	c, ok := n.(*clientNode)
	if !ok || c.direct == nil {
		return nil, fmt.Errorf("core: Pipelined needs core.Clients with a *redis.Client, one Redis or Sentinel, for each node: it does nothing for pools and for Redis Cluster")
	}
	return &pipelinedNode{c, &batches{client: func() redis.UniversalClient { return c.direct }, together: &c.together}}, nil
}

func (n *pipelinedNode) eval(ctx context.Context, s *script, keys []string, args []any) (any, <-chan struct{}, bool, error) {
	for _, a := range args {
		if value, ok := a.([]byte); ok && len(value) > longestAlone {
			return n.clientNode.eval(ctx, s, keys, args)
		}
	}
	if s == extendScript { // is always put together
		return n.clientNode.eval(ctx, s, keys, args)
	}
	v, late, err := n.verbs.eval(ctx, s, keys, args)
	return v, late, false, err
}

// batches puts calls together: while one batch, or the call of one caller, is on its way, the next batch gathers. A batch is
// a pipeline, and in it, once together has shown that it works, the calls for one verb are one script.
type batches struct {
	client   func() redis.UniversalClient
	together *together

	mu      sync.Mutex
	waiting []*batch // the last one gathers; nil while nobody waits
	running int
	crowd   bool // the last batch had more than one call
}

type batch struct {
	calls []*scriptCall
	until time.Time     // the latest of their callers' deadlines
	sent  bool          // guarded by batches.mu
	done  chan struct{} // closed when all have their answers
}

// scriptCall is a script for one lock.
type scriptCall struct {
	script *script
	keys   []string
	args   []any

	alone  bool // not with others in one script: together they were refused
	source bool // Redis does not know the script yet

	v   any
	err error
}

// eval runs a script: by itself when nothing else is on its way, since a batch of one needs no goroutine. When ctx ends first, the
// call is withdrawn, or late is closed once it has had its effect or never will.
func (p *batches) eval(ctx context.Context, s *script, keys []string, args []any) (v any, late <-chan struct{}, err error) {
	if ctx.Err() != nil {
		return nil, nil, fmt.Errorf("%w: %w", errNotSent, ctx.Err())
	}
	if p.single() {
		defer p.follow()
		v, err = run(ctx, direct{p.client()}, s, keys, args)
		return v, nil, err
	}
	call := &scriptCall{script: s, keys: keys, args: args}
	b, i := p.add(ctx, call)
	var cancelled <-chan struct{}
	if l, ok := ctx.(*limited); ok {
		cancelled = l.Context.Done()
	}
	select {
	case <-b.done:
		return call.v, nil, call.err
	case <-ctx.Done():
	case <-cancelled:
	}
	if p.withdraw(b, i) {
		return nil, nil, fmt.Errorf("%w: %w", errNotSent, ctx.Err())
	}
	select {
	case <-b.done: // just now
		return call.v, nil, call.err
	default:
		return nil, b.done, ctx.Err()
	}
}

// single says that nothing is on its way, and nobody came while the last call was; until follow is called, the caller's
// own call is.
func (p *batches) single() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running > 0 || p.crowd {
		return false
	}
	p.running++
	return true
}

// follow sends what has gathered behind a call that was alone.
func (p *batches) follow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) == 0 {
		p.running--
		return
	}
	p.crowd = true
	go p.run()
}

func (p *batches) add(ctx context.Context, call *scriptCall) (b *batch, i int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.waiting); n == 0 || len(p.waiting[n-1].calls) == largestBatch {
		p.waiting = append(p.waiting, &batch{done: make(chan struct{})})
	}
	b = p.waiting[len(p.waiting)-1]
	i = len(b.calls)
	b.calls = append(b.calls, call)
	if end, _ := ctx.Deadline(); end.After(b.until) { // every call has one
		b.until = end
	}
	if p.running == 0 || p.running < maxBatches && len(b.calls) == fullBatch {
		p.running++
		go p.run()
	}
	return b, i
}

// withdraw takes a call back that is not sent yet.
func (p *batches) withdraw(b *batch, i int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b.sent {
		return false
	}
	b.calls[i] = nil
	return true
}

// take returns the batch that goes next, nil if there is none.
func (p *batches) take() *batch {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) == 0 {
		p.running--
		return nil
	}
	b := p.waiting[0]
	p.waiting[0] = nil
	if p.waiting = p.waiting[1:]; len(p.waiting) == 0 {
		p.waiting = nil
	}
	b.sent = true
	b.calls = slices.DeleteFunc(b.calls, func(c *scriptCall) bool { return c == nil })
	p.crowd = len(b.calls) > 1
	return b
}

// run sends batches until nobody waits. Before each it lets those who are about to ask do so: they have just got the
// answers of the batch before.
func (p *batches) run() {
	for {
		runtime.Gosched()
		b := p.take()
		if b == nil {
			return
		}
		p.exec(b)
	}
}

func (p *batches) exec(b *batch) {
	defer close(b.done)
	ctx, cancel := context.WithDeadline(context.Background(), b.until)
	defer cancel()
	for left := b.calls; len(left) > 0; {
		left = p.send(ctx, left)
	}
	p.together.learn(ctx, p.client(), b.calls)
}

// send sends calls as one pipeline, and returns those that were refused and are to be sent again in another way.
func (p *batches) send(ctx context.Context, calls []*scriptCall) (again []*scriptCall) {
	pipe := p.client().Pipeline()
	groups := p.together.groups(calls)
	sent := make([]*redis.Cmd, len(groups))
	for i, g := range groups {
		sent[i] = g.cmd(ctx)
		_ = pipe.Process(ctx, sent[i])
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for i, g := range groups {
		if v, err := sent[i].Result(); g.refused(err) {
			again = append(again, g...)
		} else {
			g.answer(v, err)
		}
	}
	return again
}
