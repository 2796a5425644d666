package core

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	defaultQuorumTimeout = 50 * time.Millisecond // of one node: far below the TTL
	clockTolerance       = fenceLife / 4         // of a caller's clock against a node's
	startTogether        = time.Second           // new nodes do, within this and a tenth of the time for which they would abstain
)

var (
	//go:embed quorum_acquire.lua
	quorumAcquireSource string
	//go:embed quorum_raise.lua
	quorumRaiseSource string
	//go:embed quorum_seal.lua
	quorumSealSource string
	//go:embed quorum_unseal.lua
	quorumUnsealSource string

	quorumAcquireScript = newScript(2, "", quorumAcquireSource)
	quorumRaiseScript   = newScript(2, "", quorumRaiseSource)
	quorumSealScript    = newScript(2, tellSource, quorumSealSource)
	quorumUnsealScript  = newScript(2, tellSource, quorumUnsealSource)
)

// quorum is the Backend on three or more independent masters (Redlock, https://redis.io/docs/latest/develop/use/patterns/distributed-locks/):
// a lease is granted by a majority of them, asked at once, each within a short time-out.
type quorum struct {
	nodes []*redisBackend
	guard time.Duration // how long a node that has started grants nothing, if the TTL asked for is not longer
	asked sync.Map      // owner → *attempt: leases that not all nodes have answered yet

	mu    sync.Mutex
	runs  []string      // of each node, as it was first seen
	twice error         // two of the nodes are one Redis
	fresh time.Duration // all nodes were younger than this when they were first seen; 0: they were not
}

func newQuorum(nodes []node) *quorum {
	q := &quorum{}
	for _, n := range nodes {
		b := newRedisBackend([]node{n})
		b.timeout = defaultQuorumTimeout
		b.breaker = newBreaker(b.timeout)
		q.nodes = append(q.nodes, b)
	}
	q.runs = make([]string, len(nodes))
	return q
}

func (q *quorum) majority() int { return len(q.nodes)/2 + 1 }

func (q *quorum) open(c *config) (Backend, error) {
	opened := &quorum{guard: c.ttl, runs: make([]string, len(q.nodes))}
	for i, n := range q.nodes {
		b, err := n.open(c)
		if err != nil {
			return nil, fmt.Errorf("core: node %d of the quorum: %w", i+1, err)
		}
		node := b.(*redisBackend)
		node.breaker.changed, node.breaker.excluded = opened.report(c, i), c.telemetry.excluded
		opened.nodes = append(opened.nodes, node)
	}
	return opened, nil
}

// Close closes all nodes.
func (q *quorum) Close() error {
	var errs []error
	for _, n := range q.nodes {
		errs = append(errs, n.Close())
	}
	return errors.Join(errs...)
}

// answer is what one node said.
type answer struct {
	node int
	reply
	err error
}

// ask runs a script on the nodes at once, and calls decided after each answer until it says true or all have answered.
// The nodes that are not waited for go on in the background, each within its time-out, also when the caller cancels ctx once it has
// the outcome: what a majority keeps, the others should keep too. late gets their answers.
func (q *quorum) ask(ctx context.Context, nodes []int, call func(ctx context.Context, n *redisBackend, node int) (reply, error), decided func(answer) bool, late func(answer)) {
	if len(nodes) == 0 {
		return
	}
	ctx, settle, end := untilSettled(ctx)
	defer settle()
	answers := make(chan answer, len(nodes))
	var left atomic.Int64
	left.Store(int64(len(nodes)))
	for _, i := range nodes {
		go func() {
			r, err := call(ctx, q.nodes[i], i)
			answers <- answer{i, r, err}
			if left.Add(-1) == 0 {
				end()
			}
		}()
	}
	for n := range len(nodes) {
		if decided(<-answers) {
			if rest := len(nodes) - n - 1; rest > 0 && late != nil {
				go func() {
					for range rest {
						late(<-answers)
					}
				}()
			}
			return
		}
	}
}

