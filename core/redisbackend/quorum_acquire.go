package redisbackend

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/leases"
	"github.com/onelane/onelane/internal/ownertext"
)

const (
	// acquireTries is how often Acquire tries while others repair the key.
	acquireTries = 5
	repairPause  = 3 * time.Millisecond
)

// traces name the nodes on which a lease may be. The clean-up of the lease needs them.
// Grant.Backend holds them.
type traces struct {
	ttl    time.Duration
	held   atomic.Uint64 // may have granted.
	unsure atomic.Uint64 // have not answered; the request may still be under way.
	again  atomic.Uint64 // were asked for the lease again: a late answer to the first request says nothing about it

	missing  atomic.Int64  // answers to Acquire
	answered chan struct{} // closed when none is missing

	released atomic.Bool
	over     atomic.Bool // released or sealed
	// seal is the first value that a Seal sent, or nil.
	seal atomic.Pointer[string]
}

func (l *traces) note(v vote) {
	bit := uint64(1) << v.node
	if v.unsure() || v.retried { // an earlier copy may still be under way
		return
	}
	l.unsure.And(^bit)
	if !v.yes() {
		l.held.And(^bit)
	}
}

// acquired notes an answer to Acquire.
func (l *traces) acquired(v vote) {
	l.note(v)
	if l.missing.Add(-1) == 0 {
		close(l.answered)
	}
}

// If a node has not answered Acquire, await waits until all nodes have answered. That takes no
// longer than their time-outs.
func (l *traces) await(ctx context.Context, node int) {
	if l == nil || l.missing.Load() == 0 || l.unsure.Load()&(1<<node) == 0 {
		return
	}
	select {
	case <-l.answered:
	case <-ctx.Done():
	}
}

// attempt is one call of Acquire.
type attempt struct {
	core.Request
	quorum *quorum
	sent   time.Time
	tally  tally
	rest   <-chan vote
	traces *traces
	// clean is set if nothing of this attempt is left, or under way, on any node.
	clean bool
}

// Acquire implements core.Backend. See rules 1 to 5 at quorum.
func (q *quorum) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	for try := 1; ; try++ {
		if err := contextError(ctx); err != nil {
			return core.Grant{}, &core.UnavailableError{Key: r.Key, Nodes: []error{err}}
		}
		if err := q.identity.refusal(r.Key); err != nil {
			return core.Grant{}, err
		}
		a := &attempt{Request: r, quorum: q}
		g, again, err := a.run(ctx)
		// An attempt that is not clean gets a clean-up later. That would release the lease of a next
		// attempt with the same owner.
		if !again || try == acquireTries || !a.clean {
			return g, err
		}
		q.pause(ctx, time.Duration(try)*repairPause)
	}
}

// run asks the nodes once and follows the rules. again reports whether a next attempt may decide.
func (a *attempt) run(ctx context.Context) (g core.Grant, again bool, err error) {
	q := a.quorum
	a.ask(ctx)
	value, most := a.tally.decided(has(voteSealed))
	decided := value.closed() && most >= q.majority()
	heal := decided
	holder, holders := a.tally.holder()
	switch {
	case decided:
	case a.tally.yes() >= q.majority():
		if g, err = a.granted(ctx); err == nil {
			return g, false, nil
		}
		if a.withdraws(ctx, g) {
			return core.Grant{}, false, err
		}
	case holders >= q.majority():
		err = a.taken(holder, false)
	case a.tally.count(has(voteSealed)) > 0 && a.answered()-a.tally.count(has(voteHeld)) >= q.majority():
		value, decided, err = a.repair(ctx)
		again = !decided
	case holders > 0 && a.answered() >= q.majority():
		err = a.taken(holder, true)
	default:
		err = a.tally.unavailable(a.Key)
	}
	if decided {
		err = a.answer(value)
	}
	a.giveBack(ctx, heal, value)
	return core.Grant{}, again, err
}

// answered counts the nodes that said something about the key.
func (a *attempt) answered() int {
	return a.tally.count(func(v vote) bool {
		return v.err == nil && (v.status == voteYes || v.status == voteHeld || v.status == voteSealed)
	})
}

