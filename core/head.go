package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// acquireAsHead asks the backend until the key is w's, the answer is final, or the wait ends.
func (w *waiter) acquireAsHead(ctx context.Context, q *queue) (*Lock, error) {
	defer w.locker.leave(q, w) // even after a panic of the backend; no effect once w has the lease
	var (
		pauses = backoff{jitter: w.locker.chance.jitter}
		watch  = watch{backend: w.locker.backend, name: w.name}
		asked  = false
	)
	w.waits = w.locker.id
	pause, need, last := w.standBack(q)
	if w.scout != nil {
		pauses.spread = w.scout.of.spread()
	}
	defer watch.stop()
	if pause > 0 {
		// A slow subscription does not make the pause longer: the key may be free.
		soon, cancel := context.WithTimeout(ctx, w.shorter(ctx, pause))
		watch.begin(soon)
		cancel()
		pause, need, _ = w.standBack(q) // subscribing took a while
	}
	for {
		for signaled := pause > 0; signaled; signaled = signaled && w.owes(q) {
			w.startWaiting()
			if !asked {
				pause = w.shorter(ctx, pause)
			}
			signaled = w.sleep(ctx, pause, &watch)
			pause = need
		}
		if ctx.Err() != nil || w.locker.isClosed() {
			return nil, w.gaveUp(ctx, last)
		}
		w.needs = w.locker.needs(&watch)
		asked = true
		k, err := w.askOnTurn(ctx, q)
		switch e := err.(type) {
		case *TakenError:
			watch.taken(e.Holder)
			// After subscribing, try once more: the key may have become free in between.
			if pause = 0; !watch.begin(ctx) {
				pause = pauses.taken(e, watch.active())
			}
		case *UnavailableError:
			if taken, ok := last.(*TakenError); ok && contextError(ctx) != nil {
				return nil, w.gaveUp(ctx, taken) // the wait ended in the middle of a try
			}
			if contextError(ctx) != nil || w.outageOver(q, e) {
				return nil, err
			}
			pause = pauses.unavailable()
		default:
			return k, err
		}
		last = err
	}
}

// standBack returns how long w leaves the key to other processes, what each later one of them needs,
// and the last answer of the backend. A caller that holds another key of the same AcquireAll does
// not stand back: others wait for the key that it holds, too.
func (w *waiter) standBack(q *queue) (pause, need time.Duration, last error) {
	w.locker.mu.Lock()
	defer w.locker.mu.Unlock()
	if w.holds {
		return 0, 0, q.last
	}
	return q.leaveAlone(), q.need, q.last
}

// shorter bounds the pause before the first question: a short wait has time for one.
func (w *waiter) shorter(ctx context.Context, pause time.Duration) time.Duration {
	end, ok := ctx.Deadline()
	if w.scout != nil {
		end, ok = w.scout.of.soonest()
	}
	if !ok {
		return pause
	}
	return min(pause, time.Until(end)/2)
}

// owes notes that another process had the key, and reports whether w leaves it to others once more.
func (w *waiter) owes(q *queue) bool {
	w.locker.mu.Lock()
	defer w.locker.mu.Unlock()
	if q.owed--; q.owed <= 0 {
		q.owed = 0
		return false
	}
	q.standBack = time.Now().Add(q.need)
	return true
}

// sleep waits for the pause to pass, for a signal, or for the end of the wait. It reports whether
// there was a signal.
func (w *waiter) sleep(ctx context.Context, pause time.Duration, watch *watch) (signaled bool) {
	var changed <-chan struct{}
	if watch != nil {
		changed = watch.changed
	}
	select {
	case <-time.After(pause):
		return false
	case <-ctx.Done():
		return false
	case <-w.locker.done:
		return false
	case _, open := <-changed:
		if !open {
			watch.ended()
			return false
		}
	}
	if watch.woken = true; watch.vain > 0 {
		w.sleep(ctx, watch.vain, nil)
	}
	return true
}

// askOnTurn calls ask. A scout waits for the slot first.
func (w *waiter) askOnTurn(ctx context.Context, q *queue) (*Lock, error) {
	if w.scout != nil {
		return w.askInSlot(ctx, q)
	}
	return w.ask(ctx, q)
}

