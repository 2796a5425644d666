package core

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Lock is a holder's handle on a held key. It is safe for concurrent use. Release it, or seal it,
// when done.
type Lock struct {
	hold   *hold
	parent context.Context

	// guarded by lease.mu
	released bool
	ctx      context.Context // made by the first call of Context
	cancel   context.CancelCauseFunc
	onLoss   func(error) // nil, or what OnLoss was called with
	next     *Lock       // in hold.watched
}

// Key returns the key as the caller wrote it.
func (k *Lock) Key() string { return k.hold.lease.key }

// Owner returns the text that holds the key in the backend; see [State].
func (k *Lock) Owner() string { return k.hold.lease.grant.Owner }

// Deadline returns the time until which the lock is certain to be held, even without another
// renewal.
func (k *Lock) Deadline() time.Time {
	s := k.hold.lease
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.grant.Deadline
}

// Token returns the lock's fencing token: a number larger than every token of an earlier holder of
// the key. A resource that remembers the largest token, and refuses smaller ones, is safe
// from holders that lost the lock without noticing. See Martin Kleppmann, "How to do distributed
// locking", 2016.
//
// If the token is not known yet ([WithToken]), Token asks the backend. If the lock is no longer
// held when the answer arrives, the error is that of [Lock.Err]. It returns [*UnavailableError] if
// the backend did not answer.
func (k *Lock) Token(ctx context.Context) (uint64, error) {
	s, h := k.hold.lease, k.hold
	if token := k.mintedToken(); token != 0 {
		return token, nil
	}
	err := s.exclusive(ctx, func() error {
		g, err := k.current()
		if err != nil || k.mintedToken() != 0 {
			return err
		}
		ctx, cancel := s.tryTime(ctx)
		defer cancel()
		minted, err := s.locker.backend.Mint(ctx, g)
		if err != nil {
			return k.failed(withKey(err, s.key))
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if err := k.over(); err != nil {
			return err
		}
		s.grant.Token, s.grant.Tokens, s.grant.Backend = minted.Token, minted.Tokens, minted.Backend
		s.minted = s.handed
		h.token = s.token()
		return nil
	})
	if err != nil {
		return 0, callerError(ctx, s.key, err)
	}
	return k.mintedToken(), nil
}

// mintedToken returns the token if it is known, or 0.
func (k *Lock) mintedToken() uint64 {
	s := k.hold.lease
	s.mu.Lock()
	defer s.mu.Unlock()
	return k.hold.token
}

// Err returns nil while the lock is held. After that it returns an error that matches [ErrLost],
// [ErrReleased] or [ErrClosed]. It does not talk to the backend.
func (k *Lock) Err() error {
	s := k.hold.lease
	s.mu.Lock()
	defer s.mu.Unlock()
	return k.over()
}

// over returns why the handle is of no use any more, or nil. lease.mu is held.
func (k *Lock) over() error {
	h := k.hold
	h.lease.expire(h)
	if errors.Is(h.ended, ErrReleased) || h.ended == nil && (k.released || h.lapsed) {
		return k.errReleased()
	}
	return h.ended
}

func (k *Lock) errReleased() error { return fmt.Errorf("core: key %q: %w", k.Key(), ErrReleased) }

// current returns the lease's grant, or why the handle is of no use any more.
func (k *Lock) current() (Grant, error) {
	s := k.hold.lease
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.grant, k.over()
}

// failed notes that the backend says that the key is no longer ours, and returns err.
func (k *Lock) failed(err error) error {
	if errors.Is(err, ErrLost) {
		s := k.hold.lease
		s.mu.Lock()
		defer s.mu.Unlock()
		s.lose(k.hold, reasonGone, err)
	}
	return err
}

// Context returns a child of the context that the lock was acquired with. It is canceled when the
// lock ends. The cause is [ErrLost] as soon as the lock is lost, no later than its deadline. After
// the machine was suspended, the context ends only at the next renewal, but [Lock.Err] returns the
// loss at once. The cause is [ErrClosed] when the Locker is closed. There is no such cause when the
// lock is released or sealed. Run the work that the lock protects under this context.
func (k *Lock) Context() context.Context {
	s := k.hold.lease
	s.mu.Lock()
	defer s.mu.Unlock()
	if k.ctx != nil {
		return k.ctx
	}
	k.ctx, k.cancel = context.WithCancelCause(k.parent)
	k.watch()
	return k.ctx
}

// OnLoss calls fn once if the lock is lost or the Locker is closed. It does so as soon as a loss is
// known, no later than the lock's deadline. The error matches [ErrLost] or [ErrClosed]. Nothing
// happens when the lock is released or sealed. Unlike [Lock.Context], OnLoss does not depend on the
// context that the lock was acquired with. If OnLoss is called again, the later function counts. fn
// must not block and must not call methods of the lock; a [context.CancelCauseFunc] does neither.
func (k *Lock) OnLoss(fn func(error)) {
	s := k.hold.lease
	s.mu.Lock()
	defer s.mu.Unlock()
	k.onLoss = fn
	k.watch()
}

// watch makes the handle learn of the end of the hold, at once if it has ended. lease.mu is held.
func (k *Lock) watch() {
	h := k.hold
	switch err := k.over(); {
	case err == nil, h.lapsed && h.ended == nil:
		h.unwatch(k)
		k.next, h.watched = h.watched, k
	case errors.Is(err, ErrReleased):
		k.notify(nil)
	default:
		k.notify(err)
	}
}

// unwatch takes k out of the handles to notify. lease.mu is held.
func (h *hold) unwatch(k *Lock) {
	for p := &h.watched; *p != nil; p = &(*p).next {
		if *p == k {
			*p = k.next
			return
		}
	}
}

// notify tells the handle that the hold has ended. The cause is a loss, or nil. lease.mu is held.
func (k *Lock) notify(cause error) {
	if k.cancel != nil {
		k.cancel(cause)
	}
	if k.onLoss != nil && cause != nil {
		k.onLoss(cause)
	}
	k.onLoss = nil
}

// again returns another handle on the same lock for a context that carries it, or nil if the lock
// was given up meanwhile. It refuses options that the handle would ignore.
func (k *Lock) again(ctx context.Context, opts []AcquireOption) (*Lock, error) {
	s := k.hold.lease
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(k.hold)
	switch {
	case k.hold.givenUp():
		return nil, nil
	case k.hold.ended != nil:
		return nil, fmt.Errorf("core: acquire key %q again: release the lock that has ended, and use a context without it: %w", s.key, k.hold.ended)
	}
	if option := k.hold.ignored(opts); option != "" {
		return nil, fmt.Errorf("core: acquire key %q again: the lock that the context carries has another %s; omit the option here, or pass it to the call that acquires the key first", s.key, option)
	}
	k.hold.handles++
	return &Lock{hold: k.hold, parent: ctx}, nil
}

// ignored returns the name of an option that another handle would ignore, or "".
func (h *hold) ignored(opts []AcquireOption) string {
	s := settings{ttl: h.lease.ttl, maxHold: h.maxHold, orphan: h.lease.orphan, tag: h.lease.tag}
	asked := s
	for _, o := range opts {
		if o != nil {
			o.applyAcquire(&asked)
		}
	}
	switch {
	case asked.ttl != s.ttl:
		return "WithTTL"
	case asked.maxHold != s.maxHold:
		return "WithMaxHold"
	case asked.orphan != s.orphan:
		return "WithOrphan"
	case asked.tag != s.tag:
		return "WithTag"
	}
	return ""
}

// givenUp reports whether no handle holds the lock any more. lease.mu is held.
func (h *hold) givenUp() bool { return h.handles == 0 || h.sealed || h.lapsed }

// Extend makes the lease last at least ttl from now. It never shortens a lease. If the lock is
// lost, which is final, the error matches [ErrLost]. If the backend did not answer, the error is
// [*UnavailableError], or ctx's error if ctx ended first. The lock is then held until its deadline.
func (k *Lock) Extend(ctx context.Context, ttl time.Duration) error {
	if ttl < minTTL || ttl > maxDuration {
		return fmt.Errorf("core: extend key %q by %v: the TTL must be between %v and %v", k.Key(), ttl, minTTL, maxDuration)
	}
	s := k.hold.lease
	err := s.exclusive(ctx, func() error {
		if _, err := k.current(); err != nil {
			return err
		}
		ctx, cancel := s.tryTime(ctx)
		defer cancel()
		if err := s.extend(ctx, ttl); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if err := k.over(); err != nil { // it ended during the call to the backend
			return err
		}
		s.alarms.set(s, s.nextLocked())
		return nil
	})
	return callerError(ctx, s.key, err)
}
