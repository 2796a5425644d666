package core

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	firstPause   = 2 * time.Millisecond
	longestPause = 64 * time.Millisecond
	longestWatch = time.Second // between tries of a waiter that is told of changes

	// Who polls finds a key that goes from one to the next all the time only by chance: after a while it looks more often.
	hungryAfter = time.Second
	hungryPause = 8 * time.Millisecond

	longestWatchPause = 30 * time.Second // between subscriptions that fail; the first is longestWatch
)

var errWaitOver = errors.New("core: the wait is over")

// waitOver is the context of a wait that is over.
var waitOver = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errWaitOver)
	return ctx
}()

// limit bounds ctx by WithWait, of a wait that began then.
func (s *settings) limit(ctx context.Context, began time.Time) (context.Context, context.CancelFunc) {
	if s.wait == 0 {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, began.Add(s.wait), errWaitOver)
}

// waitAsHead asks the backend again and again until the key is ours. taken is the answer to the try before, if any.
func (l *Locker) waitAsHead(ctx context.Context, ln *line, w *waiter, taken *TakenError) (*Lock, error) {
	watch := l.newWatch(w.name)
	defer watch.stop()
	pause, contested := firstPause, firstPause
	began, holder, turned := time.Now(), "", time.Time{}
	l.mu.Lock()
	delay := time.Until(ln.notBefore)
	l.mu.Unlock()
	for {
		if taken != nil && watch.begin(ctx) { // subscribe, then try once more: the key may have been freed in between
			pause, delay = longestWatch, 0
		}
		if delay > 0 {
			timer := time.NewTimer(delay)
			select {
			case <-timer.C:
			case _, more := <-watch.changed:
				contested = firstPause
				if !more { // it ended: poll until there is another
					watch.changed, pause = nil, firstPause
				}
			case <-ctx.Done():
			case <-l.done:
			}
			timer.Stop()
		}
		if ctx.Err() != nil || l.isClosed() {
			l.leave(ln, w)
			return nil, l.gaveUp(ctx, w, taken)
		}
		k, held, err := l.try(ctx, ln, w)
		if held == nil {
			if ended(ctx) != nil && taken != nil && errors.Is(err, ErrUnavailable) {
				err = l.gaveUp(ctx, w, taken) // the wait ended in the middle of a try
			}
			return k, err
		}
		taken = held
		if now := time.Now(); taken.Holder != holder {
			holder, turned = taken.Holder, now
		} else if now.Sub(turned) > hungryAfter {
			began = now // it is held for long: nothing is missed
		}
		delay = l.chance.jitter(pause)
		switch {
		case taken.contested: // nobody may have it, and then nobody will tell of a release
			delay, contested = l.chance.jitter(contested), min(2*contested, longestPause)
		case taken.RetryAfter > 0 && taken.RetryAfter < delay:
			delay = taken.RetryAfter
		}
		if watch.changed == nil {
			pause = min(2*pause, longestPause)
			if time.Since(began) > hungryAfter {
				pause = hungryPause
			}
		}
	}
}

// watch is a waiter's subscription to its key.
type watch struct {
	watcher Watcher // nil where there are none
	name    string
	changed <-chan struct{} // nil while it is not subscribed
	end     func()
	retry   time.Time
	pause   time.Duration
}

func (l *Locker) newWatch(name string) *watch {
	watcher, _ := l.backend.(Watcher)
	return &watch{watcher: watcher, name: name, end: func() {}, pause: longestWatch}
}

// begin subscribes, if that is due, and says whether it has just done so.
func (w *watch) begin(ctx context.Context) bool {
	if w.watcher == nil || w.changed != nil || time.Now().Before(w.retry) {
		return false
	}
	w.end()
	changed, end, err := w.watcher.Watch(ctx, w.name)
	if w.retry = time.Now().Add(w.pause); err != nil {
		w.end, w.pause = func() {}, min(2*w.pause, longestWatchPause)
		return false
	}
	w.changed, w.end = changed, end
	return true
}

func (w *watch) stop() { w.end() }

func (l *Locker) isClosed() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// jitter spreads d over half of it to one and a half.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// try makes one attempt at the backend for the head of the line. If the key is taken it says by whom, and w is still
// the head; otherwise w is not in the line any more.
func (l *Locker) try(ctx context.Context, ln *line, w *waiter) (*Lock, *TakenError, error) {
	l.mu.Lock()
	entered := ln.entered
	l.mu.Unlock()
	asked, moment := time.Now(), l.seen.moment()
	g, err := l.backend.Acquire(ctx, w.name, l.chance.owner(l.instance, w.tag), w.ttl)
	if err == nil {
		k, err := l.granted(ln, w, g)
		return k, nil, err
	}
	err = named(err, w.key)
	if taken, ok := errors.AsType[*TakenError](err); ok {
		return nil, taken, nil
	}
	sealed, isSealed := err.(*SealedError)
	if isSealed {
		l.seen.remember(w, sealed, asked, moment)
	}
	if ended(ctx) == nil { // all who wait now get that answer, but not to a question from before theirs if the key can be unsealed, nor one that a shorter TTL was the reason for
		l.mu.Lock()
		ln.queue = slices.DeleteFunc(ln.queue, func(q *waiter) bool {
			answered := isSealed && q.no <= entered || !isSealed && q.ttl <= w.ttl
			if answered {
				q.ready <- delivery{err: err}
			}
			return answered
		})
		l.mu.Unlock()
	}
	l.leave(ln, w)
	return nil, nil, err
}

// granted makes a lock of what the backend granted to the head.
func (l *Locker) granted(ln *line, w *waiter, g Grant) (*Lock, error) {
	s := newLease(l, w, g)
	k := s.first(w)
	l.mu.Lock()
	closed := l.closed
	ln.lease, ln.head = s, nil
	if ln.since.IsZero() {
		ln.since = s.began
	}
	l.mu.Unlock()
	if k.Err() != nil { // lost before it stood in the line
		l.leaseOver(s)
	}
	switch {
	case closed:
		_ = k.Release(w.ctx) // the lease lapses where this fails
		return nil, fmt.Errorf("core: acquire key %q: %w", w.key, ErrClosed)
	case w.ctx.Err() != nil: // I4: a context that is done never gets a lock
		_ = k.Release(w.ctx)
		return nil, l.gaveUp(w.ctx, w, nil)
	}
	return k, nil
}

// gaveUp is the error of a waiter whose wait ended; seen is who has the key, where that is known.
func (l *Locker) gaveUp(ctx context.Context, w *waiter, seen *TakenError) error {
	if l.isClosed() {
		return fmt.Errorf("core: acquire key %q: %w", w.key, ErrClosed)
	}
	e := &TakenError{Key: w.key}
	if seen != nil {
		*e = *seen
	}
	if !errors.Is(context.Cause(ctx), errWaitOver) {
		e.Cause = ended(w.ctx)
	}
	return e
}
