package core

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Locks are locks on several keys, from [Locker.AcquireAll].
type Locks []*Lock

// AcquireAll holds all keys or none. It removes duplicates and acquires in sorted order, so that
// two calls cannot wait for each other. If ctx carries a lock, AcquireAll can still deadlock with
// another process, unless the key of that lock sorts before all of keys. [WithWait] bounds the
// whole call. If AcquireAll gets the last key, and an earlier lock is lost by then, the error
// matches [ErrLost]. With no keys, AcquireAll returns no locks and no error.
//
// Each lock has its own context, which does not end when another one is lost. Work under a context
// that ends when any of them is lost:
//
//	work, cancel := context.WithCancelCause(ctx)
//	defer cancel(nil)
//	for _, lock := range locks {
//		lock.OnLoss(cancel)
//	}
func (l *Locker) AcquireAll(ctx context.Context, keys []string, opts ...AcquireOption) (_ Locks, err error) {
	if len(keys) == 1 {
		k, err := l.Acquire(ctx, keys[0], opts...)
		if err != nil {
			return nil, err
		}
		return Locks{k}, nil
	}
	s, err := l.settings.with(opts)
	if err != nil {
		return nil, err
	}
	sorted := slices.Compact(slices.Sorted(slices.Values(keys)))
	for _, key := range sorted {
		if _, err := backendKey(l.prefix, key); err != nil {
			return nil, err
		}
	}
	waiting, cancel := s.limit(ctx, time.Now())
	defer cancel()
	locks, complete := make(Locks, 0, len(sorted)), false
	defer func() {
		if !complete { // even after a panic of the backend
			l.giveBack(ctx, waiting, locks)
		}
	}()
	if err = l.acquireEach(ctx, waiting, sorted, opts, s.wait == 0, &locks); err == nil {
		complete = true
		return locks, nil
	}
	var taken *TakenError
	if errors.As(err, &taken) && taken.Cause != nil {
		taken.Cause = endOf(ctx) // nil if the wait was over, not the caller's context
	}
	return nil, err
}

// acquireEach appends the locks it got to locks, with an error, too.
func (l *Locker) acquireEach(ctx, waiting context.Context, keys []string, opts []AcquireOption, try bool, locks *Locks) error {
	for i, key := range keys {
		if i == 1 {
			opts = append(slices.Clip(opts), acquireOption(func(s *settings) { s.holds = true }))
		}
		k, err := l.acquire(ctx, waiting, key, opts, try)
		if err != nil {
			return err
		}
		k.parent = ctx // the context of the wait ends with this call
		*locks = append(*locks, k)
	}
	for _, k := range *locks {
		if err := k.Err(); err != nil { // lost during the wait for a later key
			return err
		}
	}
	return nil
}

// giveBack releases the locks of a call that failed. The release has its own time-out: the call may
// have used up the caller's.
func (l *Locker) giveBack(ctx, waiting context.Context, locks Locks) {
	releasing, stop := detach(waiting)
	defer stop()
	for i, err := range locks.each(func(k *Lock) error { return k.drop(ctx, releasing) }) {
		if err != nil && !errors.Is(err, ErrLost) { // a loss is reported already
			l.releaseFailed(locks[i].Key(), err)
		}
	}
}

// each releases the locks, the last one first. After one that took long, the others are released at
// once: a node that hangs must not hold up the rest.
func (ks Locks) each(release func(*Lock) error) []error {
	var rest sync.WaitGroup
	errs, hangs := make([]error, len(ks)), false
	for i, k := range slices.Backward(ks) {
		if hangs {
			rest.Go(func() { errs[i] = release(k) })
			continue
		}
		began := time.Now()
		errs[i] = release(k)
		hangs = time.Since(began) >= answerDue
	}
	rest.Wait()
	return errs
}

// Release releases all the locks, the last acquired first, and returns their errors joined. If ctx
// is done, Release works for up to 100 ms altogether. If Release could not free a key, it is
// cleaned up in the background, or its lease ends.
func (ks Locks) Release(ctx context.Context) error {
	if len(ks) == 0 {
		return nil
	}
	releasing, cancel := detach(ctx)
	defer cancel()
	var yields atomic.Bool
	errs := ks.each(func(k *Lock) error {
		last, crowded, lost, err := k.giveUp()
		if crowded {
			yields.Store(true)
		}
		if last {
			err = k.hold.lease.end(ctx, releasing, lost)
		}
		return err
	})
	if yields.Load() {
		runtime.Gosched()
	}
	return errors.Join(errs...)
}
