package core

import (
	"context"
	"errors"
	"strconv"
	"time"
)

// decide makes one answer of the nodes': a decided seal, then a majority of grants, then taken, else unavailable.
func (q *quorum) decide(ctx context.Context, b *ballot, g Grant, ttl time.Duration) (Grant, error) {
	if len(b.seals) > 0 {
		if err := q.decideSeal(ctx, b, g); err != nil {
			return g, err
		}
	}
	if len(b.granted) >= q.majority() {
		return q.decideToken(ctx, b, g, ttl)
	}
	answered := len(b.granted)
	var most []answer
	for _, holders := range b.taken {
		answered += len(holders)
		if len(holders) > len(most) || len(holders) == len(most) && holders[0].millis(2) < most[0].millis(2) { // a split vote: who ends first
			most = holders
		}
	}
	for _, seals := range b.seals {
		answered += len(seals)
	}
	if len(most) > 0 && answered >= q.majority() {
		holder, tag := splitOwner(most[0].text(1))
		return g, &TakenError{Key: g.Key, Holder: holder, Tag: tag, RetryAfter: most[0].millis(2), contested: len(most) < q.majority()}
	}
	return g, &UnavailableError{Key: g.Key, Nodes: b.failed}
}

// decideToken is the first token of the lease: the largest of the nodes', stored by a majority. Where they differ it is
// written back on a majority where we still are the owner: their maximum alone is not a fencing token.
func (q *quorum) decideToken(ctx context.Context, b *ballot, g Grant, ttl time.Duration) (Grant, error) {
	var nodes []int
	for i, v := range b.granted {
		nodes, g.Token = append(nodes, i), max(g.Token, v.token)
	}
	agreed := 0
	for _, v := range b.granted {
		if v.token == g.Token {
			agreed++
		}
	}
	if agreed >= q.majority() {
		return g, nil
	}
	var v votes
	q.ask(ctx, nodes, func(ctx context.Context, n *redisBackend, _ int) (reply, error) {
		return n.call(ctx, g.Key, quorumRaiseScript, []string{g.Key, companion(g.Key, "fence")}, g.Owner,
			strconv.FormatUint(g.Token+tokenBlock-1, 10), millis(ttl+fenceLife))
	}, func(a answer) bool {
		v.add(a, a.status == 1)
		return v.yes >= q.majority()
	}, nil)
	if v.yes < q.majority() {
		return g, &UnavailableError{Key: g.Key, Nodes: append(v.failed, errors.New("the nodes could not agree on a fencing token"))}
	}
	return g, nil
}

// decideSeal returns the seal if a majority carries it, and nil if it is old: then it is ignored. A seal on a minority, after
// which nobody ran, is written to the nodes that granted just now, with its remaining time, and answered once a majority
// carries it. (Simulated: answering without that, or repairing an old one, lets two answers be given.)
func (q *quorum) decideSeal(ctx context.Context, b *ballot, g Grant) error {
	var best []answer
	var token uint64
	for seal, nodes := range b.seals {
		t, _ := unpackSeal(seal)
		if len(nodes) >= q.majority() {
			best = nodes
			break
		}
		if best == nil || t > token {
			best, token = nodes, t
		}
	}
	seal := best[0].text(1)
	token, value := unpackSeal(seal)
	left := best[0].millis(2)
	sealed := &SealedError{Key: g.Key, Value: value, Token: token, ExpiresIn: left}
	if len(best) >= q.majority() {
		return sealed
	}
	undecided := func(why string) error {
		return &UnavailableError{Key: g.Key, Nodes: append(b.failed, errors.New("core: a minority of the nodes has a seal: "+why))}
	}
	counted := true
	for _, v := range b.granted {
		counted = counted && v.counted
		if v.counted && v.before > token+tokenBlock-1 { // somebody ran after it
			if len(b.granted) >= q.majority() {
				return nil
			}
			return undecided("it is old, but no majority could be asked")
		}
	}
	if !counted {
		return undecided("whether somebody ran after it is not known any more")
	}
	nodes, has := make([]int, 0, len(b.granted)), len(best)
	for i := range b.granted {
		nodes = append(nodes, i)
	}
	q.ask(ctx, nodes, func(ctx context.Context, n *redisBackend, i int) (reply, error) {
		return n.call(ctx, g.Key, quorumSealScript, []string{g.Key, companion(g.Key, "fence")}, g.Owner, n.channel(g.Key), seal,
			max(millis(left), 1), token, millis(left+fenceLife), strconv.FormatUint(b.granted[i].token+tokenBlock-1, 10))
	}, func(a answer) bool {
		if a.err == nil && a.status == 1 {
			has++
		}
		return has >= q.majority()
	}, nil)
	if has >= q.majority() {
		return sealed
	}
	return undecided("it could not be written to a majority")
}