// untilSettled returns a context with ctx's deadline that is cancelled with ctx only until settle is called. end frees it.
func untilSettled(ctx context.Context) (bounded context.Context, settle, end func()) {
	if ctx.Done() == nil {
		return ctx, func() {}, func() {}
	}
	var cancel context.CancelFunc
	if deadline, ok := ctx.Deadline(); ok {
		bounded, cancel = context.WithDeadline(context.WithoutCancel(ctx), deadline)
	} else {
		bounded, cancel = context.WithCancel(context.WithoutCancel(ctx))
	}
	if ctx.Err() != nil {
		cancel() // now: AfterFunc would do it in a while
	}
	stop := context.AfterFunc(ctx, cancel)
	return bounded, func() { stop() }, cancel
}

func (q *quorum) all() []int {
	nodes := make([]int, len(q.nodes))
	for i := range nodes {
		nodes[i] = i
	}
	return nodes
}

// failure says which node did not answer, and why.
func (a answer) failure() error {
	err := a.err
	if e, ok := err.(*UnavailableError); ok {
		err = errors.Join(e.Nodes...)
	}
	return fmt.Errorf("node %d: %w", a.node+1, err)
}

// votes counts yes, no and unknown, for verbs that need a majority of yes.
type votes struct {
	yes, no int
	lost    error // the first no
	failed  []error
}

func (v *votes) add(a answer, yes bool) {
	switch {
	case a.err != nil && errors.Is(a.err, ErrLost):
		v.no, v.lost = v.no+1, a.err
	case a.err != nil:
		v.failed = append(v.failed, a.failure())
	case yes:
		v.yes++
	default:
		v.no, v.lost = v.no+1, a.lost()
	}
}

// decided says that no further answer changes the outcome.
func (v *votes) decided(q *quorum) bool {
	return v.yes >= q.majority() || v.no > len(q.nodes)-q.majority()
}

// outcome is nil for a majority of yes, ErrLost when there can be none, else unavailable.
func (v *votes) outcome(q *quorum, key string) error {
	switch {
	case v.yes >= q.majority():
		return nil
	case v.no > len(q.nodes)-q.majority():
		return v.lost
	default:
		return &UnavailableError{Key: key, Nodes: v.failed}
	}
}

func (q *quorum) Extend(ctx context.Context, g Grant, ttl time.Duration) (Grant, error) {
	sent := time.Now()
	nodes, v := q.askedFor(g)
	q.ask(ctx, nodes, func(ctx context.Context, n *redisBackend, _ int) (reply, error) {
		r, err := n.call(ctx, g.Key, extendScript, []string{g.Key}, g.Owner, millis(ttl))
		return r, lostIfForeign(err)
	}, func(a answer) bool {
		v.add(a, a.status == 1)
		return v.decided(q)
	}, nil)
	if err := v.outcome(q, g.Key); err != nil {
		return g, err
	}
	if d := deadline(sent, ttl); d.After(g.Deadline) {
		g.Deadline = d
	}
	return g, nil
}

// over says that the lease ended: a grant that a slow node answers from now on is given back, and what nodes may have granted without
// an answer is released once more after the release that is sent now, which may overtake it.
func (q *quorum) over(owner string) {
	v, ok := q.asked.Load(owner)
	if !ok {
		return
	}
	a := v.(*attempt)
	_, unknown := q.end(a)
	for _, ans := range unknown {
		if n := q.nodes[ans.node]; ans.reply.late != nil {
			n.cleanUp(a.grant, a.ttl, ans.reply.late)
		} else {
			n.cleanUpAgain(cleanUp{grant: a.grant, until: time.Now().Add(a.ttl)})
		}
	}
}

func (q *quorum) Release(ctx context.Context, g Grant) error {
	q.over(g.Owner)
	nodes, v := q.askedFor(g)
	q.ask(ctx, nodes, func(ctx context.Context, n *redisBackend, _ int) (reply, error) {
		return reply{}, n.Release(ctx, g)
	}, func(a answer) bool {
		v.add(a, a.err == nil)
		return v.decided(q)
	}, nil)
	return v.outcome(q, g.Key)
}

