package core

import (
	"context"
	"sync/atomic"
	"time"
)

// TokenBlock is how many fencing tokens a lease reserves.
const TokenBlock = tokenBlock

// What the fuzz tests look at.
var (
	BackendKey = backendKey
	Companion  = companion
)

// Open returns b as a Locker with these options uses it.
func Open(b Backend, opts ...Option) (Backend, error) {
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	return b.(interface {
		open(*config) (Backend, error)
	}).open(c)
}

// Scripts are the sources of the Lua scripts by the names that a NodeFunc gets.
var Scripts = map[string]string{
	"acquire": acquireScript.Src, "extend": extendScript.Src, "release": releaseScript.Src, "seal": sealScript.Src,
	"unseal": unsealScript.Src, "inspect": inspectScript.Src, "quorum_acquire": quorumAcquireScript.Src,
	"quorum_raise": quorumRaiseScript.Src, "quorum_seal": quorumSealScript.Src, "quorum_unseal": quorumUnsealScript.Src,
}

// NodeFunc is a node of a test's own. See node for what it answers.
type NodeFunc func(ctx context.Context, script string, keys []string, args []any) (v any, late <-chan struct{}, retried bool, err error)

var scriptNames = func() map[*script]string {
	names := make(map[*script]string)
	for _, s := range []*script{acquireScript, extendScript, releaseScript, sealScript, unsealScript, inspectScript,
		quorumAcquireScript, quorumRaiseScript, quorumSealScript, quorumUnsealScript} {
		for name, source := range Scripts {
			if s.Src == source {
				names[s] = name
			}
		}
	}
	return names
}()

func (f NodeFunc) eval(ctx context.Context, s *script, keys []string, args []any) (any, <-chan struct{}, bool, error) {
	return f(ctx, scriptNames[s], keys, args)
}

func (f NodeFunc) close() error { return nil }

// Nodes is the Backend on one such node, or a quorum of them.
func Nodes(nodes []NodeFunc) Backend {
	all := make([]node, len(nodes))
	for i, n := range nodes {
		all[i] = n
	}
	return newBackend(all)
}

// WithChance replaces what is left to chance: owner texts and the spread of pauses.
func WithChance(owner func(instance, tag string) string, jitter func(time.Duration) time.Duration) Option {
	return lockerOption(func(c *config) { c.chance = chance{owner, jitter} })
}

// Exclude is what a quorum reports of a node that it does not ask, and of one that it asks again.
func (l *Locker) Exclude(node int, reason string, out bool) { l.telemetry.excluded(node, reason, out) }

// SetCoolDown sets for how long an opened quorum leaves out a node that does not answer.
func SetCoolDown(b Backend, d time.Duration) {
	for _, n := range quorumOf(b).nodes {
		n.breaker.mu.Lock()
		n.breaker.coolDown = d
		n.breaker.mu.Unlock()
	}
}

// BackendOf returns the backend that l has opened.
func BackendOf(l *Locker) Backend { return l.backend }

// CountCalls counts the calls to each node of an opened backend on clients from now on.
func CountCalls(b Backend) []*atomic.Int64 {
	var counts []*atomic.Int64
	nodes := []*redisBackend{}
	if one, ok := b.(*wokenRedis); ok {
		nodes = append(nodes, one.redisBackend)
	} else {
		nodes = quorumOf(b).nodes
	}
	for _, n := range nodes {
		counted := &countedNode{node: n.node}
		n.node = counted
		counts = append(counts, &counted.calls)
	}
	return counts
}

type countedNode struct {
	node
	calls atomic.Int64
}

func (n *countedNode) eval(ctx context.Context, s *script, keys []string, args []any) (any, <-chan struct{}, bool, error) {
	n.calls.Add(1)
	return n.node.eval(ctx, s, keys, args)
}

func quorumOf(b Backend) *quorum {
	if woken, ok := b.(*wokenQuorum); ok {
		return woken.quorum
	}
	return b.(*quorum)
}

// Lines is how many keys l remembers.
func (l *Locker) Lines() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.lines)
}

// Limit is how calls to a node are bounded.
func Limit() func(context.Context, time.Duration) (context.Context, context.CancelFunc) {
	return new(timeouts).limit
}

// Asked is how many leases a quorum remembers because nodes have not answered.
func Asked(b Backend) (n int) {
	quorumOf(b).asked.Range(func(any, any) bool { n++; return true })
	return n
}
