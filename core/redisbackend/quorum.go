package redisbackend

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"sync/atomic"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/ownertext"
)

// quorum is the Backend on three or more independent masters. It has leases by majority, as in
// Redlock, and Paxos for values that outlive a lease.
//
// A node keeps three things per key. They are the owner (the lease, with a TTL), the highest ballot
// that it promised and to whom, and what it accepted. The last is a value under a stamp (ballot,
// step), or nothing. Values are seals, the records of orphans (BEGUN, the owner's text), and VOID.
// A ballot is promised once. A proposer may act on a node if nobody else holds the key there. The
// node must have promised less, or the same ballot to the same proposer. A stamp never replaces a
// higher or an equal one. The ballot of a lease is its fencing token: its holders get ballot ×
// block + i.
//
//  1. Acquire asks all nodes. A node that is free, or holds VOID or the orphan to adopt, grants: it
//     sets the owner and promises its ballot + 1. A new key takes the caller's time in µs. A node
//     that the caller owns already answers its ballot unchanged. Others answer what they accepted,
//     or their owner.
//  2. The same stamp on a majority: the value is decided. Acquire answers it and writes it to the
//     nodes that lack it.
//  3. Grants of a majority: the token is the largest ballot. If the grants differ, a majority must
//     promise it to the owner. If any answer carried a value, a majority must accept VOID under
//     (token, 0) beside the lease. So leftovers do not come back after this holder. For a lock with
//     an orphan a majority must accept BEGUN instead, always.
//  4. A value without a majority, and no owner with one: repair. Prepare a larger ballot b, take
//     the value with the highest stamp, have it accepted under (b, 1) with the time it has left.
//     VOID: the key is free, try again.
//  5. Otherwise the key is taken, contested (a split vote), or the quorum is unavailable.
//
// Seal is accept of the value under (token, 1) by nodes where the key is still the caller's. If
// nodes refuse because they promised more, and a majority is the caller's, it prepares a larger
// ballot and tries again. Release of a lock with an orphan does the same with VOID. Plain Release
// deletes the lease and raises the promise, so that nothing late of the lease has an effect. Extend
// lengthens the leases, and takes the key again on nodes that lost it once a majority confirmed the
// lease. It does so whatever they promised since: no other can have a majority. Unseal prepares a
// larger ballot and has VOID accepted. VOID outlives what it voids, and a shorter value that
// replaces VOID. Inspect applies 2, 3 and 5 and changes nothing.
//
// A node that started less than a TTL ago abstains, except from values that it still knows or that
// are decided. It may have forgotten leases and promises.
type quorum struct {
	nodes    []*node
	everyone []int
	env      core.Environment
	// guard is for how long a node that started abstains, at least. It is 0 for a new installation.
	guard         time.Duration
	doesNotForget bool
	excluded      atomic.Int32
	healing       atomic.Int32
	identity      identity
	end           func() error // of its instruments

	// Replaced by tests.
	now func() time.Time
}

const (
	// promiseLife is how long a promise outlives its last use. Requests and differences of clocks are
	// shorter. After that, ballots start from the clock again, which has passed them.
	promiseLife = 10 * time.Minute
	// clockTolerance is how far a caller's clock may be from that of a node that grants a new key.
	clockTolerance = 2 * time.Second
)

var (
	//go:embed lua/quorum_node.lua
	quorumNodeSource string
	//go:embed lua/quorum_acquire.lua
	quorumAcquireSource string
	//go:embed lua/quorum_prepare.lua
	quorumPrepareSource string
	//go:embed lua/quorum_accept.lua
	quorumAcceptSource string
	//go:embed lua/quorum_extend.lua
	quorumExtendSource string
	//go:embed lua/quorum_release.lua
	quorumReleaseSource string
	//go:embed lua/quorum_read.lua
	quorumReadSource string

	quorumAcquireScript = newScript(3, quorumNodeSource, quorumAcquireSource)
	quorumPrepareScript = newScript(3, quorumNodeSource, quorumPrepareSource)
	quorumAcceptScript  = newScript(3, tellSource+quorumNodeSource, quorumAcceptSource)
	quorumExtendScript  = newScript(3, quorumNodeSource, quorumExtendSource)
	quorumReleaseScript = newScript(3, tellSource+quorumNodeSource, quorumReleaseSource)
	quorumReadScript    = newScript(3, quorumNodeSource, quorumReadSource)
)

