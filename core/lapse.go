package core

import "time"

// Lapse gives the lock up without freeing the key: it is not renewed any more, and nobody gets the key before its lease
// runs out; then the lock is lost, as its context says. It is for a holder that cannot know whether what it did under
// the lock is over, such as a COMMIT without an answer. Release after it returns [ErrReleased].
//
// Other handles on the same lock end with it: their Release does not free the key. Lapse does nothing when the lock is
// over. It does not block, and does not talk to the backend.
func (k *Lock) Lapse() {
	s := k.hold.lease
	s.mu.Lock()
	defer s.mu.Unlock()
	if k.over() != nil {
		return
	}
	k.released = true // without giving back the handle, so that no other one is the last
	k.hold.lapsed = true
	s.noRenew = true
	s.timer.Reset(time.Until(s.next()))
}
