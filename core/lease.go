package core

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// lease is what the backend granted to this process for one key. Local holders have it one after the other.
// One timer renews it and tells its loss; its verbs go to the backend one after the other.
type lease struct {
	locker *Locker
	key    string // as the user wrote it
	settings
	began time.Time

	mu      sync.Mutex
	grant   Grant // Key, Owner and the tokens never change
	handed  uint64
	hold    *hold
	timer   *time.Timer
	renewAt time.Time
	busy    bool          // a verb is under way
	idle    chan struct{} // made by who waits for it to end

	// The first holder's, here so that most locks cost one allocation less each. A hand-over makes new ones.
	firstHold hold
	firstLock Lock
}

// hold is the time in which one local holder has the lease. Guarded by lease.mu.
type hold struct {
	lease   *lease
	token   uint64
	until   time.Time // renewal ends
	began   time.Time
	handles int     // not released yet
	watched []*Lock // handles whose context was asked for
	ended   error   // why the hold is over: ErrReleased, or a loss
	seal    []byte  // what a Seal was tried with
	sealed  bool
	sealing bool // a Seal was sent, its outcome is not known
	lapsed  bool // given up without freeing the key
}

func newLease(l *Locker, w *waiter, g Grant) *lease {
	s := &lease{locker: l, key: w.key, settings: w.settings, began: time.Now(), grant: g}
	s.renewAt = s.began.Add(s.ttl / 3)
	return s
}

// first makes the first holder of the lease, and starts its timer.
func (s *lease) first(w *waiter) *Lock {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.newHold(w, &s.firstHold, &s.firstLock)
	s.timer = time.AfterFunc(time.Until(s.next()), s.tick)
	return &s.firstLock
}

// newHold begins a holder's time. s.mu is held.
func (s *lease) newHold(w *waiter, h *hold, k *Lock) {
	now := time.Now()
	*h = hold{lease: s, token: s.grant.Token + s.handed, began: now, until: now.Add(w.maxHold), handles: 1}
	*k = Lock{hold: h, parent: w.ctx}
	s.hold = h
	s.locker.telemetry.began()
}

// next is when the timer has something to do.
func (s *lease) next() time.Time {
	if s.noRenew || s.renewAt.After(s.grant.Deadline) || s.renewAt.After(s.hold.until) {
		return s.grant.Deadline
	}
	return s.renewAt
}

// tick runs when the timer fires.
func (s *lease) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hold
	if s.expired(h); h.ended != nil {
		return
	}
	now := time.Now()
	if now.Before(s.next()) || s.busy {
		if s.busy {
			s.renewAt = now.Add(s.ttl / 10)
		}
		s.timer.Reset(time.Until(s.next()))
		return
	}
	s.busy = true
	due := s.renewAt
	s.renewAt = s.grant.Deadline // nothing else to do until the answer is here
	s.timer.Reset(time.Until(s.grant.Deadline))
	s.mu.Unlock()
	err := s.extend(context.Background(), s.ttl)
	s.locker.telemetry.renewed(due, now, err)
	s.mu.Lock()
	s.end()
	if h.ended != nil || h != s.hold {
		return
	}
	if err != nil {
		s.locker.logger.Warn("core: renewal failed; it is tried again until the lease ends", "key", s.key, "deadline", s.grant.Deadline, "error", err)
		s.renewAt = time.Now().Add(s.locker.chance.jitter(s.ttl / 10))
	} else {
		s.renewAt = time.Now().Add(s.ttl / 3)
	}
	s.timer.Reset(time.Until(s.next()))
}

// extend asks the backend for more time, at most until the lease ends. s.busy is set; s.mu is not held.
func (s *lease) extend(ctx context.Context, ttl time.Duration) error {
	s.mu.Lock()
	g, h := s.grant, s.hold
	s.mu.Unlock()
	ctx, cancel := context.WithDeadline(ctx, g.Deadline)
	defer cancel()
	longer, err := s.locker.backend.Extend(ctx, g, ttl)
	s.mu.Lock()
	defer s.mu.Unlock()
	err = named(err, s.key)
	switch {
	case errors.Is(err, ErrLost):
		s.lose(h, reasonGone, err)
	case err == nil && h.ended == nil && longer.Deadline.After(s.grant.Deadline):
		s.grant.Deadline = longer.Deadline
	}
	return err
}

