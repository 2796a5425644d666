package redisbackend

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/ownertext"
)

// quorum is the Backend on three or more independent masters: leases by majority, as in Redlock,
// with fencing tokens. It keeps no seals and no orphans.
//
// A node keeps per key an owner with its lease, and a promise p: a number in µs. All processes have
// the same constants: T is clockTolerance, LIFE is promiseLife, LONGEST is Config.LongestTTL, GUARD
// is max(LONGEST, 5 s) + T. The lines of Lua and Go that keep a rule name its number.
//
//  1. Attempt. Each attempt has an owner that was never used before. The caller notes its monotonic
//     clock (sent), and asks all nodes at once, with its wall clock (now).
//  2. Grant. The owner itself: the lease gets longer, the answer is p. Another owner: HELD. A node
//     younger than GUARD + LONGEST/2: ABSTAINS. |now − the node's clock| > T: CLOCK, always.
//     Otherwise the caller is the owner, p = max(p + 1, now), and the answer is p.
//  3. Token. If some majority answered one number, that is t. If a majority granted, and there is no
//     such number, t is the largest answer, and promise(t) goes to the nodes that granted. A node
//     refuses it if the caller is not the owner, or if p < t and t > its clock + T. Otherwise
//     p = max(p, t). A majority must accept, and the node that answered t counts only if it does.
//  4. Hold. After the last phase, the caller looks at its monotonic clock. It holds until sent + TTL
//     − 1 % − 2 ms, or not at all. An attempt that does not hold gives back what it was granted: now
//     where a node granted, later where no answer came. Tokens are t × 256 + i, computed in Go.
//  5. A promise ends at max(p, the node's time) + LIFE. Only rules 2 and 3 write it.
//  6. Extend. The owner's lease gets longer. It counts if a majority said yes before the deadline
//     that it renews. Then, as long as the caller holds, Extend asks again the nodes that said FREE.
//     There a node of at least GUARD's age without an owner takes the key again, whatever it
//     promised. Answers to that count for nothing.
//  7. Release deletes the lease of the owner. It raises nothing. Losses and releases are final.
//  8. Start. A node's age is counted from LASTSAVE, else from INFO, in whole seconds − 1. From GUARD
//     on, holders may take keys again; from GUARD + LONGEST/2 on, it grants. A node that tells
//     neither never grants. With NewInstallation both are 0.
//
// So tokens go up by each node's own clock, whatever the clocks of callers say. A promise on a node
// is at most its clock + T. A later grant there sees it, or the node's clock moved on by more than
// 2T meanwhile. See docs/quorum.md for what the rules do not cover.
//
// The scripts in lua/quorum_*.lua name their KEYS, ARGV and answers. Each runs behind lua/quorum.lua.
// For Release it is lua/release.lua. A test replaces the driver.Conn of a node, its jitter, and now.
type quorum struct {
	nodes    []*node
	everyone []int
	env      core.Environment
	longest  time.Duration // LONGEST
	// From which age in ms a node lets holders take keys again, and grants.
	again, grants int64
	identity      identity
	end           func() error // of its instruments

	// Replaced by tests.
	now func() time.Time
}

const (
	// clockTolerance is how far a caller's clock may be from that of a node that grants (T).
	clockTolerance = 2 * time.Second
	// promiseLife is how long a promise outlives its number (LIFE). Twice the tolerance is needed. The
	// rest is for clocks that step.
	promiseLife = time.Minute
	// shortestGuard is above twice the tolerance: a node that forgot a promise grants a larger one.
	shortestGuard  = 5 * time.Second
	defaultLongest = 30 * time.Second
)

var (
	//go:embed lua/quorum.lua
	quorumSource string
	//go:embed lua/quorum_acquire.lua
	quorumAcquireSource string
	//go:embed lua/quorum_promise.lua
	quorumPromiseSource string
	//go:embed lua/quorum_extend.lua
	quorumExtendSource string
	//go:embed lua/quorum_read.lua
	quorumReadSource string

	quorumPrelude = fmt.Sprintf("local T, LIFE = %d, %d\n", clockTolerance.Microseconds(), promiseLife.Milliseconds()) + quorumSource

	quorumAcquireScript = newScript(3, quorumPrelude+announceSource, quorumAcquireSource)
	quorumPromiseScript = newScript(2, quorumPrelude, quorumPromiseSource)
	quorumExtendScript  = newScript(1, quorumPrelude, quorumExtendSource)
	quorumReadScript    = newScript(2, quorumPrelude, quorumReadSource)
)

func newQuorum(nodes []*node, env core.Environment, longest time.Duration, newInstallation bool) *quorum {
	q := &quorum{nodes: nodes, env: env, longest: longest, now: time.Now}
	if !newInstallation { // rule 8
		guard := max(longest, shortestGuard) + clockTolerance
		q.again, q.grants = ownertext.Millis(guard), ownertext.Millis(guard+max(longest/2, clockTolerance))
	}
	for i, n := range nodes {
		q.everyone = append(q.everyone, i)
		n.health = &health{node: n}
	}
	q.identity.runs = make([]string, len(nodes))
	return q
}

