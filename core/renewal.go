package core

import (
	"context"
	"errors"
	"time"
)

// A lease is renewed after a third of its TTL. A try takes at most a sixth of it, and the next one
// follows after a tenth: one lost packet never loses a lock.
const (
	renewPart = 3
	tryPart   = 6
	retryPart = 10
)

// nextLocked returns when there is something to do.
func (s *lease) nextLocked() time.Time {
	if s.noRenew || s.renewAt.After(s.grant.Deadline) || s.renewAt.After(s.hold.until()) {
		return s.grant.Deadline
	}
	return s.renewAt
}

// tick runs when the lease is due.
func (s *lease) tick() {
	due, ok := s.renewalDue()
	if !ok {
		return
	}
	select {
	case s.slot <- struct{}{}:
	default: // another verb is under way
		s.reschedule(s.ttl / retryPart)
		return
	}
	began := time.Now()
	err := s.renew()
	again := s.failing && err == nil
	s.failing = err != nil
	<-s.slot
	if err == nil {
		s.reschedule(0)
	} else {
		s.reschedule(s.locker.chance.jitter(s.ttl / retryPart))
	}
	s.locker.telemetry.renewed(due, began, err)
	if again {
		s.locker.logger.Info("core: a renewal succeeded again after others had failed", "key", s.key)
	}
	if err != nil && !errors.Is(err, ErrLost) {
		s.locker.logger.Warn("core: renewal failed; it is retried until the lease ends, and then the lock is lost; look at the nodes in the error",
			"key", s.key, "error", err)
	}
}

// renewalDue reports whether the lease must be renewed now. If not, the alarm is set anew, or the
// hold is over.
func (s *lease) renewalDue() (due time.Time, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expire(s.hold); s.hold.ended != nil {
		return due, false
	}
	if next := s.nextLocked(); time.Now().Before(next) {
		s.alarms.set(s, next)
		return due, false
	}
	// Until the answer is here, the alarm only watches the deadline.
	due, s.renewAt = s.renewAt, s.grant.Deadline
	s.alarms.set(s, s.grant.Deadline)
	return due, true
}

// reschedule plans the next renewal: after a pause, or by the lease's deadline if it is 0.
func (s *lease) reschedule(pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hold.ended != nil {
		return
	}
	s.renewAt = s.renewalLocked()
	if pause > 0 {
		s.renewAt = time.Now().Add(pause)
	}
	s.alarms.set(s, s.nextLocked())
}

func (s *lease) renew() error {
	ctx, cancel := s.tryTime(context.Background())
	defer cancel()
	return s.extend(ctx, s.ttl)
}

// tryTime bounds a verb beside which no renewal is sent.
func (s *lease) tryTime(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, max(s.ttl/tryPart, time.Millisecond))
}

// renewalLocked returns when the lease is renewed: a part of its TTL after it was confirmed, even if
// Lock.Extend made it longer. A node of a quorum that forgot the lease gets it back then.
func (s *lease) renewalLocked() time.Time {
	at, soon := s.grant.Deadline.Add(s.ttl/renewPart-s.ttl), s.asOf.Add(s.ttl/renewPart)
	if soon.Before(at) {
		return soon
	}
	return at
}

// extend asks the backend for more time, at most until the lease ends. The caller has the slot.
func (s *lease) extend(ctx context.Context, ttl time.Duration) error {
	s.mu.Lock()
	g, h := s.grant, s.hold
	s.mu.Unlock()
	ctx, cancel := context.WithDeadline(ctx, g.Deadline)
	defer cancel()
	sent := time.Now()
	longer, err := s.locker.backend.Extend(ctx, g, ttl)
	err = withKey(err, s.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case errors.Is(err, ErrLost):
		s.lose(h, reasonGone, err)
	case err == nil && h.ended == nil:
		s.asOf, s.grant.Backend = sent, longer.Backend
		if longer.Deadline.After(s.grant.Deadline) {
			s.grant.Deadline = longer.Deadline
		}
	}
	return err
}
