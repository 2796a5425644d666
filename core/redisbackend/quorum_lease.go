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

// inspectTries is how often Inspect looks if the votes are split.
const inspectTries = 4

// Extend implements core.Backend.
func (q *quorum) Extend(ctx context.Context, g core.Grant, ttl time.Duration) (core.Grant, error) {
	sent := time.Now()
	record := ""
	if g.Orphan > 0 {
		record = begun(g.Owner, g.Orphan)
	}
	extend := func(again string) round {
		return q.round(g.Key, quorumExtendScript, g.Owner, ownertext.Millis(ttl), g.Token/tokenBlock,
			ownertext.Millis(ttl+promiseLife), q.abstention(ttl), record, again)
	}
	t := tally{quorum: q}
	rest := q.ask(ctx, extend(""), func(v vote, _ int) bool {
		t.votes = append(t.votes, v)
		return t.yes() >= q.majority() || t.noes() > len(q.nodes)-q.majority()
	})
	if err := t.outcome(g.Key); err != nil {
		return g, err
	}
	if d := leases.Deadline(sent, ttl); d.After(g.Deadline) {
		g.Deadline = d
	}
	q.takeAgain(g, t.votes, rest, extend("1"))
	return g, nil
}

// takeAgain takes the key again on nodes that lost it, for example in a restart. These nodes count
// in the next Extend, not in this one.
func (q *quorum) takeAgain(g core.Grant, votes []vote, rest <-chan vote, r round) {
	lost := func(v vote) bool { return v.err == nil && v.status == voteFree }
	if len(votes) == len(q.nodes) && (&tally{votes: votes}).count(lost) == 0 {
		return
	}
	go func() {
		r.nodes = nil
		for _, v := range votes {
			if lost(v) {
				r.nodes = append(r.nodes, v.node)
			}
		}
		for v := range rest {
			if lost(v) {
				r.nodes = append(r.nodes, v.node)
			}
		}
		if len(r.nodes) == 0 || !time.Now().Before(g.Deadline) {
			return
		}
		l, _ := g.Backend.(*traces)
		for _, i := range r.nodes {
			l.mark(i)
		}
		if l.isOver() {
			return
		}
		q.ask(context.Background(), r, func(v vote, _ int) bool {
			if l.isOver() && (v.yes() || v.unsure()) {
				q.cleanUp(v.node, g.Key, g.Owner, l.ttl)
			}
			return false
		})
	}()
}

// Release implements core.Backend.
func (q *quorum) Release(ctx context.Context, g core.Grant) (w core.Waiters, err error) {
	l, _ := g.Backend.(*traces)
	revokes := ""
	if l != nil {
		l.released.Store(true)
		l.over.Store(true)
	} else {
		// Somebody else revokes the lease and may not know its ballot. The largest ballot in the
		// answers is enough.
		revokes = "1"
		t := q.read(ctx, g.Key, func(*tally, int) bool { return false })
		if t.answered() < q.majority() {
			return unknown, t.unavailable(g.Key)
		}
		g.Token = t.ballot() * tokenBlock
	}
	if g.Orphan > 0 {
		return unknown, q.releaseOrphan(ctx, g)
	}
	w = unknown
	t := tally{quorum: q}
	r := q.round(g.Key, quorumReleaseScript, g.Owner, g.Token/tokenBlock, ownertext.Millis(promiseLife),
		companion(g.Key, "free"), q.nodes[0].id, revokes)
	r.traces = l
	rest := q.ask(ctx, r, func(v vote, _ int) bool {
		// An earlier copy of this request may have released the key. A key that its holder sealed
		// stays sealed. Both count as released.
		sealed := l != nil && v.status == voteSealed && sealedBy(g, v.value)
		if v.err == nil && (v.status == voteFree && v.retried || sealed) {
			v.status = voteYes
		} else if v.yes() {
			w.Need = 10 * time.Millisecond // the nodes count subscribers
			w.Others = max(w.Others, q.nodes[v.node].others(q.nodes[v.node].channel(g.Key), v.waiting))
		}
		t.votes = append(t.votes, v)
		// A revoked holder may still run. It could seal on a node that the release has not reached.
		return l != nil && (t.yes() >= q.majority() || t.noes() > len(q.nodes)-q.majority())
	})
	q.forgetAll(g, t.votes, rest)
	err = t.outcome(g.Key)
	if err == nil {
		for _, n := range q.nodes {
			n.freed(n.channel(g.Key))
		}
	}
	return w, err
}

// releaseOrphan writes VOID over the record of an orphan before the key is free. It does so now if
// it can, and otherwise in the background.
func (q *quorum) releaseOrphan(ctx context.Context, g core.Grant) error {
	life := outlive(g.Orphan + max(time.Until(g.Deadline), 0))
	stays, err := q.conclude(ctx, g, void, life)
	if _, own := g.Backend.(*traces); err == nil && stays != void && !own {
		return fmt.Errorf("%w: the key is sealed", core.ErrLost)
	}
	if err != nil {
		go func() {
			q.insist(g, void, life, err)
			all := make([]vote, len(q.nodes)) // no node has confirmed
			for i := range all {
				all[i].node = i
			}
			q.forget(g, all)
		}()
	}
	return err
}

// withdraw replaces the record of a lease that nobody got with the earlier value, before. Then it
// calls giveBack. It returns after one try, or when ctx ends. If the outcome is not known then, it
// goes on in the background (see insist).
func (q *quorum) withdraw(ctx context.Context, g core.Grant, before string, life int64, giveBack func()) {
	tried := make(chan struct{})
	go func() {
		defer giveBack()
		_, err := q.conclude(context.Background(), g, before, life)
		close(tried)
		q.insist(g, before, life, err)
	}()
	select {
	case <-tried:
	case <-ctx.Done():
	}
}

