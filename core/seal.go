package core

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"
)

// maxValue is the largest value of a seal, in bytes.
const maxValue = 16 << 20

// Seal ends the lock by leaving value under its key for the retention, instead of freeing it. Until
// the retention ends, or until [Locker.Unseal], Acquire on the key returns [*SealedError] with the
// value. Seal is one atomic step. All handles on the lock end with it.
//
//   - If the lock is lost, the error matches [ErrLost] and nothing was sealed. A lock with
//     [WithOrphan] can still be sealed after its lease ended, as long as its orphan is there.
//   - On a backend that cannot seal, the error matches [ErrNoSeals], and the lock is still held.
//   - After [*UnavailableError] or ctx's error, the outcome is unknown. Seal may then be tried
//     again with the same value. Nobody gets the key before its lease ends, unless the lock is
//     released. A deferred Release may free the key: call [Lock.Lapse] to prevent that.
//   - If ctx has ended before the call, Seal works for up to 100 ms, as Release does.
//   - Value must not be modified later; it has at most 16 MiB.
func (k *Lock) Seal(ctx context.Context, value []byte, retention time.Duration) error {
	if ctx.Err() == nil {
		return k.seal(ctx, ctx, value, retention)
	}
	sealing, cancel := detach(ctx)
	defer cancel()
	return k.seal(ctx, sealing, value, retention)
}

// validRetention keeps the limits of a seal's retention.
func validRetention(key string, retention time.Duration) error {
	if retention < minTTL || retention > maxDuration {
		return fmt.Errorf("core: seal key %q for %v: the retention must be between %v and %v", key, retention, minTTL, maxDuration)
	}
	return nil
}

// seal asks the backend with ctx, which may outlive the caller's context.
func (k *Lock) seal(caller, ctx context.Context, value []byte, retention time.Duration) error {
	if len(value) > maxValue {
		return fmt.Errorf("core: seal key %q: the value has %d bytes, at most %d are allowed; store it elsewhere and seal a reference", k.Key(), len(value), maxValue)
	}
	if err := validRetention(k.Key(), retention); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return notAsked(ctx, k.Key())
	}
	s := k.hold.lease
	if !s.locker.Seals() {
		return fmt.Errorf("core: seal key %q: %w", s.key, ErrNoSeals)
	}
	err := s.exclusive(ctx, func() error {
		g, done, err := k.beginSeal(value)
		if done || err != nil {
			return err
		}
		began := time.Now()
		traced, span := s.locker.telemetry.start(ctx, "onelane.seal", s.key)
		err = withKey(s.locker.sealer.Seal(traced, g, value, retention), s.key)
		if contextError(ctx) == nil { // the caller's context did not end the call
			caller = ctx
		}
		theirs := callerError(caller, s.key, err)
		s.locker.telemetry.sealedKey(ctx, span, began, g.Token, measured(began, err, theirs))
		k.endSeal(theirs)
		return theirs
	})
	if err == nil {
		s.locker.leaseOver(s, Waiters{})
	}
	return callerError(caller, s.key, err)
}

// beginSeal returns the grant to seal with, or done if the same value is sealed already.
func (k *Lock) beginSeal(value []byte) (g Grant, done bool, err error) {
	s, h := k.hold.lease, k.hold
	s.mu.Lock()
	defer s.mu.Unlock()
	if (h.sealed || h.sealing) && !bytes.Equal(h.seal, value) {
		return g, false, fmt.Errorf("core: seal key %q: another value was sealed already; read it with Inspect: %w", k.Key(), ErrReleased)
	}
	if h.sealed {
		return g, true, nil
	}
	if err := k.over(); err != nil && !k.sealable(err) {
		return g, false, err
	}
	h.seal, h.sealing = value, true
	g = s.grant
	g.Token = h.token
	return g, false, nil
}

// sealable reports whether a lock that ended with err may still be sealed. It may after Close, over
// its own orphan, and after a Seal of unknown outcome, which may have succeeded. lease.mu is held.
func (k *Lock) sealable(err error) bool {
	if k.released {
		return false
	}
	again := k.hold.sealing || k.hold.lease.orphan > 0
	return errors.Is(err, ErrClosed) || again && errors.Is(err, ErrLost)
}

// endSeal notes the outcome of a Seal.
func (k *Lock) endSeal(err error) {
	s, h := k.hold.lease, k.hold
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		h.sealed, h.sealing = true, false
		if h.ended == nil {
			s.finish(h, "", ErrReleased)
		}
	case errors.Is(err, ErrLost):
		h.sealing = false
		s.lose(h, reasonGone, err)
	case !errors.Is(err, ErrUnavailable) && !isContextError(err):
		h.sealing = false // the backend refused it
	}
}
