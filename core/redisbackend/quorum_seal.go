package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/leases"
	"github.com/onelane/onelane/internal/ownertext"
)

// The modes of the accept script.
const (
	modeKeep   = "keep"   // beside the caller's lease
	modeEnd    = "end"    // instead of the caller's lease
	modeRepair = "repair" // if nobody else holds the key
	modeHeal   = "heal"   // a decided value, if nobody else holds the key
)

const (
	concludeTries = 4
	unsealTries   = 5
	// maxHealing bounds how many values are written to nodes that lack them at a time.
	maxHealing = 1024
)

func (q *quorum) acceptRound(key, owner string, at stamp, value string, life int64, mode string) round {
	return q.round(key, quorumAcceptScript, owner, at.ballot, at.step, value, life,
		ownertext.Millis(promiseLife), mode, q.abstention(0), companion(key, "free"))
}

// heal writes a decided value to nodes that lack it.
func (q *quorum) heal(key, owner string, value accepted, nodes []int) {
	if len(nodes) == 0 {
		return
	}
	if q.healing.Add(1) <= maxHealing {
		r := q.acceptRound(key, owner, value.at, value.value, value.life(), modeHeal)
		r.nodes = nodes
		q.ask(context.Background(), r, func(vote, int) bool { return false })
	}
	q.healing.Add(-1)
}

// Seal implements core.Backend.
func (q *quorum) Seal(ctx context.Context, g core.Grant, value []byte, retention time.Duration) error {
	l, _ := g.Backend.(*traces)
	if l != nil && l.released.Load() {
		// The release may still be under way to some nodes, and the seal could overtake it.
		return fmt.Errorf("%w: it was released", core.ErrLost)
	}
	seal := string(packSeal(g.Token, value))
	if g.Orphan == 0 && !time.Now().Before(g.Deadline) {
		return q.sealedBefore(ctx, g, seal)
	}
	if l != nil {
		l.seal.CompareAndSwap(nil, &seal)
	}
	_, err := q.conclude(ctx, g, seal, ownertext.Millis(retention))
	if err == nil && l != nil {
		l.over.Store(true)
	}
	return err
}

// sealedBefore returns the outcome of a Seal that comes after the lease ended. An earlier Seal may
// have sealed the key. A new Seal could succeed only on nodes whose clocks are late.
func (q *quorum) sealedBefore(ctx context.Context, g core.Grant, seal string) error {
	lost := fmt.Errorf("%w: the lease expired", core.ErrLost)
	if l, ok := g.Backend.(*traces); ok && l.seal.Load() == nil {
		return lost
	}
	isSealed := func(t *tally) bool {
		a, most := t.decided(has(voteSealed))
		return most >= q.majority() && a.value == seal
	}
	t := q.read(ctx, g.Key, func(t *tally, _ int) bool { return isSealed(t) })
	if isSealed(&t) {
		return nil
	}
	if t.answered() == len(q.nodes) && t.count(func(v vote) bool { return v.value == seal }) == 0 {
		return lost
	}
	return t.unavailable(g.Key, errConclude)
}

// conclude ends a lease with a value: a seal, or VOID for an orphan that its owner withdraws. It
// returns the value that stays.
//
// It needs a larger ballot if nodes promised one since the lease began. It also needs one if an
// earlier Seal sent another value, because nobody could tell two values under one stamp apart. If
// somebody else revokes the lease, its holder may have sent another value. Without an orphan,
// conclude takes a larger ballot only before the deadline. After that, another holder may have a
// smaller ballot.
func (q *quorum) conclude(ctx context.Context, g core.Grant, value string, life int64) (string, error) {
	at := stamp{g.Token / tokenBlock, 1}
	first := at
	t := tally{quorum: q}
	l, _ := g.Backend.(*traces)
	larger := l == nil || l.sentOther(value)
	if l == nil {
		first = stamp{} // nobody knows when a lease began that somebody else revokes
	}
	for try := 1; ; try++ {
		if !larger {
			var rest <-chan vote
			if t, rest = q.askToEnd(ctx, g, at, value, life); t.yes() >= q.majority() {
				q.forgetAll(g, t.votes, rest)
				return value, nil
			}
			// Nodes that refused are still the caller's.
			if t.yes()+t.count(has(voteRefused)) < q.majority() || try == concludeTries {
				break
			}
		}
		if g.Orphan == 0 && !time.Now().Before(g.Deadline) {
			break
		}
		b := max(t.ballot(), at.ballot) + 1
		p, _ := q.askMajority(ctx, q.round(g.Key, quorumPrepareScript, g.Owner, b,
			ownertext.Millis(promiseLife), q.abstention(0), "1"))
		if p.yes() < q.majority() {
			if t = p; larger && p.yes()+p.count(has(voteRefused)) >= q.majority() && try < concludeTries {
				continue
			}
			break
		}
		at, larger = stamp{b, 1}, false
		// A value that was accepted since the lease began may be decided.
		if h := p.newest(vote.yes); !h.at.less(first) && h.value != value {
			if owner, _, ok := orphan(h.value); !ok || owner != g.Owner {
				if value != void || !sealedBy(g, h.value) {
					return "", fmt.Errorf("%w: another value was sealed already", core.ErrLost)
				}
				value, life = h.value, h.life()
			}
		}
	}
	return q.unconcluded(g, at, value, t)
}

