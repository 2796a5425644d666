package core

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onelane/onelane/internal/undone"
)

var errWaitOver = errors.New("core: the wait is over")

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
	if s.over() { // lost before it was in the queue
		l.leaseOver(s, Waiters{})
	}
	switch {
	case closed:
		w.drop(k)
		return nil, undone.Mark(fmt.Errorf("core: acquire key %q: %w", w.key, ErrClosed))
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
		return undone.Mark(fmt.Errorf("core: acquire key %q: %w", w.key, ErrClosed))
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