// ask follows rule 1.
func (a *attempt) ask(ctx context.Context) {
	q := a.quorum
	a.sent = time.Now()
	a.tally.quorum = q
	a.traces = &traces{ttl: a.TTL, answered: make(chan struct{})}
	a.traces.missing.Store(int64(len(q.nodes)))
	all := uint64(1)<<len(q.nodes) - 1
	a.traces.held.Store(all)
	a.traces.unsure.Store(all)
	r := q.round(a.Key, quorumAcquireScript, a.Owner, ownertext.Millis(a.TTL), ownertext.Millis(a.TTL+promiseLife),
		micros(q.now()), clockTolerance.Microseconds(), q.abstention(a.TTL), a.Adopt, q.identity.wanted())
	r.noted = a.traces.acquired
	a.rest = q.ask(ctx, r, func(v vote, left int) bool {
		a.tally.votes = append(a.tally.votes, v)
		return a.settled(left)
	})
}

// settled reports whether the answers still to come cannot change the outcome.
func (a *attempt) settled(left int) bool {
	majority := a.quorum.majority()
	value, most := a.tally.decided(has(voteSealed))
	_, holders := a.tally.holder()
	if a.tally.yes() >= majority || value.closed() && most >= majority || holders >= majority {
		return true
	}
	return a.answered() >= majority &&
		a.tally.yes()+left < majority && most+left < majority && holders+left < majority
}

// granted follows rule 3: a majority granted. If granted fails and may have written a value, it
// returns the grant together with the error.
func (a *attempt) granted(ctx context.Context) (core.Grant, error) {
	q := a.quorum
	var ballot uint64
	agreed := true
	for _, v := range a.tally.votes {
		if v.yes() {
			agreed = agreed && (ballot == 0 || ballot == v.ballot)
			ballot = max(ballot, v.ballot)
		}
	}
	voidLife := a.tally.voidLife()
	if !agreed && voidLife == 0 && a.Orphan == 0 {
		t, _ := q.askMajority(ctx, q.round(a.Key, quorumPrepareScript, a.Owner, ballot,
			ownertext.Millis(a.TTL+promiseLife), q.abstention(a.TTL), "1"))
		if t.yes() < q.majority() {
			return core.Grant{}, t.unavailable(a.Key, errTokens)
		}
		voidLife = t.voidLife()
	}
	g := core.Grant{Key: a.Key, Owner: a.Owner, Token: ballot * tokenBlock, Tokens: tokenBlock,
		Deadline: leases.Deadline(a.sent, a.TTL), Orphan: a.Orphan, Backend: a.traces}
	value, life := void, voidLife
	if a.Orphan > 0 {
		value, life = begun(a.Owner, a.Orphan), ownertext.Millis(a.TTL-time.Since(a.sent)+a.Orphan)
	}
	var err error
	if life > 0 {
		t, _ := q.askMajority(ctx, q.acceptRound(a.Key, a.Owner, stamp{ballot, 0}, value, life, modeKeep))
		if t.yes() < q.majority() {
			err = t.unavailable(a.Key, errLeftovers)
		}
	}
	if refused := q.identity.refusal(a.Key); err == nil && refused != nil {
		err = refused
	}
	if err == nil && !time.Now().Before(g.Deadline) {
		err = &core.UnavailableError{Key: a.Key, Nodes: []error{errLate}}
	}
	return g, err
}

// withdraws undoes what granted wrote for a lease that nobody gets. It does so only if other
// callers then get another answer, and reports whether it did. It writes VOID in place of the
// lease's own orphan record. If the lease was to adopt an orphan, it writes that orphan again. The
// leases stay until then. So nobody sees the orphan of an owner that never held the key.
func (a *attempt) withdraws(ctx context.Context, g core.Grant) bool {
	adopted := a.tally.newest(vote.yes)
	before, life := void, outlive(a.TTL+a.Orphan)
	switch {
	case g.Owner == "": // granted wrote nothing
		return false
	case adopted.closed():
		before, life = adopted.value, adopted.life()
	case a.Orphan == 0:
		return false
	}
	a.quorum.withdraw(ctx, g, before, life, func() { a.giveBack(context.Background(), false, accepted{}) })
	return true
}

var (
	errTokens    = errors.New("redisbackend: no majority agreed on a fencing token; try again")
	errLeftovers = errors.New("redisbackend: no majority recorded the new holder; try again")
	errLate      = errors.New("redisbackend: the answers came when the lease was about to end; try again, or use a longer TTL")
	errRepair    = errors.New("redisbackend: a minority of the nodes has a sealed value that could not be copied to the others; try again")
)