// answerDue is a time without an answer. After it, a backend counts as unavailable, even if the
// callers' waits ended their questions.
const answerDue = 100 * time.Millisecond

// ask makes one attempt to acquire the key from the backend. On success w has the lease and is no
// longer the head.
func (w *waiter) ask(ctx context.Context, q *queue) (*Lock, error) {
	l := w.locker
	l.mu.Lock()
	arrived := q.arrived
	l.mu.Unlock()
	owner := l.chance.owner(l.instance, w.tag, w.orphan)
	sent := time.Now()
	g, err := l.backend.Acquire(ctx, Request{
		Key: w.name, Owner: owner, TTL: w.ttl, Token: w.token, Orphan: w.orphan, Adopt: w.adopt,
		Waiter: w.waits, Needs: w.needs,
	})
	if _, failed := err.(*UnavailableError); !failed {
		trip := int64(time.Since(sent))
		l.trip.Store((3*cmp.Or(l.trip.Load(), trip) + trip) / 4)
	}
	if err == nil {
		return w.granted(q, g, sent)
	}
	err = w.ownOrphan(withKey(err, w.key), owner)
	if _, failed := err.(*UnavailableError); failed && l.isClosed() {
		return nil, fmt.Errorf("core: acquire key %q: %w: %w", w.key, ErrClosed, err) // Close closed the backend
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	last := q.last
	q.last = nil
	switch err.(type) {
	case *TakenError:
		q.due, q.last = 0, err // another process has its turn
	case *UnavailableError:
		q.last = err
		if q.unanswered.IsZero() {
			q.unanswered = sent
		}
		// The end of w's own wait says nothing about the backend, unless an answer was due.
		if _, taken := last.(*TakenError); taken && contextError(ctx) != nil && time.Since(q.unanswered) < answerDue {
			q.last = last
		}
	}
	if !errors.Is(err, ErrUnavailable) {
		q.outage, q.unanswered = time.Time{}, time.Time{}
	}
	if errors.Is(err, ErrSealed) || errors.Is(err, ErrOrphaned) {
		// Callers that came after the question get no old answer: the key may be unsealed by now.
		q.answer(err, func(o *waiter) bool { return o.number <= arrived && o.adopt == "" })
	}
	return nil, err
}

// needs is how long after a release a waiter may need to ask again: two round trips, or mostNeed if it
// polls. Before the waiter has tried to listen, needs is 0.
func (l *Locker) needs(watch *watch) time.Duration {
	switch {
	case watch.active():
		return min(2*time.Duration(l.trip.Load())+needMargin, mostNeed)
	case watch.polls || watch.pause > 0:
		return mostNeed
	default:
		return 0
	}
}

var errLateAttempt = errors.New("core: an earlier attempt got the key when its lease had ended; try again, or use a longer TTL")

// ownOrphan returns the error for the attempt that owner made. If the key is the orphan of an
// earlier attempt of w, the error is *UnavailableError: nobody has worked under that lease. The
// backend frees such an orphan. If w adopts an orphan, this is the orphan that it adopts next.
func (w *waiter) ownOrphan(err error, owner string) error {
	switch e := err.(type) {
	case *UnavailableError:
		if w.orphan > 0 {
			w.failed = append(w.failed, owner)
		}
	case *OrphanedError:
		if !slices.Contains(w.failed, e.Owner) {
			return err
		}
		if w.adopt != "" {
			w.failed = append(w.failed, w.adopt) // the backend may make the key that orphan again
			w.adopt = e.Owner
		}
		return &UnavailableError{Key: w.key, Nodes: []error{errLateAttempt}}
	}
	return err
}

// outageOver reports whether w gives up on a backend that is unavailable. Waiters behind w that
// give up at this moment get the same error.
func (w *waiter) outageOver(q *queue, err *UnavailableError) bool {
	w.locker.mu.Lock()
	defer w.locker.mu.Unlock()
	now := time.Now()
	if q.outage.IsZero() {
		q.outage = now
	}
	over := func(o *waiter) bool {
		return err.Permanent || now.Sub(q.outage) >= o.outage && o.ttl <= w.ttl
	}
	q.answer(err, over)
	return over(w)
}