func (q *quorum) Seal(ctx context.Context, g Grant, token uint64, value []byte, retention time.Duration) error {
	q.over(g.Owner)
	nodes, v := q.askedFor(g)
	seal := packSeal(token, value)
	others := make(map[string]int) // other seals
	q.ask(ctx, nodes, func(ctx context.Context, n *redisBackend, _ int) (reply, error) {
		r, err := n.call(ctx, g.Key, quorumSealScript, []string{g.Key, companion(g.Key, "fence")}, g.Owner, n.channel(g.Key), seal,
			millis(retention), token, millis(retention+fenceLife), "")
		return r, lostIfForeign(err)
	}, func(a answer) bool {
		v.add(a, a.status == 1)
		if a.status == 3 {
			others[a.text(1)]++
		}
		return v.yes >= q.majority() || others[a.text(1)] >= q.majority()
	}, nil)
	err := v.outcome(q, g.Key)
	for _, n := range others {
		if n >= q.majority() {
			return err
		}
	}
	if errors.Is(err, ErrLost) && (v.yes > 0 || len(v.failed) > 0) {
		// A minority may have it, and whoever asks for the key next may complete it. (To take it back is no way out: it may have
		// been completed and answered meanwhile, simulated.)
		return &UnavailableError{Key: g.Key, Nodes: append(v.failed, errors.New("a majority does not hold the key for this lock any more; others may have sealed it"))}
	}
	return err
}

// Unseal deletes the seal and moves the counters beyond it on a majority, so that a seal left on a minority is known to be old.
func (q *quorum) Unseal(ctx context.Context, key string) error {
	var token uint64
	longest := time.Duration(0)
	seals, asked := 0, 0
	err := q.inspect(ctx, key, func(st State) bool {
		if st.Status == Sealed {
			seals, token, longest = seals+1, max(token, st.Token), max(longest, st.ExpiresIn)
		}
		asked++
		return seals > 0 && asked >= q.majority() // where there is none, a last copy that has not ended yet would come back
	})
	if err != nil || seals == 0 {
		return err
	}
	var v votes
	q.ask(ctx, q.all(), func(ctx context.Context, n *redisBackend, _ int) (reply, error) {
		return n.call(ctx, key, quorumUnsealScript, []string{key, companion(key, "fence")}, n.channel(key),
			millis(longest+fenceLife), strconv.FormatUint(token, 10), tokenBlock)
	}, func(a answer) bool {
		v.add(a, a.status == 1)
		return v.yes >= q.majority()
	}, nil)
	return v.outcome(q, key)
}

// inspect shows each node's state to see until that has seen enough, and fails when there is no majority of them.
func (q *quorum) inspect(ctx context.Context, key string, see func(State) (enough bool)) error {
	states := make([]State, len(q.nodes))
	var v votes
	q.ask(ctx, q.all(), func(ctx context.Context, n *redisBackend, i int) (r reply, err error) {
		states[i], err = n.Inspect(ctx, key)
		return reply{}, err
	}, func(a answer) bool {
		v.add(a, a.err == nil)
		return a.err == nil && see(states[a.node])
	}, nil)
	return v.outcome(q, key)
}

func (q *quorum) Inspect(ctx context.Context, key string) (State, error) {
	type id struct {
		status       Status
		owner, value string
		token        uint64
	}
	count := make(map[id]int)
	best := State{Status: Free}
	var token uint64 // where the nodes differ, the largest is the lease's
	err := q.inspect(ctx, key, func(st State) bool {
		what := id{status: st.Status, owner: st.Owner, value: string(st.Value)}
		if st.Status == Sealed {
			what.token = st.Token
		}
		if token = max(token, st.Token); st.Status == Held {
			st.Token = token
		}
		if count[what]++; count[what] < q.majority() {
			return false
		}
		best = st
		return true
	})
	return best, err
}
