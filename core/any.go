package core

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
)

const (
	// maxAny is the largest number of keys of one AcquireAny.
	maxAny = 1000
	// anyTries is how many keys a caller asks for before it waits for all of them.
	anyTries = 3
)

// AcquireAny holds one of keys, the first that is free; [Lock.Key] tells which. It is for a pool of
// things that are alike, such as phone numbers. It works as a semaphore, too: N slots are N keys,
// for example core.Join("export", "1") to core.Join("export", "8"). The lock is like any other
// lock: its fencing token belongs to its one key.
//
//   - AcquireAny begins at a random key, so that it usually finds a free one with one round trip.
//     If it finds none, it waits in the line of each key.
//   - Callers of one process with the same keys and options are served first come, first served.
//     With other callers they take turns. While somebody waits, there is one goroutine for each key
//     and each set of options.
//   - With [WithWait] of 0, AcquireAny asks for each key once, one after the other. If the backend
//     may hang, give ctx a deadline.
//   - AcquireAny passes over sealed and orphaned keys, and keys for which the backend does not
//     answer. While one key may still become free, AcquireAny waits for it.
//   - There must be 1 to 1,000 keys; duplicates are removed.
//   - If ctx carries a lock on one of keys ([WithLock]), AcquireAny returns another handle on it at
//     once. So a caller that has a slot does not wait for a second one.
//
// If AcquireAny gets no lock, the first of these that is true decides what the error matches:
//
//   - The backend failed for one of the keys: [ErrUnavailable].
//   - One of the keys was taken: [ErrTaken].
//   - There was no answer yet for any of them: [ErrUnavailable].
//   - All keys are sealed or orphaned: [ErrSealed], [ErrOrphaned] or both.
func (l *Locker) AcquireAny(ctx context.Context, keys []string, opts ...AcquireOption) (*Lock, error) {
	if len(keys) == 0 || len(keys) > maxAny {
		return nil, fmt.Errorf("core: acquire any of %d keys: pass 1 to %d keys", len(keys), maxAny)
	}
	sorted := slices.Compact(slices.Sorted(slices.Values(keys)))
	if len(sorted) == 1 {
		return l.Acquire(ctx, sorted[0], opts...)
	}
	began, class := time.Now(), l.telemetry.classes.find(sorted[0])
	traced, span := l.telemetry.start(ctx, "onelane.acquire", sorted[0])
	k, err := l.acquireAny(ctx, traced, sorted, opts)
	if err = acquireError(ctx, sorted[0], err); err != nil {
		err = fmt.Errorf("core: acquire any of %d keys: %w", len(sorted), err)
	} else {
		class = k.hold.lease.class
		if span != nil {
			span.SetAttributes(attribute.String("onelane.key", k.Key()))
		}
	}
	l.telemetry.acquired(ctx, span, class, began, k, err)
	return k, err
}

func (l *Locker) acquireAny(ctx, traced context.Context, keys []string, opts []AcquireOption) (*Lock, error) {
	began := time.Now()
	s, err := l.settings.with(opts)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(keys))
	for i, key := range keys {
		if names[i], err = backendKey(l.prefix, key); err != nil {
			return nil, err
		}
	}
	if ctx.Err() != nil {
		return nil, notAsked(ctx, keys[0])
	}
	for _, name := range names {
		if k := l.carriedLock(ctx, name); k != nil {
			if again, err := k.again(ctx, opts); again != nil || err != nil {
				return again, err
			}
		}
	}
	waiting, cancel := s.limit(traced, began)
	defer cancel()
	one := func(i int) *waiter {
		return l.newWaiter(waiting, keys[i], names[i], s)
	}
	k, err := l.awaitAny(one, keys, names)
	if k != nil {
		k.parent = ctx // the context of the wait ends with this call
	}
	return k, err
}

func (l *Locker) newWaiter(ctx context.Context, key, name string, s settings) *waiter {
	return &waiter{locker: l, ctx: ctx, traced: ctx, key: key, name: name, class: l.telemetry.classes.find(key), settings: s}
}

