package core

import "github.com/onelane/onelane/internal/ownertext"

// contestedTries is how often TryAcquire tries if several callers split the votes of a quorum.
const contestedTries = 6

// acquireNow answers at once: as the head, or from what is known of the holder.
func (w *waiter) acquireNow() (k *Lock, err error) {
	q, head, err := w.locker.join(w, false)
	if err != nil {
		return nil, err
	}
	if !head {
		return nil, w.takenHere(q)
	}
	defer w.locker.leave(q, w)
	pauses := backoff{jitter: w.locker.chance.jitter}
	for try := 1; ; try++ {
		k, err = w.ask(w.traced, q)
		taken, ok := err.(*TakenError)
		if !ok || !taken.Contested || try == contestedTries {
			return k, err
		}
		w.sleep(w.traced, pauses.taken(taken, false), nil)
		if w.ctx.Err() != nil || w.locker.isClosed() {
			return nil, w.gaveUp(w.ctx, err)
		}
	}
}

// takenHere returns the error for a caller that does not wait. Another caller of this process holds
// or awaits the key.
func (w *waiter) takenHere(q *queue) error {
	l := w.locker
	l.mu.Lock()
	holder, head := q.lease, q.head
	l.mu.Unlock()
	if taken := holder.takenBy(w.key); taken != nil {
		return taken
	}
	// A waiter of this process is about to get the key. Inspect does not compete with it.
	st, err := l.backend.Inspect(w.traced, w.name)
	switch {
	case err != nil && head != nil && w.ctx.Err() == nil:
		// The head asks the backend now. Its votes may be the reason why a quorum does not agree.
		return &TakenError{Key: w.key, Holder: l.instance, Tag: head.tag}
	case err != nil:
		return withKey(err, w.key)
	}
	switch st.Status {
	case Sealed:
		return &SealedError{Key: w.key, Value: st.Value, Token: st.Token}
	case Orphaned:
		if st.Owner == w.adopt { // another caller of this process adopts it now
			return &TakenError{Key: w.key, Holder: l.instance}
		}
		return &OrphanedError{Key: w.key, Owner: st.Owner, Since: st.Since}
	case Held:
		holder, tag := ownertext.Split(st.Owner)
		return &TakenError{Key: w.key, Holder: holder, Tag: tag, RetryAfter: st.ExpiresIn}
	default:
		taken := &TakenError{Key: w.key, Holder: l.instance}
		if head != nil {
			taken.Tag = head.tag
		}
		return taken
	}
}
