package core

import (
	"context"
	"errors"
	"fmt"
)

// Orphan ends the lock at once and leaves its orphan, as if the holder had died and its lease had
// ended now. It is for a holder whose work has stopped, and that does not know what the work did.
// Until somebody adopts the orphan, and for as long as [WithOrphan] says, Acquire on the key returns
// [*OrphanedError]. Orphan is one atomic step. All handles on the lock end with it, and Release
// returns [ErrReleased] after it.
//
// Orphan gives the lock up as [Lock.Lapse] does before it asks the backend. So after any error
// the key is orphaned no later than at the end of the lease. If ctx has ended before the call, Orphan
// works for up to 100 ms, as Release does. If the lock was lost before, the error matches [ErrLost].
// A lock without WithOrphan stays held, and the error says so.
func (k *Lock) Orphan(ctx context.Context) error {
	s := k.hold.lease
	if s.orphan == 0 {
		return fmt.Errorf("core: orphan key %q: the lock leaves no orphan: acquire it with WithOrphan, or release it", s.key)
	}
	asking, cancel := detach(ctx) // first: ctx may be the lock's own
	defer cancel()
	if err := k.lapse(); err != nil && !errors.Is(err, ErrClosed) {
		return err
	}
	err := s.exclusive(asking, func() error {
		s.mu.Lock()
		g := s.grant
		s.mu.Unlock()
		return withKey(s.locker.sealer.Orphan(asking, g), s.key)
	})
	switch {
	case err == nil:
		s.orphaned()
	case errors.Is(err, ErrLost):
		_ = k.failed(err)
	}
	if contextError(asking) == nil { // the caller's context did not end the call
		ctx = asking
	}
	return callerError(ctx, s.key, err)
}

// orphaned notes that the key is an orphan, so that the waiters of this process learn it.
func (s *lease) orphaned() {
	s.mu.Lock()
	if s.hold.ended == nil {
		s.finish(s.hold, "", ErrReleased)
	}
	s.mu.Unlock()
	s.locker.leaseOver(s, Waiters{})
}