// repair follows rule 4. If decided is true, value is what a majority has now. After a repair with
// VOID, decided is false, because the key is free.
func (a *attempt) repair(ctx context.Context) (value accepted, decided bool, err error) {
	q := a.quorum
	b := a.tally.ballot() + 1
	t, _ := q.askMajority(ctx, q.round(a.Key, quorumPrepareScript, a.Owner, b,
		ownertext.Millis(promiseLife), q.abstention(a.TTL), ""))
	value = t.newest(vote.yes)
	if t.yes() < q.majority() || value.value == "" {
		return value, false, t.unavailable(a.Key, errRepair)
	}
	// The repair does not change when the value ends.
	t, _ = q.askMajority(ctx, q.acceptRound(a.Key, a.Owner, stamp{b, 1}, value.value, value.life(), modeRepair))
	if t.yes() < q.majority() {
		return value, false, t.unavailable(a.Key, errRepair)
	}
	value.at = stamp{b, 1}
	if !value.closed() { // the key is free now
		return value, false, a.taken(vote{}, true)
	}
	return value, true, nil
}

// answer returns the error that the caller gets for a decided value.
func (a *attempt) answer(value accepted) error {
	if owner, retention, ok := orphan(value.value); ok {
		return &core.OrphanedError{Key: a.Key, Owner: owner, Since: since(value, retention)}
	}
	token, text := unpackSeal(value.value)
	return &core.SealedError{Key: a.Key, Value: text, Token: token}
}

func (a *attempt) taken(v vote, contested bool) error {
	err := leases.Taken(a.Key, v.owner, v.lease)
	err.Contested = contested
	return err
}

// giveBack releases what the nodes granted. A node that granted is released now. A node without a
// known answer is cleaned up later. If heal is set, giveBack writes a decided value to the nodes
// that lack it. After a repair, heal is not set: the repair has asked all nodes already.
func (a *attempt) giveBack(ctx context.Context, heal bool, value accepted) {
	q := a.quorum
	a.clean = len(a.tally.votes) == len(q.nodes)
	var granted []int
	for _, v := range a.tally.votes {
		a.clean = a.clean && !v.unsure() && !v.retried
		if v.yes() {
			granted = append(granted, v.node)
		} else if v.unsure() {
			q.cleanUp(v.node, a.Key, a.Owner, a.TTL)
		}
	}
	a.clean = a.release(ctx, granted) && a.clean
	lacking := a.lacking(a.tally.votes, heal, value)
	if len(a.tally.votes) == len(q.nodes) && len(lacking) == 0 {
		return
	}
	go func() {
		var late []vote
		for v := range a.rest {
			late = append(late, v)
			if v.unsure() {
				q.cleanUp(v.node, a.Key, a.Owner, a.TTL)
			} else if v.yes() {
				a.release(context.Background(), []int{v.node})
			}
		}
		q.heal(a.Key, a.Owner, value, append(lacking, a.lacking(late, heal, value)...))
	}()
}

// lacking returns the nodes that answered and do not have a decided value.
func (a *attempt) lacking(votes []vote, heal bool, value accepted) (nodes []int) {
	for _, v := range votes {
		if heal && v.err == nil && v.status != voteHeld && v.at.less(value.at) {
			nodes = append(nodes, v.node)
		}
	}
	return nodes
}

// release releases grants that were not used. It wakes no waiter, because the key was not free
// before. If ctx ends first, release goes on in the background. It reports whether all nodes have
// confirmed.
func (a *attempt) release(ctx context.Context, nodes []int) (definite bool) {
	if len(nodes) == 0 {
		return true
	}
	r := a.quorum.round(a.Key, quorumReleaseScript, a.Owner, "0", 0, "", "")
	r.nodes = nodes
	released := make(chan bool, 1)
	go func() {
		all := true
		a.quorum.ask(context.Background(), r, func(v vote, _ int) bool {
			if v.err != nil {
				all = false
				a.quorum.cleanUp(v.node, a.Key, a.Owner, a.TTL)
			}
			return false
		})
		released <- all
	}()
	select {
	case definite = <-released:
		return definite
	case <-ctx.Done():
		return false
	}
}

// cleanUp releases in the background what a node may hold for owner.
func (q *quorum) cleanUp(i int, key, owner string, ttl time.Duration) {
	q.nodes[i].cleanUp(key, owner, time.Now().Add(ttl), nil)
}
