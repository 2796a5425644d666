package core

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	// The key goes from one local holder to the next (lock cohorting, Dice, Marathe, Shavit 2012) at most this
	// long; then the local line stands back for a moment, so that other processes get their turn:
	// for as long as it takes a waiter that is told of the release to ask, or one that polls.
	handOverFor      = 100 * time.Millisecond
	wokenStandBack   = 2 * time.Millisecond
	pollingStandBack = longestPause / 2
)

// line is where the waiters of this process for one key stand. Only its head talks to the backend, and only while no
// local holder has the key. Guarded by Locker.mu.
type line struct {
	lease     *lease // held locally
	head      *waiter
	queue     []*waiter
	entered   uint64    // how many waiters there were so far
	since     time.Time // when this process's turn began
	notBefore time.Time // the head stands back until then
}

// waiter is one caller of Acquire.
type waiter struct {
	ctx       context.Context
	traced    context.Context // ctx, or its child with the span: for calls of the backend
	key, name string
	settings
	ready chan delivery // made when the waiter queues; has room for its one delivery
	no    uint64        // of the waiters that queued in the line
}

// delivery is what a queued waiter gets: a lock, an error, or neither: then it is the head now.
type delivery struct {
	lock *Lock
	err  error
}

func (s *settings) sameLease(o *settings) bool {
	return s.ttl == o.ttl && s.tag == o.tag && s.noRenew == o.noRenew
}

// enter puts w into the line of its key: as the head if nobody is there, else at the end if queue says so.
func (l *Locker) enter(w *waiter, queue bool) (ln *line, head bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, false, fmt.Errorf("core: acquire key %q: %w", w.key, ErrClosed)
	}
	ln = l.lines[w.name]
	if ln == nil {
		ln = &line{head: w}
		l.lines[w.name] = ln
		return ln, true, nil
	}
	if queue {
		w.ready = make(chan delivery, 1)
		ln.entered++
		w.no = ln.entered
		ln.queue = append(ln.queue, w)
	}
	return ln, false, nil
}

// tryInLine answers at once: as the head of an empty line, or from what is known of who is there.
func (l *Locker) tryInLine(w *waiter) (*Lock, error) {
	ln, head, err := l.enter(w, false)
	if err != nil {
		return nil, err
	}
	if head {
		k, taken, err := l.try(w.traced, ln, w)
		if taken != nil {
			l.leave(ln, w)
			return nil, taken
		}
		return k, err
	}
	l.mu.Lock()
	lease, before := ln.lease, ln.head
	l.mu.Unlock()
	if lease != nil {
		if taken := lease.takenBy(w.key); taken != nil {
			return nil, taken
		}
	}
	// Somebody of this process is about to get the key; ask who has it now without getting in between.
	st, err := l.backend.Inspect(w.traced, w.name)
	if err != nil {
		return nil, named(err, w.key)
	}
	switch st.Status {
	case Sealed:
		return nil, &SealedError{Key: w.key, Value: st.Value, Token: st.Token, ExpiresIn: st.ExpiresIn}
	case Held:
		holder, tag := splitOwner(st.Owner)
		return nil, &TakenError{Key: w.key, Holder: holder, Tag: tag, RetryAfter: st.ExpiresIn}
	default:
		taken := &TakenError{Key: w.key, Holder: l.instance}
		if before != nil {
			taken.Tag = before.tag
		}
		return nil, taken
	}
}

// waitInLine waits for its turn and then for the key.
func (l *Locker) waitInLine(w *waiter) (*Lock, error) {
	ln, head, err := l.enter(w, true)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if head {
		ctx, cancel := w.limit(w.traced, began)
		defer cancel()
		k, taken, err := l.try(ctx, ln, w)
		if taken == nil {
			return k, err
		}
		return l.waitAsHead(ctx, ln, w, taken)
	}
	// Most of those in a line get a lock, or an answer, from who is before them: a context of their own would be most of what that costs.
	var over <-chan time.Time
	if w.wait > 0 {
		timer := time.NewTimer(w.wait)
		defer timer.Stop()
		over = timer.C
	}
	ctx := w.ctx
	select {
	case d := <-w.ready:
		switch {
		case d.lock != nil && w.ctx.Err() != nil: // I4: a context that is done never gets a lock
			_ = d.lock.Release(w.ctx)
			return nil, l.gaveUp(w.ctx, w, nil)
		case d.lock != nil || d.err != nil:
			return d.lock, d.err
		}
		ctx, cancel := w.limit(w.traced, began)
		defer cancel()
		return l.waitAsHead(ctx, ln, w, nil)
	case <-ctx.Done():
	case <-over:
		ctx = waitOver
	case <-l.done:
	}
	l.mu.Lock()
	left := ln.remove(w)
	holder := ln.lease
	l.mu.Unlock()
	if !left { // something was delivered just now
		d := <-w.ready
		if d.lock != nil {
			_ = d.lock.Release(w.ctx) // passes it on; a failure is the backend's to clean up
		}
		if d.lock == nil && d.err == nil {
			l.leave(ln, w)
		}
	}
	return nil, l.gaveUp(ctx, w, holder.takenBy(w.key))
}

// leave ends w's time as the head.
func (l *Locker) leave(ln *line, w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ln.head == w {
		ln.head = nil
		l.promote(ln, w.name)
	}
}

// leaseOver says that s holds the key no more; the next in line may ask the backend.
func (l *Locker) leaseOver(s *lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ln := l.lines[s.grant.Key]; ln != nil && ln.lease == s {
		ln.lease = nil
		l.promote(ln, s.grant.Key)
	}
}

// promote makes the first in the queue the head, or removes the line when nobody is there. Locker.mu is held.
func (l *Locker) promote(ln *line, name string) {
	if ln.lease != nil || ln.head != nil {
		return
	}
	if len(ln.queue) == 0 {
		delete(l.lines, name)
		return
	}
	ln.head = ln.shift()
	ln.head.ready <- delivery{}
}

// next picks who gets the lease s without a round trip: the first in the queue, if it wants the same kind of lease and
// this process's turn is not over.
func (l *Locker) next(s *lease, now time.Time) *waiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.lines[s.grant.Key]
	if ln == nil || ln.lease != s || len(ln.queue) == 0 || l.closed {
		return nil
	}
	if now.Sub(ln.since) > handOverFor {
		ln.since, ln.notBefore = time.Time{}, now.Add(l.chance.jitter(l.standBack))
		return nil
	}
	if s.handed+1 >= s.grant.Tokens || !ln.queue[0].sameLease(&s.settings) {
		return nil // a new lease, in the same turn
	}
	return ln.shift()
}

func (ln *line) shift() *waiter {
	w := ln.queue[0]
	ln.queue[0] = nil
	if ln.queue = ln.queue[1:]; len(ln.queue) == 0 {
		ln.queue = nil
	}
	return w
}

// remove takes w out of the queue; false means that it was not there any more.
func (ln *line) remove(w *waiter) bool {
	i := slices.Index(ln.queue, w)
	if i < 0 {
		return false
	}
	ln.queue = slices.Delete(ln.queue, i, i+1)
	return true
}
