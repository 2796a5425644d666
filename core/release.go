package core

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"time"

	"github.com/onelane/onelane/internal/loglimit"
)

// Release frees the key, or hands it to the next waiter of this process. If ctx is done, Release
// works for up to 100 ms. If Release could not free the key, it is cleaned up in the background, or
// the lease ends. Only the last of several handles on one lock frees the key. After a Seal, Release
// does nothing.
//
// If the lock was lost before, the error matches [ErrLost]: the work under the lock may not have
// run alone. If the backend did not answer, the error matches [ErrUnavailable], or ctx's error if
// ctx ended first. The second call returns [ErrReleased].
func (k *Lock) Release(ctx context.Context) error {
	releasing, cancel := detach(ctx) // first: giveUp ends the lock's own context, which ctx may be
	defer cancel()
	last, crowded, lost, err := k.giveUp()
	if crowded {
		runtime.Gosched()
	}
	if !last {
		return err
	}
	return k.hold.lease.end(ctx, releasing, lost)
}

// end is release for a lock that a caller had: a loss that nobody noticed before is reported.
func (s *lease) end(caller, ctx context.Context, lost error) error {
	err := s.release(caller, ctx, lost)
	if errors.Is(err, ErrLost) && !errors.Is(lost, ErrLost) {
		s.foundLost(err)
	}
	return err
}

// foundLost reports that the backend says, when the lock is released, that it was lost before.
func (s *lease) foundLost(err error) {
	s.locker.telemetry.lostLock(s.class, reasonGone)
	s.reportLoss(reasonGone, err)
}

// releaseFailed reports a release without an answer to a caller that gets no error.
func (l *Locker) releaseFailed(key string, err error) {
	loglimit.Later(l.logger, slog.LevelWarn, "core: release failed; the key may stay held until its lease ends; look at the nodes in the error",
		"key", key, "error", err)
}

// release asks the backend with ctx, which outlives the caller's context. lost is how the lock had
// ended before, or nil.
func (s *lease) release(caller, ctx context.Context, lost error) error {
	var waiters Waiters
	defer func() { s.locker.leaseOver(s, waiters) }() // even after a panic of the backend
	waiters, err := s.free(ctx)
	if contextError(ctx) == nil { // the caller's context did not end the call
		caller = ctx
	}
	if lost != nil && !errors.Is(lost, ErrClosed) {
		return lost
	}
	return callerError(caller, s.key, err)
}

// giveUp gives up the handle. last reports whether the lease must be released in the backend; lost
// is how the hold had ended before, or nil. crowded reports that the lease was handed over, and that
// others wait, too. Then the next holder should run at once: the caller yields. Otherwise it goes on,
// because it may be the next to ask for the key, and would get it without a round trip.
func (k *Lock) giveUp() (last, crowded bool, lost, err error) {
	s, h := k.hold.lease, k.hold
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.sealed {
		return false, false, nil, nil
	}
	if k.released {
		return false, false, nil, k.errReleased()
	}
	now := time.Now()
	s.expireAt(h, now)
	k.released = true
	if k.cancel != nil {
		k.cancel(nil)
	}
	if h.handles--; h.handles > 0 {
		h.unwatch(k)
		k.onLoss = nil
		if errors.Is(h.ended, ErrClosed) { // no loss, as for the last handle
			return false, false, nil, nil
		}
		return false, false, nil, h.ended
	}
	if done, crowded := s.handOver(h, now); done {
		return false, crowded, nil, nil
	}
	if lost = h.ended; lost == nil {
		s.finish(h, "", ErrReleased)
	}
	return true, false, lost, nil
}

// free releases the lease in the backend, after the verb that is under way.
func (s *lease) free(ctx context.Context) (waiters Waiters, err error) {
	asked := false
	err = s.exclusive(ctx, func() (err error) {
		asked = true
		s.mu.Lock()
		g := s.grant
		s.mu.Unlock()
		waiters, err = s.locker.backend.Release(ctx, g)
		return withKey(err, s.key)
	})
	if !asked {
		go s.freeLater()
	}
	return waiters, err
}

// drop releases a lock that no caller got. If that fails, it is tried again in the background as
// long as the key would be orphaned; another lease ends by itself.
func (k *Lock) drop(caller, ctx context.Context) error {
	last, _, lost, err := k.giveUp()
	if !last {
		return err
	}
	s := k.hold.lease
	err = s.release(caller, ctx, lost)
	if err != nil && s.orphan > 0 && !errors.Is(err, ErrLost) {
		go s.freeSurely()
	}
	return err
}

// longestFreePause is the longest pause of freeSurely. Redis' backend keeps a clean-up for each
// release without an answer, so there must not be too many.
const longestFreePause = 5 * time.Second

// freeSurely releases the lease until that is definite.
func (s *lease) freeSurely() {
	pause := firstOutagePause
	for end := s.grant.Deadline.Add(s.orphan); time.Now().Before(end); pause = longer(pause, firstOutagePause, longestFreePause) {
		select {
		case <-time.After(s.locker.chance.jitter(pause)):
		case <-s.locker.done:
			return
		}
		if _, err := s.free(context.Background()); err == nil || errors.Is(err, ErrLost) {
			return
		}
	}
}

// freeLater releases the lease once the verb under way has returned, within the backend's time-out.
func (s *lease) freeLater() {
	switch _, err := s.free(context.Background()); {
	case errors.Is(err, ErrLost):
		s.mu.Lock()
		expired := errors.Is(s.hold.ended, ErrLost) || !time.Now().Before(s.grant.Deadline)
		s.mu.Unlock()
		if !expired { // before Release was called, and so known, or after
			s.foundLost(err)
		}
	case err != nil:
		s.locker.releaseFailed(s.key, err)
	}
}

// Lapse gives the lock up without freeing the key. Nothing renews it any more, and nobody gets the
// key before its lease ends. Then the lock is lost, and its context is canceled with that cause.
// The key is free, or orphaned if the lock has [WithOrphan]. It is for a holder that cannot know
// whether its work is over, for example after a COMMIT without an answer. Release returns
// [ErrReleased] after it.
//
// Other handles on the same lock end with it: their Release does not free the key. After Close, and
// after the lease ended, Lapse keeps a later Release from freeing the key. After Release and Seal
// it does nothing. It does not block and does not talk to the backend.
//
// If the work is certainly not running any more, [Lock.Orphan] ends the lease at once.
func (k *Lock) Lapse() { _ = k.lapse() }

// lapse gives the handle up without freeing the key. The error is [ErrReleased] if that is over, or
// how the hold had ended before.
func (k *Lock) lapse() error {
	s := k.hold.lease
	s.mu.Lock()
	defer s.mu.Unlock()
	h := k.hold
	if s.expire(h); k.released || h.sealed {
		return k.errReleased()
	}
	// The handle stays counted, so that no other handle is the last.
	k.released, h.lapsed = true, true
	if h.ended == nil {
		s.noRenew = true
		s.alarms.set(s, s.nextLocked())
	}
	return h.ended
}
