package redisbackend

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/leases"
)

// Acquire implements core.Backend. It makes one attempt, because a second one needs another owner
// (rule 1).
func (q *quorum) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	if err := q.tooLong(r.Key, r.TTL); err != nil {
		return core.Grant{}, err
	}
	if err := contextError(ctx); err != nil {
		return core.Grant{}, &core.UnavailableError{Key: r.Key, Nodes: []error{err}}
	}
	l := &lease{quorum: q, key: r.Key, owner: r.Owner, ttl: r.TTL}
	deadline := leases.Deadline(time.Now(), r.TTL) // rules 1 and 4: of the time at which the requests are sent
	asked := q.round(r.Key, quorumAcquireScript, r.Owner, millis(r.TTL), number(q.now().UnixMicro()),
		number(q.grants), q.identity.wanted(), waiterText(q.nodes[0].id, r), millis(waiterLife))
	asked.noted = l.took
	t, _ := q.ask(ctx, asked, (*tally).settled)
	token, err := t.grant(ctx, l)
	if err == nil {
		err = q.identity.refusal(r.Key)
	}
	if err == nil && !time.Now().Before(deadline) { // rule 4: after the last phase
		err = &core.UnavailableError{Key: r.Key, Nodes: []error{errLate}}
	}
	if err != nil {
		l.giveBack(ctx) // rule 4
		return core.Grant{}, err
	}
	return core.Grant{Key: r.Key, Owner: r.Owner, Token: token * tokenBlock, Tokens: tokenBlock, // rule 4
		Deadline: deadline, Backend: l}, nil
}

// settled reports whether the answers to Acquire that are still to come cannot change its outcome.
func (t *tally) settled(left int) bool {
	majority := t.quorum.majority()
	_, holders := t.holder()
	if t.yes() >= majority || holders >= majority {
		return true
	}
	return t.answered() >= majority && t.yes()+left < majority && holders+left < majority
}

// grant returns the number of the lease, from the answers to Acquire.
func (t *tally) grant(ctx context.Context, l *lease) (uint64, error) {
	q := t.quorum
	holder, holders := t.holder()
	switch {
	case t.yes() >= q.majority():
		token, agreed := t.token()
		if agreed {
			return token, nil
		}
		r := q.round(l.key, quorumPromiseScript, l.owner, strconv.FormatUint(token, 10)) // rule 3: to the nodes that granted
		r.nodes = nil
		for _, v := range t.votes {
			if v.yes() {
				r.nodes = append(r.nodes, v.node)
			}
		}
		if p, _ := q.ask(ctx, r, (*tally).decided); p.yes() < q.majority() { // rule 3: a majority must accept
			return 0, p.unavailable(l.key, errTokens)
		}
		return token, nil
	case holders > 0 && t.answered() >= q.majority():
		err := leases.Taken(l.key, holder.owner, holder.lease)
		err.Contested = holders < q.majority()
		return 0, err
	default:
		return 0, t.unavailable(l.key)
	}
}

var (
	errTokens = errors.New("redisbackend: no majority agreed on a fencing token; try again")
	errLate   = errors.New("redisbackend: the answers came when the lease was about to end; try again, or use a longer TTL")
)

// lease notes on which nodes an attempt may hold the key. Grant.Backend has it.
type lease struct {
	quorum     *quorum
	key, owner string
	ttl        time.Duration

	mu     sync.Mutex
	held   uint64 // nodes that said yes
	unsure uint64 // nodes where a request may still be under way
	over   bool   // released, or never held
}

// took notes the answer to a request that takes the key. If the lease is over, it gives back what
// came late (rule 4).
func (l *lease) took(v vote) {
	l.mu.Lock()
	over := l.over
	if v.yes() {
		l.held |= 1 << v.node
	}
	if v.unsure() {
		l.unsure |= 1 << v.node
	}
	l.mu.Unlock()
	if !over {
		return
	}
	if v.yes() {
		l.release(context.Background(), []int{v.node})
	}
	if v.unsure() {
		l.cleanUp(v.node)
	}
}

func (l *lease) isOver() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

// end ends the lease. It returns the nodes that granted it, and those that may yet do.
func (l *lease) end() (held, unsure []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	for _, i := range l.quorum.everyone {
		if l.held&(1<<i) != 0 {
			held = append(held, i)
		}
		if l.unsure&(1<<i) != 0 {
			unsure = append(unsure, i)
		}
	}
	return held, unsure
}

// giveBack ends a lease that nobody holds. If ctx ends first, it goes on in the background.
func (l *lease) giveBack(ctx context.Context) {
	held, unsure := l.end()
	for _, i := range unsure {
		l.cleanUp(i)
	}
	if len(held) == 0 {
		return
	}
	released := make(chan struct{})
	go func() {
		l.release(context.Background(), held)
		close(released)
	}()
	select {
	case <-released:
	case <-ctx.Done():
	}
}

// release releases grants that were not used. It wakes no waiter, because the key was not free
// before.
func (l *lease) release(ctx context.Context, nodes []int) {
	r := l.quorum.round(l.key, releaseScript, l.owner, "", "")
	r.nodes = nodes
	r.noted = func(v vote) {
		if v.err != nil {
			l.cleanUp(v.node)
		}
	}
	l.quorum.ask(ctx, r, func(*tally, int) bool { return false })
}

// cleanUp releases in the background what a node may hold.
func (l *lease) cleanUp(i int) {
	l.quorum.nodes[i].cleanUp(l.key, quorumMark+l.owner, time.Now().Add(l.ttl), nil)
}
