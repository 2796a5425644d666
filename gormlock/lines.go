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

// lines are where callers wait for a group.
type lines struct {
	mu   sync.Mutex
	all  map[lineName]*line
	open time.Duration // instead of groupOpen
	time time.Duration // instead of groupTime
}

// lineName says who can be in one transaction.
type lineName struct {
	pool   gorm.ConnPool
	keys   string
	size   int
	fenced bool
}

type line struct {
	waiting []*turn
	next    *group // waits for the lock, or takes callers in; nil if nobody waits
}

// join waits for the caller's turn in a group.
func (p *pool) join(ctx context.Context, d demand) (*transaction, error) {
	s := newTurn(ctx)
	name := lineName{p, quoted(d.keys), d.group, d.fenced}
	if reflect.TypeOf(p.ConnPool).Comparable() {
		name.pool = p.ConnPool // several gorm.DB may be over it
	}
	all := &p.plugin.lines
	all.enter(p, name, d, s)
	timer := time.NewTimer(d.wait)
	defer timer.Stop()
	var err error
	select {
	case err = <-s.ready:
	case <-ctx.Done():
		err = all.giveUp(name, s, d, ctx.Err())
	case <-timer.C:
		err = all.giveUp(name, s, d, nil)
	}
	if err != nil {
		return nil, err
	}
	s.t = &transaction{pool: p, ctx: ctx, keys: d.keys, locks: s.group.locks, fenced: s.group.t.fenced, real: s, turn: s}
	return s.t, nil
}

func (ls *lines) enter(p *pool, name lineName, d demand, s *turn) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.all[name]
	if l == nil {
		l = &line{}
		if ls.all == nil {
			ls.all = make(map[lineName]*line)
		}
		ls.all[name] = l
	}
	l.waiting = append(l.waiting, s)
	if l.next == nil {
		ls.start(p, name, l, d)
	}
}

// start begins a group for those who wait. ls.mu is held.
func (ls *lines) start(p *pool, name lineName, l *line, d demand) {
	d.wait = time.Hour // each caller counts its own time, and the last to leave ends the wait
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(l.waiting[0].ctx))
	g := &group{lines: ls, name: name, line: l, demand: d, base: ctx, cancel: cancel, outcome: make(chan struct{})}
	g.open, g.time = cmp.Or(ls.open, groupOpen), cmp.Or(ls.time, groupTime)
	g.t = &transaction{pool: p, ctx: ctx}
	l.next = g
	go g.lead()
}

// giveUp ends a caller's wait because of its context or, where ended is nil, its time, and says what it waited for; or what
// has just come.
func (ls *lines) giveUp(name lineName, s *turn, d demand, ended error) error {
	left, begins := ls.leave(name, s)
	switch {
	case !left:
		return <-s.ready
	case begins:
		return guardError(d.keys, fmt.Errorf("%w: the group has the lock, and waits for a connection to begin its transaction on, or for its fence",
			cmp.Or(ended, context.DeadlineExceeded)))
	}
	return guardError(d.keys, &core.TakenError{Key: d.keys[0], Cause: ended})
}

// leave takes a caller out of its line; left is false if its turn, or an error, has just come. begins says that the group has
// the lock and no transaction yet.
func (ls *lines) leave(name lineName, s *turn) (left, begins bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.all[name]
	if l == nil {
		return false, false
	}
	i := slices.Index(l.waiting, s)
	if i < 0 {
		return false, false
	}
	l.waiting = slices.Delete(l.waiting, i, i+1)
	begins = l.next != nil && l.next.locked && !l.next.had
	if len(l.waiting) == 0 && l.next != nil && !l.next.had {
		l.next.cancel(errNobody)
	}
	return true, begins
}

var errNobody = errors.New("nobody waits any more")

func (l *line) shift() *turn {
	s := l.waiting[0]
	l.waiting[0] = nil
	l.waiting = l.waiting[1:]
	return s
}