// begin waits until no verb is under way and starts one. s.mu is held before and after.
func (s *lease) begin(ctx context.Context) error {
	for s.busy {
		if s.idle == nil {
			s.idle = make(chan struct{})
		}
		idle := s.idle
		s.mu.Unlock()
		select {
		case <-idle:
			s.mu.Lock()
		case <-ctx.Done():
			s.mu.Lock()
			return &UnavailableError{Key: s.key, Nodes: []error{fmt.Errorf("core: an earlier call for this lock has not returned: %w", ctx.Err())}}
		}
	}
	s.busy = true
	return nil
}

// end ends a verb. s.mu is held.
func (s *lease) end() {
	s.busy = false
	if s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
}

// expired notices that the lease ran out. s.mu is held.
func (s *lease) expired(h *hold) {
	if h.ended == nil && !time.Now().Before(s.grant.Deadline) {
		reason, why := reasonExpired, "its lease ran out without an answer from the backend"
		switch {
		case h.lapsed:
			reason, why = reasonLapsed, "it was given up, and its lease ran out"
		case s.noRenew:
			reason, why = reasonTTL, "its lease ran out"
		case !time.Now().Before(h.until.Add(-s.ttl / 3)):
			reason, why = reasonMaxHold, fmt.Sprintf("it was held for longer than %v (WithMaxHold)", h.until.Sub(h.began))
		}
		s.lose(h, reason, lostError(s.key, why))
	}
}

// lose ends a hold because its lease is gone, or the Locker closed, which has no reason. It is final. s.mu is held.
func (s *lease) lose(h *hold, reason string, err error) {
	if h.ended != nil {
		return
	}
	if reason != "" {
		s.locker.logger.Warn("core: lock lost", "key", s.key, "owner", s.grant.Owner, "token", h.token, "reason", reason, "error", err)
	}
	s.finish(h, reason, err)
	if reason != "" {
		s.locker.leaseOver(s)
	}
}

// finish marks a hold as over and cancels its contexts. The reason is that of a loss, else empty. s.mu is held.
func (s *lease) finish(h *hold, reason string, why error) {
	h.ended = why
	s.timer.Stop()
	s.locker.telemetry.over(h, reason)
	cause := why
	if errors.Is(why, ErrReleased) {
		cause = nil
	}
	for _, k := range h.watched {
		k.cancel(cause)
	}
	h.watched = nil
}

// abandon is what Close does to a held lease: its holder learns it, and it is not renewed any more.
func (s *lease) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lose(s.hold, "", fmt.Errorf("core: key %q: %w", s.key, ErrClosed))
}

// takenBy is the answer to a local caller who does not wait; nil if s holds the key no more.
func (s *lease) takenBy(key string) *TakenError {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	left := time.Until(s.grant.Deadline)
	if s.hold.ended != nil || left <= 0 {
		return nil
	}
	holder, tag := splitOwner(s.grant.Owner)
	return &TakenError{Key: key, Holder: holder, Tag: tag, RetryAfter: left}
}

// handOver gives the lease to the next local waiter, with the next token and without a round trip. It needs a third
// of the TTL left, so that the next holder does not start with a lease about to end, and not more than the TTL: a lease
// that was extended beyond it would block the others for longer than the next holder chose. Who does without renewal gets a
// lease of its own, which lasts its whole TTL. s.mu is held.
func (s *lease) handOver(h *hold) bool {
	now := time.Now()
	left := s.grant.Deadline.Sub(now)
	if h.ended != nil || h.sealing || s.busy || s.noRenew || left < s.ttl/3 || left > s.ttl {
		return false
	}
	w := s.locker.next(s, now)
	if w == nil {
		return false
	}
	s.finish(h, "", ErrReleased)
	s.locker.telemetry.handedOver()
	s.handed++
	k := new(Lock)
	s.newHold(w, new(hold), k)
	s.timer.Reset(time.Until(s.next()))
	w.ready <- delivery{lock: k}
	return true
}