func newQuorum(nodes []*node, env core.Environment, newInstallation bool) *quorum {
	q := &quorum{nodes: nodes, env: env, guard: env.TTL, doesNotForget: newInstallation, now: time.Now}
	for i, n := range nodes {
		n.freeing = func(key, owner string) *command {
			r := q.round(key, quorumReleaseScript, owner, "0", 0, n.channel(key), "")
			return scriptCommand(r.script, r.keys, r.args...)
		}
		q.everyone = append(q.everyone, i)
		n.health = &health{node: n, out: &q.excluded}
	}
	q.identity.runs = make([]string, len(nodes))
	return q
}

func (q *quorum) majority() int { return len(q.nodes)/2 + 1 }

// abstention returns for how many ms after its start a node abstains.
func (q *quorum) abstention(ttl time.Duration) int64 {
	if q.doesNotForget {
		return 0
	}
	return ownertext.Millis(max(ttl, q.guard))
}

// round is a script for some nodes.
type round struct {
	keys   []string
	script *script
	args   []any
	nodes  []int

	// noted is called with each answer as it comes, also with those that nobody waits for. It may be
	// nil.
	noted func(vote)
	// traces, if not nil, are those of a lease that the round ends. A node is asked after it has
	// answered Acquire, or the lease would come after its end.
	traces *traces
}

// round makes a round that asks all nodes about key.
func (q *quorum) round(key string, s *script, args ...any) round {
	keys := []string{key, companion(key, "ballot"), companion(key, "accepted")}
	return round{keys: keys, script: s, args: args, nodes: q.everyone}
}

// ask sends a round to its nodes at once and passes each answer to enough, until that returns true
// or all have answered. left is how many answers are still to come. They arrive in rest, which is
// closed after the last. The calls go on in the background, each within its time-out, also if ctx
// is canceled meanwhile. The others should keep what a majority keeps.
func (q *quorum) ask(ctx context.Context, r round, enough func(v vote, left int) bool) (rest <-chan vote) {
	ctx, settle, end := untilSettled(ctx)
	defer settle()
	answers := make(chan vote, len(r.nodes))
	var left atomic.Int64
	left.Store(int64(len(r.nodes)))
	for _, i := range r.nodes {
		go func() {
			r.traces.await(ctx, i)
			v := q.call(ctx, i, r)
			if r.noted != nil {
				r.noted(v)
			}
			answers <- v
			if left.Add(-1) == 0 {
				end()
				close(answers)
			}
		}()
	}
	for n := len(r.nodes) - 1; n >= 0; n-- {
		if enough(<-answers, n) {
			break
		}
	}
	return answers
}

// call asks one node, unless it is excluded.
func (q *quorum) call(ctx context.Context, i int, r round) vote {
	h := q.nodes[i].health
	if !h.admits(time.Now(), int(q.excluded.Load()) > len(q.nodes)-q.majority()) {
		return vote{node: i, err: h.node.unavailable(r.keys[0], errExcluded)}
	}
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

// pause waits between two tries.
func (q *quorum) pause(ctx context.Context, d time.Duration) { pause(ctx, q.nodes[0].jitter(d)) }

func (q *quorum) Mint(_ context.Context, g core.Grant) (core.Grant, error) { return g, nil }

// Close ends the nodes. Calls that are under way end within their time-outs.
func (q *quorum) Close() error {
	var err error
	if q.end != nil {
		err = q.end()
	}
	return errors.Join(err, closeAll(q.nodes))
}