// sentOther reports whether a Seal of another value was sent before.
func (l *traces) sentOther(value string) bool {
	sent := l.seal.Load()
	return sent != nil && *sent != value
}

// askToEnd asks all nodes to accept a value instead of the caller's lease.
func (q *quorum) askToEnd(ctx context.Context, g core.Grant, at stamp, value string, life int64) (t tally, rest <-chan vote) {
	t.quorum = q
	r := q.acceptRound(g.Key, g.Owner, at, value, life, modeEnd)
	r.traces, _ = g.Backend.(*traces)
	rest = q.ask(ctx, r, func(v vote, _ int) bool {
		t.votes = append(t.votes, v)
		// Otherwise wait, because the last answer may be that the value is there.
		return t.yes() >= q.majority() || t.superseded(at) >= q.majority()
	})
	return t, rest
}

// unconcluded returns what became of a lease that could not be ended with a value.
func (q *quorum) unconcluded(g core.Grant, at stamp, value string, t tally) (string, error) {
	a, most := t.decided(notHeld)
	if decided := most >= q.majority(); decided {
		same := t.count(func(v vote) bool { return v.err == nil && v.at == a.at && v.extra == "same" })
		switch {
		case same > 0:
			return value, nil
		case value == void && sealedBy(g, a.value):
			return a.value, nil
		case a.closed():
			return "", fmt.Errorf("%w: the key is sealed", core.ErrLost)
		}
	}
	// If a majority accepted something later, no repair takes the value.
	if t.superseded(at) >= q.majority() {
		return "", fmt.Errorf("%w: another caller took the key over", core.ErrLost)
	}
	// A seal on a minority may yet become a majority's. VOID on a minority changes nothing.
	refused := t.count(has(voteRefused))
	unsure := t.count(func(v vote) bool { return v.yes() || v.unsure() || v.extra == "same" }) + refused
	if value != void && unsure > 0 || t.noes()-refused <= len(q.nodes)-q.majority() {
		return "", t.unavailable(g.Key, errConclude)
	}
	if h, n := t.holder(); n > 0 {
		return "", leases.Lost(core.Held, h.owner)
	}
	return "", fmt.Errorf("%w: the lease expired or was deleted", core.ErrLost)
}

// superseded counts the nodes that accepted something later, and another value.
func (t *tally) superseded(at stamp) int {
	return t.count(func(v vote) bool { return v.err == nil && at.less(v.at) && v.extra != "same" })
}

var errConclude = errors.New("redisbackend: a minority of the nodes may have the value; call Seal again, or Inspect, to find out")

// Unseal implements core.Backend.
func (q *quorum) Unseal(ctx context.Context, key string) error {
	u := &unsealing{quorum: q, key: key, owner: ownertext.New("unseal", "", 0)}
	for try := 1; ; try++ {
		done, err := u.run(ctx)
		if done || try == unsealTries || contextError(ctx) != nil {
			return err
		}
		q.pause(ctx, time.Duration(try)*repairPause)
	}
}

// unsealing is one call of Unseal.
type unsealing struct {
	quorum     *quorum
	key, owner string
	// seen are the values that the first try saw. A next try leaves a later holder's value alone.
	seen  []string
	tried bool
}

// run makes one try. done reports whether another try cannot help.
func (u *unsealing) run(ctx context.Context) (done bool, err error) {
	q := u.quorum
	t := q.read(ctx, u.key, func(t *tally, _ int) bool {
		// If no node so far has a value, wait for all nodes. A last copy on a node that has not
		// answered would come back.
		return t.count(has(voteSealed)) > 0 && t.answered() >= q.majority()
	})
	if t.answered() < q.majority() {
		return true, t.unavailable(u.key)
	}
	if _, holders := t.holder(); holders >= q.majority() || !u.concerns(t) {
		return true, nil
	}
	b, life := t.ballot()+1, t.voidLife()
	t, _ = q.askMajority(ctx, q.round(u.key, quorumPrepareScript, u.owner, b,
		ownertext.Millis(promiseLife), q.abstention(0), ""))
	switch {
	case t.yes() < q.majority():
		u.tried = true
		return false, t.unavailable(u.key)
	case u.tried && u.isLater(t, vote.yes): // only yes answers have whole values
		return true, nil
	}
	u.tried = true
	life = max(life, t.voidLife())
	t, _ = q.askMajority(ctx, q.acceptRound(u.key, u.owner, stamp{b, 1}, void, life, modeRepair))
	if t.yes() < q.majority() {
		return false, t.unavailable(u.key)
	}
	return true, nil
}

// concerns reports whether there is something that this call has to void.
func (u *unsealing) concerns(t tally) bool {
	if u.seen == nil {
		for _, v := range t.votes {
			if v.closed() {
				u.seen = append(u.seen, v.value)
			}
		}
	}
	if t.count(has(voteSealed)) > 0 {
		return !u.isLater(t, notFailed)
	}
	// A VOID without a majority voids nothing. A node that has not answered may still have the
	// value.
	_, most := t.decided(notFailed)
	voids := t.count(func(v vote) bool { return v.value == void })
	return voids > 0 && most < u.quorum.majority() && t.answered() < len(u.quorum.nodes)
}

// isLater looks at the newest value of the answers that match such. It reports whether a holder
// that came after the first try wrote it. The answers must have whole values.
func (u *unsealing) isLater(t tally, such func(vote) bool) bool {
	top := t.newest(such)
	return top.closed() && !slices.Contains(u.seen, top.value)
}
