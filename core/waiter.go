package core

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

var (
	errWaitOver    = errors.New("core: the wait is over")
	errLateAttempt = errors.New("core: an earlier attempt got the key when its lease had ended; try again, or use a longer TTL")
)

// waitOver is the context of a wait that is over.
var waitOver = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errWaitOver)
	return ctx
}()

// waiter is one call of Acquire.
type waiter struct {
	locker *Locker
	ctx    context.Context
	// traced is ctx, or its child with the span. Calls of the backend use it.
	traced    context.Context
	key, name string // as the caller and the backend write it
	class     *class
	counted   bool // as a waiter
	settings

	// Made when the waiter joins a queue behind others. Guarded by Locker.mu, except ready.
	ready  chan delivery // has room for the one delivery
	place  *list.Element // nil if not waiting
	number uint64        // among the waiters of the queue
	tries  bool          // the head, and does not wait. Guarded by Locker.mu

	waits string        // the Locker's id if it asks again when the key is held; see Request
	needs time.Duration // see Request

	scout *scout // nil, except for a waiter that an anyQueue made

	// failed has the owners of w's earlier attempts that had no answer in time. Such an attempt may
	// have got the key, and then leaves an orphan. failed also has the owners of orphans that these
	// attempts may have adopted.
	failed []string
}

// limit bounds ctx by WithWait. The wait started at began. With a wait of 0 or forever, limit
// returns ctx.
func (s *settings) limit(ctx context.Context, began time.Time) (context.Context, context.CancelFunc) {
	if s.wait <= 0 {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, began.Add(s.wait), errWaitOver)
}

// acquire waits for its turn in the queue and then for the key.
func (w *waiter) acquire() (*Lock, error) {
	began := time.Now()
	q, head, err := w.locker.join(w, true)
	if err != nil {
		return nil, err
	}
	defer w.stopWaiting()
	if !head {
		w.startWaiting()
		k, err := w.awaitTurn(q)
		if k != nil || err != nil {
			return k, err
		}
	}
	ctx, cancel := w.limit(w.traced, began)
	defer cancel()
	return w.acquireAsHead(ctx, q)
}

// startWaiting counts w as a waiter, once. A call that gets its lock at once is not a waiter, and a
// scout is not one either.
func (w *waiter) startWaiting() {
	if !w.counted && w.scout == nil {
		w.counted = true
		w.locker.telemetry.waiting(w.class, 1)
	}
}

func (w *waiter) stopWaiting() {
	if w.counted {
		w.locker.telemetry.waiting(w.class, -1)
	}
}

// awaitTurn waits behind others. It returns a lock or an error, or neither if w is the head now.
func (w *waiter) awaitTurn(q *queue) (*Lock, error) {
	// This is a timer and not a context, because most waiters get their answer from the caller
	// before them.
	var over <-chan time.Time
	if w.wait >= 0 {
		over = time.After(w.wait)
	}
	ctx := w.ctx
	select {
	case d := <-w.ready:
		if d.lock != nil && w.ctx.Err() != nil { // a context that is done never gets a lock
			w.drop(d.lock)
			return nil, w.gaveUp(w.ctx, nil)
		}
		return d.lock, d.err
	case <-ctx.Done():
	case <-over:
		ctx = waitOver
	case <-w.locker.done:
	}
	waiting, holder, last := w.locker.quit(q, w)
	if !waiting {
		switch d := <-w.ready; {
		case d.lock != nil:
			w.drop(d.lock) // hands it to the next waiter, if there is one
		case d.err == nil:
			w.locker.leave(q, w)
		}
	}
	if taken := holder.takenBy(w.key); taken != nil {
		return nil, w.gaveUp(ctx, taken)
	}
	if q.any != nil {
		last = cmp.Or[error](q.any.lastAnswer(), takenHere)
	}
	return nil, w.gaveUp(ctx, last)
}

// acquireAsHead asks the backend until the key is w's, the answer is final, or the wait ends.
func (w *waiter) acquireAsHead(ctx context.Context, q *queue) (*Lock, error) {
	defer w.locker.leave(q, w) // also after a panic of the backend; no effect once w has the lease
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
		watch.begin(ctx)
		pause, need, _ = w.standBack(q) // subscribing took a while
	}
	for {
		for signaled := pause > 0; signaled; signaled = signaled && w.owes(q) {
			w.startWaiting()
			if end, ok := ctx.Deadline(); ok && !asked { // a short wait has time for one question
				pause = min(pause, time.Until(end)/2)
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
// and the last answer of the backend. A caller that holds another key of the same AcquireAll does not
// stand back: others wait for that one, too.
func (w *waiter) standBack(q *queue) (pause, need time.Duration, last error) {
	w.locker.mu.Lock()
	defer w.locker.mu.Unlock()
	if w.holds {
		return 0, 0, q.last
	}
	return q.leaveAlone(), q.need, q.last
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

// ask makes one attempt at the backend. On success w has the lease and is no longer the head.
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

// ownOrphan returns the error for the attempt that owner made. If the key is the orphan of an
// earlier attempt of w, the error is *UnavailableError: nobody has worked under that lease. The
// backend frees such an orphan. If w adopts an orphan, it adopts this one next.
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

// drop releases a lock that w got but does not want any more. An orphan that it adopted becomes an
// orphan again: nobody has looked after it.
func (w *waiter) drop(k *Lock) {
	if w.adopt != "" && w.orphan > 0 {
		k.Lapse()
		return
	}
	ctx, cancel := detach(w.ctx)
	defer cancel()
	_ = k.drop(w.ctx, ctx) // a lease that stays ends at its TTL
}

// granted makes a lock of what the backend granted.
func (w *waiter) granted(q *queue, g Grant, sent time.Time) (*Lock, error) {
	l := w.locker
	s := newLease(w, g, sent)
	k := s.first(w)
	closed := l.acquired(q, s)
	if k.Err() != nil { // lost before it was in the queue
		l.leaseOver(s, Waiters{})
	}
	switch {
	case closed:
		w.drop(k)
		return nil, fmt.Errorf("core: acquire key %q: %w", w.key, ErrClosed)
	case w.ctx.Err() != nil: // a context that is done never gets a lock
		w.drop(k)
		return nil, w.gaveUp(w.ctx, nil)
	}
	return k, nil
}

// gaveUp returns the error of a wait that ctx ended. last is the last answer, or nil. Without an
// answer, nobody knows whether the key is taken.
func (w *waiter) gaveUp(ctx context.Context, last error) error {
	if w.locker.isClosed() {
		return fmt.Errorf("core: acquire key %q: %w", w.key, ErrClosed)
	}
	if u, ok := last.(*UnavailableError); ok {
		return u
	}
	if last == nil && w.ctx.Err() != nil && !errors.Is(context.Cause(w.ctx), errWaitOver) {
		return notAsked(w.ctx, w.key)
	}
	e := &TakenError{Key: w.key}
	if taken, ok := last.(*TakenError); ok {
		*e = *taken
		e.Key = cmp.Or(taken.Key, w.key) // takenHere has no key
	}
	if !errors.Is(context.Cause(ctx), errWaitOver) {
		e.Cause = endOf(w.ctx)
	}
	return e
}
