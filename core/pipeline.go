package core

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	fullBatch    = 100      // callers that wait behind a batch when the next one goes without waiting for its answers
	largestBatch = 1000     // so that the answers come while they are still waited for
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
	return &pipelinedNode{c, &batches{client: func() redis.UniversalClient { return c.direct }}}, nil
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

// batches puts commands together: while one batch, or the call of one caller, is on its way, the next batch gathers.
type batches struct {
	client func() redis.UniversalClient

	mu      sync.Mutex
	waiting []*batch // the last one gathers; nil while nobody waits
	running int
	crowd   bool // the last batch had more than one command
}

type batch struct {
	cmds  []*redis.Cmd
	until time.Time     // the latest of their callers' deadlines
	sent  bool          // guarded by batches.mu
	done  chan struct{} // closed when all have their answers
}

// eval runs a script: by itself when nothing else is on its way, since a batch of one needs no goroutine.
func (p *batches) eval(ctx context.Context, s *script, keys []string, args []any) (v any, late <-chan struct{}, err error) {
	if p.alone() {
		defer p.follow()
		v, err = run(ctx, direct{p.client()}, s, keys, args)
		return v, nil, err
	}
	v, late, err = p.do(ctx, "evalsha", s.Hash, keys, args)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		v, late, err = p.do(ctx, "eval", s.Src, keys, args)
	}
	return v, late, err
}

// do sends a command with those of others. When ctx ends first, the command is withdrawn, or late is closed once it
// has had its effect or never will.
func (p *batches) do(ctx context.Context, verb, script string, keys []string, args []any) (v any, late <-chan struct{}, err error) {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, verb, script, len(keys))
	for _, k := range keys {
		all = append(all, k)
	}
	cmd := redis.NewCmd(ctx, append(all, args...)...)
	b, i := p.add(ctx, cmd)
	select {
	case <-b.done:
	case <-ctx.Done():
		if p.withdraw(b, i) {
			return nil, nil, fmt.Errorf("%w: %w", errNotSent, context.Cause(ctx))
		}
		select {
		case <-b.done: // just now
		default:
			return nil, b.done, context.Cause(ctx)
		}
	}
	v, err = cmd.Result()
	return v, nil, err
}

// alone says that nothing is on its way, and nobody came while the last call was; until follow is called, the caller's
// own call is.
func (p *batches) alone() bool {
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

func (p *batches) add(ctx context.Context, cmd *redis.Cmd) (b *batch, i int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.waiting); n == 0 || len(p.waiting[n-1].cmds) == largestBatch {
		p.waiting = append(p.waiting, &batch{done: make(chan struct{})})
	}
	b = p.waiting[len(p.waiting)-1]
	i = len(b.cmds)
	b.cmds = append(b.cmds, cmd)
	if end, _ := ctx.Deadline(); end.After(b.until) { // every call has one
		b.until = end
	}
	if p.running == 0 || p.running < maxBatches && len(b.cmds) == fullBatch {
		p.running++
		go p.run()
	}
	return b, i
}

// withdraw takes a command back that is not sent yet.
func (p *batches) withdraw(b *batch, i int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b.sent {
		return false
	}
	b.cmds[i] = nil
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
	p.crowd = len(b.cmds) > 1
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
	pipe := p.client().Pipeline()
	for _, cmd := range b.cmds {
		if cmd != nil {
			_ = pipe.Process(context.Background(), cmd)
		}
	}
	ctx, cancel := context.WithDeadline(context.Background(), b.until)
	defer cancel()
	_, _ = pipe.Exec(ctx) // each command has its own error
}
