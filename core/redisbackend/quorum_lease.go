package redisbackend

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/leases"
)

// Extend implements core.Backend.
func (q *quorum) Extend(ctx context.Context, g core.Grant, ttl time.Duration) (core.Grant, error) {
	if err := q.tooLong(g.Key, ttl); err != nil {
		return g, err
	}
	deadline := leases.Deadline(time.Now(), ttl) // rule 6: of the time at which the requests are sent
	t, rest := q.ask(ctx, q.extension(g, ttl, ""), (*tally).ended)
	if err := t.outcome(g.Key); err != nil {
		return g, err
	}
	if !time.Now().Before(g.Deadline) { // rule 6: late answers do not count
		return g, errExpired
	}
	if deadline.After(g.Deadline) {
		g.Deadline = deadline
	}
	if l, ok := g.Backend.(*lease); ok && (len(t.votes) < t.asked || t.count(isFree) > 0) {
		go q.takeAgain(l, g, ttl, t.votes, rest)
	}
	return g, nil
}

// extension makes a round that extends a lease. With again "1", it takes the key again (rule 6).
func (q *quorum) extension(g core.Grant, ttl time.Duration, again string) round {
	return q.round(g.Key, quorumExtendScript, g.Owner, millis(ttl), again, number(q.again))
}

func isFree(v vote) bool { return v.has(voteFree) }

// takeAgain takes the key again on nodes that lost it, for example in a restart. A majority has
// confirmed the lease. These nodes count in the next Extend, not in this one (rule 6).
func (q *quorum) takeAgain(l *lease, g core.Grant, ttl time.Duration, votes []vote, rest <-chan vote) {
	for v := range rest {
		votes = append(votes[:len(votes):len(votes)], v)
	}
	again := q.extension(g, ttl, "1")
	again.nodes = nil
	for _, v := range votes {
		if isFree(v) {
			again.nodes = append(again.nodes, v.node)
		}
	}
	again.noted = l.took
	// rule 6: as long as it is held. A node that does not answer is soon excluded.
	for len(again.nodes) > 0 && !l.isOver() && time.Now().Before(g.Deadline) {
		t, _ := q.ask(context.Background(), again, func(*tally, int) bool { return false })
		again.nodes = nil
		for _, v := range t.votes { // rule 8: again that got no answer is sent again
			if v.err != nil && v.unsure() && !isServerReply(v.err) { // a refusal lasts
				again.nodes = append(again.nodes, v.node)
			}
		}
	}
}

// Release implements core.Backend. Without the notes of an attempt, it revokes the lease of another
// process: then it asks all nodes.
func (q *quorum) Release(ctx context.Context, g core.Grant) (core.Waiters, error) {
	l, own := g.Backend.(*lease)
	if !own {
		l = &lease{quorum: q, key: g.Key, owner: g.Owner, ttl: q.longest, held: 1<<len(q.nodes) - 1}
	}
	held, unsure := l.end()
	for _, i := range unsure {
		if !slices.Contains(held, i) {
			l.cleanUp(i)
		}
	}
	id := q.nodes[0].id
	w := unknownWaiters
	r := q.round(g.Key, releaseScript, g.Owner, q.nodes[0].channel(g.Key), id, waiting(g.Key)) // rule 7
	r.nodes = held
	r.noted = func(v vote) {
		if v.err != nil || slices.Contains(unsure, v.node) {
			l.cleanUp(v.node)
		}
	}
	t, _ := q.ask(ctx, r, func(t *tally, left int) bool {
		v := &t.votes[len(t.votes)-1]
		if v.yes() {
			n := waiters(id, q.nodes[v.node], v.waiting)
			w.Others, w.Need = max(w.Others, n.Others), max(w.Need, n.Need)
		} else if v.retried && v.no() && !isLate(g) {
			v.status, v.err = voteYes, nil // an earlier copy of this request released the key
		}
		return t.ended(left)
	})
	err := t.outcome(g.Key)
	if err == nil {
		for _, n := range q.nodes {
			n.freed(n.channel(g.Key))
		}
	}
	return w, err
}

// Inspect implements core.Backend. If several callers share the votes, it names the one that has
// most of them.
func (q *quorum) Inspect(ctx context.Context, key string) (core.State, error) {
	t, _ := q.ask(ctx, q.round(key, quorumReadScript, "", number(q.grants)), func(t *tally, _ int) bool {
		_, known := t.state()
		return known
	})
	st, known := t.state()
	if known {
		return st, nil
	}
	h, holders := t.holder()
	if holders == 0 || t.answered() < q.majority() {
		return st, t.unavailable(key, errUndecided)
	}
	return core.State{Status: core.Held, Owner: h.owner, ExpiresIn: h.lease}, nil
}

var errUndecided = errors.New("redisbackend: no majority agrees on the key's state; Acquire decides it")

// state returns the state that a majority agrees on.
func (t *tally) state() (st core.State, known bool) {
	majority := t.quorum.majority()
	h, n := t.holder()
	if n < majority {
		return core.State{}, t.count(isFree) >= majority
	}
	st = core.State{Status: core.Held, Owner: h.owner, ExpiresIn: h.lease}
	for _, v := range t.votes {
		if t.count(func(o vote) bool { return o.owner == h.owner && o.promise == v.promise }) >= majority {
			st.Token = v.promise * tokenBlock
		}
	}
	return st, true
}
