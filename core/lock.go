package core

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	// A release whose context is done, or ends sooner, still gets this long.
	releaseGrace = 100 * time.Millisecond
	maxValue     = 16 << 20
)

// Lock is a holder's handle on a held key. It is safe for concurrent use. Release it, or seal it, when done.
type Lock struct {
	hold   *hold
	parent context.Context

	// guarded by lease.mu
	released bool
	ctx      context.Context // made when it is asked for
	cancel   context.CancelCauseFunc
}

// Key returns the key as it was asked for.
func (k *Lock) Key() string { return k.hold.lease.key }

// Token returns the fencing token: unique, and larger than that of every earlier holder of the key. A resource that
// remembers the largest token it has seen, and refuses smaller ones, is safe from holders that were lost without
// noticing (Martin Kleppmann, "How to do distributed locking", 2016).
func (k *Lock) Token() uint64 { return k.hold.token }

// Owner returns the text that holds the key in the backend: "<instance>/<random>", and the tag.
func (k *Lock) Owner() string { return k.hold.lease.grant.Owner }

// Deadline returns until when the lock is certain to be held if it is not renewed.
func (k *Lock) Deadline() time.Time {
	s := k.hold.lease
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.grant.Deadline
}

// Err returns nil while the lock is held, and an error that matches [ErrLost], [ErrReleased] or [ErrClosed] ever after.
// It does not talk to the backend.
func (k *Lock) Err() error {
	s := k.hold.lease
	s.mu.Lock()
	defer s.mu.Unlock()
	return k.over()
}

// over says why the handle is of no use any more. lease.mu is held.
func (k *Lock) over() error {
	k.hold.lease.expired(k.hold)
	switch {
	case k.released && (k.hold.ended == nil || errors.Is(k.hold.ended, ErrReleased)):
		return fmt.Errorf("core: key %q: %w", k.Key(), ErrReleased)
	default:
		return k.hold.ended
	}
}

// Context returns a child of the context that the lock was acquired with. It is cancelled when the lock ends: with
// cause [ErrLost] as soon as the lock is lost, no later than its deadline; with cause [ErrClosed] when the Locker is
// closed; without a cause of its own when it is released or sealed. Do what the lock protects under it.
func (k *Lock) Context() context.Context {
	s := k.hold.lease
	s.mu.Lock()
	defer s.mu.Unlock()
	if k.ctx == nil {
		k.ctx, k.cancel = context.WithCancelCause(k.parent)
		if err := k.over(); err != nil {
			if errors.Is(err, ErrReleased) {
				err = nil
			}
			k.cancel(err)
		} else {
			k.hold.watched = append(k.hold.watched, k)
		}
	}
	return k.ctx
}

// again returns another handle on the same lock for a context that carries it; nil if it was given up meanwhile.
func (k *Lock) again(ctx context.Context) (*Lock, error) {
	s := k.hold.lease
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expired(k.hold)
	switch {
	case k.hold.givenUp():
		return nil, nil
	case k.hold.ended != nil:
		return nil, fmt.Errorf("core: acquire key %q again: %w", s.key, k.hold.ended)
	}
	k.hold.handles++
	return &Lock{hold: k.hold, parent: ctx}, nil
}

// givenUp says that no handle holds the lock any more. lease.mu is held.
func (h *hold) givenUp() bool { return h.handles == 0 || h.sealed || h.lapsed }

// Extend makes the lease last at least ttl from now; it never shortens it. It returns [ErrLost] when the lock is lost,
// which is final, and [*UnavailableError], or ctx's error if that ended first, when the backend could not tell: the lock is still held
// until its deadline.
func (k *Lock) Extend(ctx context.Context, ttl time.Duration) error {
	if ttl < minTTL || ttl > maxDuration {
		return fmt.Errorf("core: extend key %q by %v: it must be at least %v and at most %v", k.Key(), ttl, minTTL, maxDuration)
	}
	s := k.hold.lease
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.begin(ctx); err != nil {
		return told(ctx, s.key, err)
	}
	defer s.end()
	if err := k.over(); err != nil {
		return err
	}
	s.mu.Unlock()
	err := s.extend(ctx, ttl)
	s.mu.Lock()
	if err != nil {
		return told(ctx, s.key, err)
	}
	if err := k.over(); err != nil { // it ended while the backend was asked
		return err
	}
	s.timer.Reset(time.Until(s.next()))
	return nil
}

// Release frees the key, or hands it to the next waiter of this process. It works, for up to 100 ms, when ctx is done
// already; what could not be freed then is cleaned up later, or lapses with its lease. Only the last of several
// handles on one lock frees the key. Once the lock is sealed, Release does nothing.
//
// The error matches [ErrLost] when the lock was lost before: what it protected may not have been alone.
// It matches [ErrUnavailable] when the backend did not answer, ctx's error when there was no more time for that, and [ErrReleased] on the
// second call.
func (k *Lock) Release(ctx context.Context) error { return k.release(ctx, detach) }