func (q *quorum) majority() int { return len(q.nodes)/2 + 1 }

// tooLong refuses a TTL that a node may have forgotten by the time it grants again.
func (q *quorum) tooLong(key string, ttl time.Duration) error {
	if ttl <= q.longest {
		return nil
	}
	return fmt.Errorf("redisbackend: key %q: a TTL of %v is longer than the longest of this quorum, %v; use a shorter TTL, or set LongestTTL in all processes alike",
		ownertext.Key(key), ttl, q.longest)
}

// quorumMark begins a lease on a node of a quorum. So nobody takes one node for the whole: a backend
// on that node alone says that it cannot tell.
const quorumMark = "\x01"

// round is a script for some nodes.
type round struct {
	keys   []string
	script *script
	args   []string
	nodes  []int

	// noted is called with each answer as it comes, also with those that nobody waits for. It may be
	// nil.
	noted func(vote)
}

// round makes a round that asks all nodes about key, in the name of owner. The script's KEYS are the
// first of the lease, the promise and the waiters.
func (q *quorum) round(key string, s *script, owner string, args ...string) round {
	keys := []string{key}
	if s.KeyCount > 1 {
		keys = append(keys, companion(key, "promise"))
	}
	if s.KeyCount > 2 {
		keys = append(keys, waiting(key))
	}
	return round{keys: keys, script: s, args: append([]string{quorumMark + owner}, args...), nodes: q.everyone}
}

// ask sends a round to its nodes at once. It collects their answers until enough returns true, or
// all have answered. left is how many are still to come. They arrive in rest, which is closed after
// the last. The calls go on in the background, each within its time-out, even if ctx is canceled
// meanwhile. The others should keep what a majority keeps.
//
// Nodes that are excluded are asked only if the others leave open what a majority says.
func (q *quorum) ask(ctx context.Context, r round, enough func(t *tally, left int) bool) (t tally, rest <-chan vote) {
	ctx, settle, end := untilSettled(ctx)
	defer settle()
	t = tally{quorum: q, asked: len(r.nodes)}
	answers := make(chan vote, len(r.nodes))
	var left atomic.Int64
	left.Store(int64(len(r.nodes)))
	answered := func(v vote) {
		if r.noted != nil {
			r.noted(v)
		}
		answers <- v
		if left.Add(-1) == 0 {
			end()
			close(answers)
		}
	}
	call := func(i int) { go func() { answered(q.call(ctx, i, r)) }() }
	first, spare := q.admitted(r.nodes)
	for _, i := range first {
		call(i)
	}
	defer func() {
		for _, i := range spare {
			answered(vote{node: i, err: q.nodes[i].unavailable(r.keys[0], errExcluded)})
		}
	}()
	for n := len(r.nodes) - 1; n >= 0; n-- {
		if n < len(spare) {
			if !q.needs(&t, r) {
				return t, answers
			}
			for _, i := range spare {
				call(i)
			}
			spare = nil
		}
		t.votes = append(t.votes, <-answers)
		if enough(&t, n) {
			break
		}
	}
	return t, answers
}

// admitted returns which nodes are asked first, and which only if these do not decide. If they are too
// few to decide, all are asked first.
func (q *quorum) admitted(nodes []int) (first, spare []int) {
	for _, i := range nodes {
		if q.nodes[i].health.admits(time.Now()) {
			first = append(first, i)
		} else {
			spare = append(spare, i)
		}
	}
	if len(first) < q.majority() && len(nodes) >= q.majority() {
		return nodes, nil
	}
	return first, spare
}

// needs reports whether the answers of r's nodes that are not excluded leave it open what a majority
// says. Callers that share the votes of Acquire try again, and do not wait for a node that may hang.
func (q *quorum) needs(t *tally, r round) bool {
	return len(r.nodes) >= q.majority() && (r.script != quorumAcquireScript || t.answered() < q.majority())
}

// call asks one node.
func (q *quorum) call(ctx context.Context, i int, r round) vote {
	h := q.nodes[i].health
	answer, err := h.node.call(ctx, r.keys[0], r.script, r.keys, r.args...)
	h.answered(err, contextError(ctx))
	v := newVote(i, answer, err)
	if r.script == quorumAcquireScript {
		h.saw(v)
		q.identity.saw(v, q.nodes)
	}
	return v
}

// untilSettled returns a context with ctx's deadline that is canceled with ctx only until settle is
// called. end frees it.
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

// Mint returns g: each grant has its tokens.
func (q *quorum) Mint(_ context.Context, g core.Grant) (core.Grant, error) { return g, nil }

// Close ends the nodes. Calls that are under way end within their time-outs.
func (q *quorum) Close() error {
	var err error
	if q.end != nil {
		err = q.end()
	}
	return errors.Join(err, closeAll(q.nodes))
}