// insist repeats a try to conclude a lease with a value. The first try ended with err. insist ends
// when the outcome is known, the lease has ended, or the backend is closed.
func (q *quorum) insist(g core.Grant, value string, life int64, err error) {
	for pause := repairPause; errors.Is(err, core.ErrUnavailable); pause = min(2*pause, time.Second) {
		if q.pause(q.nodes[0].done, pause); !time.Now().Before(g.Deadline) || q.closed() {
			break
		}
		_, err = q.conclude(context.Background(), g, value, life)
	}
	if !errors.Is(err, core.ErrUnavailable) {
		return
	}
	q.env.Logger.Warn("redisbackend: a failed attempt may have left its record on a minority of the nodes, so that its key may be found orphaned; look at the nodes in the error, and Unseal such a key",
		"key", ownertext.Key(g.Key), "owner", g.Owner, "error", err)
}

func (q *quorum) closed() bool { return q.nodes[0].done.Err() != nil }

// forgetAll is like forget, and also waits for the nodes that answer after the majority.
func (q *quorum) forgetAll(g core.Grant, votes []vote, rest <-chan vote) {
	if len(votes) == len(q.nodes) {
		q.forget(g, votes)
		return
	}
	votes = slices.Clone(votes)
	go func() {
		for v := range rest {
			votes = append(votes, v)
		}
		q.forget(g, votes)
	}()
}

// After a release, forget cleans up on nodes that may still hold the lease. The release did not
// reach such a node, or it may have overtaken the Acquire there.
func (q *quorum) forget(g core.Grant, votes []vote) {
	l, _ := g.Backend.(*traces)
	if l == nil {
		return
	}
	dirty := l.unsure.Load() | l.again.Load()
	for _, v := range votes {
		if !v.yes() || v.retried {
			dirty |= l.held.Load() & (1 << v.node)
		}
	}
	for i := range q.nodes {
		if dirty&(1<<i) != 0 {
			q.cleanUp(i, g.Key, g.Owner, l.ttl)
		}
	}
}

// isOver reports whether the lease was released or sealed.
func (l *traces) isOver() bool { return l != nil && l.over.Load() }

func (l *traces) mark(i int) {
	if l != nil {
		l.again.Or(1 << i)
	}
}

// noes counts the nodes that do not have the lease.
func (t *tally) noes() int {
	return t.count(func(v vote) bool {
		return v.err == nil && v.status != voteYes || errors.Is(lostIfForeign(v.err), core.ErrLost)
	})
}

// outcome returns nil if a majority said yes. If no majority can say yes any more, it returns
// ErrLost. Otherwise it returns *UnavailableError.
func (t *tally) outcome(key string) error {
	majority := t.quorum.majority()
	switch {
	case t.yes() >= majority:
		return nil
	case t.noes() <= len(t.quorum.nodes)-majority:
		return t.unavailable(key)
	}
	if h, n := t.holder(); n > 0 {
		return leases.Lost(core.Held, h.owner)
	}
	if t.count(has(voteSealed)) > 0 {
		return fmt.Errorf("%w: the key is sealed or orphaned", core.ErrLost)
	}
	return fmt.Errorf("%w: the lease expired or was deleted", core.ErrLost)
}

// read asks all nodes for their state.
func (q *quorum) read(ctx context.Context, key string, enough func(t *tally, left int) bool) tally {
	t := tally{quorum: q}
	q.ask(ctx, q.round(key, quorumReadScript, "", q.abstention(0)), func(v vote, left int) bool {
		t.votes = append(t.votes, v)
		return enough(&t, left)
	})
	return t
}

// Inspect implements core.Backend.
func (q *quorum) Inspect(ctx context.Context, key string) (core.State, error) {
	for try := 1; ; try++ {
		t := q.read(ctx, key, func(t *tally, _ int) bool {
			_, known := t.state()
			return known
		})
		st, known := t.state()
		if known {
			return st, nil
		}
		h, holders := t.holder()
		if holders == 0 || t.count(has(voteSealed)) > 0 || t.answered() < q.majority() {
			return st, t.unavailable(key, errUndecided)
		}
		// Several callers share the votes, or a release is under way. That is soon over.
		if try == inspectTries || contextError(ctx) != nil {
			return core.State{Status: core.Held, Owner: h.owner, ExpiresIn: h.lease}, nil
		}
		q.pause(ctx, time.Duration(try)*repairPause)
	}
}

var errUndecided = errors.New("redisbackend: no majority agrees on the key's state; Acquire or Unseal decides it")

// state returns the state that a majority agrees on.
func (t *tally) state() (st core.State, known bool) {
	majority := t.quorum.majority()
	if h, n := t.holder(); n >= majority {
		st := core.State{Status: core.Held, Owner: h.owner, ExpiresIn: h.lease}
		for _, v := range t.votes {
			such := func(o vote) bool {
				return o.by == h.owner && o.owner == h.owner && o.ballot == v.ballot
			}
			if t.count(such) >= majority {
				st.Token = v.ballot * tokenBlock
			}
		}
		return st, true
	}
	if a, n := t.decided(has(voteSealed)); a.closed() && n >= majority {
		if owner, retention, ok := orphan(a.value); ok {
			return core.State{Status: core.Orphaned, Owner: owner, ExpiresIn: min(time.Until(a.ends), retention),
				Since: since(a, retention)}, true
		}
		token, value := unpackSeal(a.value)
		return core.State{Status: core.Sealed, Token: token, Value: value,
			ExpiresIn: time.Until(a.ends)}, true
	}
	return core.State{}, t.count(has(voteFree)) >= majority
}