// release bounds the call of the backend as grace says.
func (k *Lock) release(caller context.Context, grace func(context.Context) (context.Context, context.CancelFunc)) error {
	s, h := k.hold.lease, k.hold
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.sealed {
		k.released = true
		return nil
	}
	if k.released {
		return k.over()
	}
	s.expired(h)
	k.released = true
	if k.cancel != nil && h.ended == nil {
		k.cancel(nil)
	}
	if h.handles--; h.handles > 0 {
		h.watched = slices.DeleteFunc(h.watched, func(w *Lock) bool { return w == k })
		return h.ended
	}
	if s.handOver(h) {
		return nil
	}
	lost := h.ended
	if lost == nil {
		s.finish(h, "", ErrReleased)
	}
	ctx, cancel := grace(caller)
	defer cancel()
	err := s.free(ctx)
	if ended(ctx) == nil { // it did not fail because of that: the backend answered, or had its time-out
		caller = ctx
	}
	err = told(caller, s.key, err)
	s.locker.leaseOver(s)
	if lost != nil && !errors.Is(lost, ErrClosed) {
		return lost
	}
	return err
}

// free releases the lease in the backend, after the verb that is under way. s.mu is held.
func (s *lease) free(ctx context.Context) error {
	if err := s.begin(ctx); err != nil {
		go func() { // the verb returns within the backend's own time-out
			s.mu.Lock()
			defer s.mu.Unlock()
			_ = s.begin(context.Background())
			defer s.end()
			s.mu.Unlock()
			defer s.mu.Lock()
			if err := s.locker.backend.Release(context.Background(), s.grant); err != nil && !errors.Is(err, ErrLost) {
				s.locker.logger.Warn("core: late release failed; the key is free when its lease runs out", "key", s.key, "error", err)
			}
		}()
		return err
	}
	defer s.end()
	g := s.grant
	s.mu.Unlock()
	err := s.locker.backend.Release(ctx, g)
	s.mu.Lock()
	return named(err, s.key)
}

// detach returns a context for clean-up that does not end with ctx: it keeps ctx's deadline, if that is far enough.
func detach(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	switch {
	case ctx.Done() == nil:
		return ctx, func() {}
	case ctx.Err() == nil && !ok:
		return context.WithoutCancel(ctx), func() {}
	}
	if soonest := time.Now().Add(releaseGrace); ctx.Err() != nil || deadline.Before(soonest) {
		deadline = soonest
	}
	return context.WithDeadline(context.WithoutCancel(ctx), deadline)
}

// Seal ends the lock by leaving value under its key for the retention, instead of freeing it: until then, or until
// [Locker.Unseal], whoever wants the key gets a [*SealedError] with the value. It is one atomic step; every handle on
// the lock ends with it.
//
// The error matches [ErrLost] when the lock is lost: nothing was sealed. After [*UnavailableError], and after ctx's error, the outcome is
// unknown: Seal may be tried again with the same value, and the key is not given to anybody until its lease ends.
// Value must not be modified later; at most 16 MiB.
func (k *Lock) Seal(ctx context.Context, value []byte, retention time.Duration) error {
	if len(value) > maxValue {
		return fmt.Errorf("core: seal key %q: a value of %d bytes is too large, at most %d are allowed", k.Key(), len(value), maxValue)
	}
	if retention < minTTL || retention > maxDuration {
		return fmt.Errorf("core: seal key %q for %v: it must be at least %v and at most %v", k.Key(), retention, minTTL, maxDuration)
	}
	s, h := k.hold.lease, k.hold
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.begin(ctx); err != nil {
		return told(ctx, s.key, err)
	}
	defer s.end()
	if (h.sealed || h.sealing) && !bytes.Equal(h.seal, value) {
		return fmt.Errorf("core: seal key %q: another value was sealed already: %w", k.Key(), ErrReleased)
	}
	if h.sealed {
		return nil
	}
	if err := k.over(); err != nil && (k.released || !errors.Is(err, ErrClosed)) { // after Close it may still be sealed
		return err
	}
	h.seal, h.sealing = value, true
	g := s.grant
	s.mu.Unlock()
	began := time.Now()
	traced, span := s.locker.telemetry.start(ctx, "onelane.seal", s.key)
	err := told(ctx, s.key, named(s.locker.backend.Seal(traced, g, h.token, value, retention), s.key))
	s.locker.telemetry.sealedKey(ctx, span, began, h.token, err)
	s.mu.Lock()
	switch {
	case err == nil:
		h.sealed, h.sealing = true, false
		if h.ended == nil {
			s.finish(h, "", ErrReleased)
		}
		s.locker.leaseOver(s)
	case errors.Is(err, ErrLost):
		h.sealing = false
		s.lose(h, reasonGone, err)
	}
	return err
}
