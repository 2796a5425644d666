package gormlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
)

// groupQueues are where callers wait for a group, one queue per key.
type groupQueues struct {
	mu    sync.Mutex
	all   map[queueKey]*queue
	open  time.Duration // instead of groupOpen
	limit time.Duration // instead of groupTime
}

// queueKey names the callers that can share a transaction.
type queueKey struct {
	pool   gorm.ConnPool
	keys   string
	size   int
	fenced bool
}

type queue struct {
	waiting []*turn
	next    *group // waits for the lock, or takes callers in; nil if nobody waits
}

var errNobody = errors.New("nobody waits for the group any more")

// join waits for the caller's turn in a group and returns its part of the transaction.
func (p *pool) join(ctx context.Context, d demand) (*transaction, error) {
	s := newTurn(ctx)
	key := queueKey{p, quoted(d.keys), d.group, d.fenced}
	if reflect.ValueOf(p.ConnPool).Comparable() {
		key.pool = p.ConnPool // several gorm.DB may share it
	}
	queues := &p.plugin.queues
	if !queues.enter(p, key, d, s) {
		return nil, guardError(d.keys, &core.TakenError{Key: d.keys[0], QueueFull: true})
	}
	timer := time.NewTimer(d.wait)
	defer timer.Stop()
	var err error
	select {
	case err = <-s.ready:
	case <-ctx.Done():
		err = queues.giveUp(key, s, d, ctx.Err())
	case <-timer.C:
		err = queues.giveUp(key, s, d, nil)
	}
	if err != nil {
		return nil, err
	}
	g := s.group
	s.t = &transaction{pool: p, ctx: ctx, keys: d.keys, locks: g.locks, fenced: g.t.fenced,
		real: s, turn: s}
	s.t.holds.Store(true)
	return s.t, nil
}

// enter puts a caller into its queue, and reports false if the queue is full.
func (qs *groupQueues) enter(p *pool, key queueKey, d demand, s *turn) bool {
	limit := 0
	if l, err := p.plugin.lockerInUse(); err == nil { // else who acquires the lock gets the error
		limit = l.MaxWaiters()
	}
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.all[key]
	if q != nil && limit > 0 && len(q.waiting) >= limit {
		return false
	}
	if q == nil {
		q = &queue{}
		if qs.all == nil {
			qs.all = make(map[queueKey]*queue)
		}
		qs.all[key] = q
	}
	q.waiting = append(q.waiting, s)
	if q.next == nil {
		qs.start(p, key, q, d)
	}
	return true
}

// start begins a group for the waiters. qs.mu is held.
func (qs *groupQueues) start(p *pool, key queueKey, q *queue, d demand) {
	// Each caller counts its own time, and the last one that leaves ends the wait.
	d.wait = time.Hour
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(q.waiting[0].ctx))
	base := groupContext{ctx}
	q.next = &group{queues: qs, key: key, queue: q, demand: d, base: base, cancel: cancel,
		open: cmp.Or(qs.open, groupOpen), limit: cmp.Or(qs.limit, groupTime),
		t: &transaction{pool: p, ctx: base}, outcome: make(chan struct{})}
	go q.next.lead()
}

// giveUp ends a caller's wait because its context or, if ended is nil, its time has ended. If its
// turn or an error has come in the meantime, giveUp returns that.
func (qs *groupQueues) giveUp(key queueKey, s *turn, d demand, ended error) error {
	left, begins := qs.leave(key, s)
	switch {
	case !left:
		return <-s.ready
	case begins:
		return guardError(d.keys, fmt.Errorf("%w: the group has the lock, "+
			"and waits for a connection to begin its transaction on, or for its fence",
			cmp.Or(ended, context.DeadlineExceeded)))
	}
	return guardError(d.keys, &core.TakenError{Key: d.keys[0], Cause: ended})
}

// leave takes a caller out of its queue. left is false if its turn, or an error, has just come.
// begins reports whether the group has the lock and no transaction yet.
func (qs *groupQueues) leave(key queueKey, s *turn) (left, begins bool) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.all[key]
	if q == nil {
		return false, false
	}
	i := slices.Index(q.waiting, s)
	if i < 0 {
		return false, false
	}
	q.waiting = slices.Delete(q.waiting, i, i+1)
	if q.next != nil && q.next.phase != groupAdmits {
		begins = q.next.phase == groupBegins
		if len(q.waiting) == 0 {
			q.next.cancel(errNobody)
		}
	}
	return true, begins
}

func (q *queue) shift() *turn {
	s := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	return s
}