// awaitAny gets one of keys that no lock of the caller is on. one makes the waiter for a key.
func (l *Locker) awaitAny(one func(i int) *waiter, keys, names []string) (*Lock, error) {
	w := one(0)
	if w.wait == 0 {
		return l.tryEach(one, len(keys))
	}
	w.wait = forever // its context bounds the whole call
	if !l.awaitedAny(names, w.settings) {
		if k, err := l.tryIdle(one, names); k != nil || err != nil {
			return k, err
		}
	}
	a, err := l.joinAny(w, keys, names)
	if err != nil {
		return nil, err
	}
	w.startWaiting()
	defer w.stopWaiting()
	return w.awaitTurn(&a.queue)
}

// tryEach asks for each key once, from a random one on.
func (l *Locker) tryEach(one func(int) *waiter, n int) (*Lock, error) {
	answers := make([]error, 0, n)
	for i, start := 0, rand.IntN(n); i < n; i++ {
		w := one((start + i) % n)
		if w.ctx.Err() != nil {
			return nil, w.gaveUp(w.ctx, lastAnswer(answers))
		}
		var cancel context.CancelFunc
		w.traced, cancel = halfOf(w.traced)
		k, err := w.acquireNow()
		cancel()
		if k != nil || errors.Is(err, ErrClosed) {
			return k, err
		}
		answers = append(answers, err)
	}
	return nil, lastAnswer(answers)
}

// tryIdle asks for a few keys that no other caller of this process holds or awaits. It returns
// neither a lock nor an error if the caller has to wait.
func (l *Locker) tryIdle(one func(int) *waiter, names []string) (*Lock, error) {
	tries := 0
	for i, start := 0, rand.IntN(len(names)); i < len(names) && tries < anyTries; i++ {
		n := (start + i) % len(names)
		if !l.idle(names[n]) {
			continue
		}
		w := one(n)
		if w.ctx.Err() != nil {
			return nil, w.gaveUp(w.ctx, nil)
		}
		q, head, err := l.join(w, false)
		if err != nil {
			return nil, err
		}
		if !head {
			continue
		}
		tries++
		k, err := w.askOnce(q)
		if k != nil {
			return k, nil
		}
		if w.ctx.Err() != nil || l.isClosed() {
			return nil, w.gaveUp(w.ctx, err)
		}
		if errors.Is(err, ErrUnavailable) {
			break // the next one may hang, too
		}
	}
	return nil, nil
}

// askOnce makes one attempt and leaves the queue.
func (w *waiter) askOnce(q *queue) (*Lock, error) {
	defer w.locker.leave(q, w)
	ctx, cancel := halfOf(w.traced)
	defer cancel()
	return w.ask(ctx, q)
}

// halfOf returns a context for half of the time that is left: a key that hangs leaves time for
// others.
func halfOf(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Until(end)/2)
}

// lastAnswer returns the error of a caller that got none of several keys. An answer is nil if
// nobody asked for the key.
func lastAnswer(answers []error) error {
	var unavailable, asked, taken, sealed, orphaned, other error
	nSealed, nOrphaned := 0, 0
	for _, err := range answers {
		switch {
		case err == nil:
		case errors.Is(err, errNoAnswer): // there always is one in the first round over the keys
			asked = err
		case errors.Is(err, ErrUnavailable):
			unavailable = err
		case errors.Is(err, ErrTaken):
			taken = err
		case errors.Is(err, ErrSealed):
			sealed, nSealed = err, nSealed+1
		case errors.Is(err, ErrOrphaned):
			orphaned, nOrphaned = err, nOrphaned+1
		default:
			other = err
		}
	}
	switch {
	case unavailable != nil:
		return unavailable
	case taken != nil:
		return taken
	case asked != nil:
		return asked
	case other != nil:
		return other
	case sealed != nil && orphaned != nil:
		return fmt.Errorf("%d keys are sealed and %d orphaned: %w; %w", nSealed, nOrphaned, sealed, orphaned)
	case sealed != nil:
		return fmt.Errorf("all keys are sealed: %w", sealed)
	case orphaned != nil:
		return fmt.Errorf("all keys are orphaned: %w", orphaned)
	}
	return nil
}
