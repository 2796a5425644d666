package core

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/onelane/onelane/internal/loglimit"
	"github.com/onelane/onelane/internal/ownertext"
)

// suspendedBy is how far the wall clock must run ahead of the monotonic clock before a lease counts
// as lost, whatever is left of it. A smaller difference shortens the lease.
const suspendedBy = 2 * time.Second

// lease is what the backend granted to this process for one key. Local holders have it one after
// the other. An alarm renews it and notices its end.
type lease struct {
	locker  *Locker
	key     string // as the caller wrote it
	ttl     time.Duration
	orphan  time.Duration
	tag     string
	class   *class
	noRenew bool      // guarded by mu
	failing bool      // the last renewal failed. Guarded by slot, and here because it needs no room.
	asOf    time.Time // when the request was sent that last confirmed the lease. Guarded by mu.

	// slot has one element while a verb is under way: verbs go to the backend one by one.
	slot chan struct{}

	mu      sync.Mutex
	grant   Grant // Key and Owner never change
	handed  uint64
	minted  uint64 // handed when the tokens were minted
	hold    *hold
	renewAt time.Time

	alarms *alarms
	// Guarded by alarms.mu.
	due   time.Duration
	place int // 0 if no alarm is set

	// The first holder's, here so that most locks cost one allocation less each.
	firstHold hold
	firstLock Lock
}

// hold is the time in which one local holder has the lease. Guarded by lease.mu.
type hold struct {
	lease   *lease
	token   uint64 // 0 if none was minted
	began   time.Time
	maxHold time.Duration
	handles int    // not released yet
	watched *Lock  // the first handle to notify of the end. Others follow it.
	ended   error  // why the hold is over: ErrReleased, or a loss
	seal    []byte // what a Seal was tried with
	sealed  bool
	sealing bool // a Seal was sent and its outcome is not known
	lapsed  bool // given up without freeing the key
}

// until returns when renewal ends.
func (h *hold) until() time.Time { return h.began.Add(h.maxHold) }

// newLease makes a lease of what the backend granted to a request that was sent at sent.
func newLease(w *waiter, g Grant, sent time.Time) *lease {
	s := &lease{
		locker: w.locker, key: w.key, ttl: w.ttl, orphan: w.orphan, tag: w.tag, class: w.class, noRenew: w.maxHold == 0,
		asOf: sent, grant: g, slot: make(chan struct{}, 1),
		alarms: &w.locker.alarms[w.locker.leases.Add(1)%manyAlarms],
	}
	s.renewAt = s.renewalLocked()
	return s
}

// first makes the first holder of the lease and sets the alarm.
func (s *lease) first(w *waiter) *Lock {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.newHold(w, &s.firstHold, &s.firstLock, now)
	s.alarms.set(s, s.nextLocked())
	return &s.firstLock
}

// newHold begins a holder's time. s.mu is held.
func (s *lease) newHold(w *waiter, h *hold, k *Lock, now time.Time) {
	*h = hold{lease: s, token: s.token(), began: now, maxHold: w.maxHold, handles: 1}
	*k = Lock{hold: h, parent: w.ctx}
	s.hold = h
	s.locker.telemetry.began()
}

// token returns the fencing token of the holder now, or 0. s.mu is held.
func (s *lease) token() uint64 {
	if s.grant.Token == 0 {
		return 0
	}
	return s.grant.Token + s.handed - s.minted
}

// fits reports whether w can be the next holder of the lease. s.mu is held.
func (s *lease) fits(w *waiter) bool {
	if s.ttl != w.ttl || s.tag != w.tag || s.noRenew != (w.maxHold == 0) || s.orphan != w.orphan || w.adopt != "" {
		return false
	}
	if s.grant.Token == 0 {
		return !w.token
	}
	return s.handed+1-s.minted < s.grant.Tokens
}

// exclusive runs fn while no other verb of the lease is under way. It returns UnavailableError if
// ctx ends first.
func (s *lease) exclusive(ctx context.Context, fn func() error) error {
	select {
	case s.slot <- struct{}{}:
	default:
		select {
		case s.slot <- struct{}{}:
		case <-ctx.Done():
			return &UnavailableError{Key: s.key, Nodes: []error{
				fmt.Errorf("core: an earlier call of this lock has not returned, and calls run one by one: %w", ctx.Err())}}
		}
	}
	defer func() { <-s.slot }()
	return fn()
}

// over reports whether the hold is known to be over.
func (s *lease) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hold.ended != nil
}

// expire notices that the lease ended. s.mu is held.
func (s *lease) expire(h *hold) { s.expireAt(h, time.Now()) }

func (s *lease) expireAt(h *hold, now time.Time) {
	if h.ended != nil {
		return
	}
	ahead := s.wallAhead(now)
	if now.Add(ahead).Before(s.grant.Deadline) && ahead <= suspendedBy {
		return
	}
	reason, why := reasonExpired, "its lease ended without an answer from the backend"
	switch {
	case h.lapsed:
		reason, why = reasonLapsed, "it was given up, and its lease ended"
	case ahead > suspendedBy || now.Before(s.grant.Deadline):
		why = "the machine was suspended"
	case s.noRenew:
		reason, why = reasonTTL, "its lease ended"
	case !now.Before(h.until().Add(-s.ttl / renewPart)):
		reason, why = reasonMaxHold, fmt.Sprintf("it was held for longer than %v (WithMaxHold)", h.maxHold)
	}
	s.lose(h, reason, fmt.Errorf("core: key %q: %s: %w", s.key, why, ErrLost))
}

// wallAhead returns how far the wall clock ran ahead of the monotonic clock since the lease was
// last confirmed. On a suspended machine the monotonic clock stops, and the lease goes on. s.mu is
// held.
func (s *lease) wallAhead(now time.Time) time.Duration {
	wall, monotonic := s.locker.chance.clocks(s.asOf, now)
	return max(wall-monotonic, 0)
}

// clocks returns how far the two clocks of a time went.
func clocks(began, now time.Time) (wall, monotonic time.Duration) {
	return now.Round(0).Sub(began.Round(0)), now.Sub(began)
}

// lose ends a hold because its lease is gone, or, without a reason, because the Locker was closed.
// It is final. s.mu is held.
func (s *lease) lose(h *hold, reason string, err error) {
	if h.ended != nil {
		return
	}
	s.finish(h, reason, err)
	if reason != "" {
		s.locker.leaseOver(s, Waiters{})
		s.reportLoss(reason, err)
	}
}

// reportLoss logs a loss. It does not wait for the log, which would hold up the lock.
func (s *lease) reportLoss(reason string, err error) {
	loglimit.Later(s.locker.logger, slog.LevelWarn,
		"core: lock lost; another holder may run beside work that ignores its context; look at the reason",
		"reason", reason, "key", s.key, "owner", s.grant.Owner, "error", err)
}

// finish marks a hold as over and cancels its contexts. The reason is that of a loss, else empty.
// s.mu is held.
func (s *lease) finish(h *hold, reason string, why error) {
	h.ended = why
	s.alarms.stop(s)
	s.locker.telemetry.over(h, reason)
	cause := why
	if errors.Is(why, ErrReleased) {
		cause = nil
	}
	for k := h.watched; k != nil; k = k.next {
		k.notify(cause)
	}
	h.watched = nil
}

// abandon is what Close does to a held lease: the holder learns it, and nothing renews it.
func (s *lease) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lose(s.hold, "", fmt.Errorf("core: key %q: %w", s.key, ErrClosed))
}

// takenBy is the answer to a local caller that does not wait, or nil if s no longer holds the key.
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
	holder, tag := ownertext.Split(s.grant.Owner)
	return &TakenError{Key: key, Holder: holder, Tag: tag, RetryAfter: left}
}

// handOver gives the lease to the next local waiter without a round trip. It needs a third of the
// TTL left, so that the next holder does not start with a lease about to end. At most the TTL may
// be left: an extended lease would block the others for longer than the next holder chose. A holder
// without renewal gets its own lease, which lasts its whole TTL. crowded reports whether others
// wait, too. s.mu is held.
func (s *lease) handOver(h *hold, now time.Time) (done, crowded bool) {
	left := s.grant.Deadline.Sub(now)
	if h.ended != nil || h.sealing || s.noRenew || left < s.ttl/renewPart || left > s.ttl || len(s.slot) > 0 {
		return false, false
	}
	w, crowded := s.locker.nextHolder(s, now)
	if w == nil {
		return false, false
	}
	s.finish(h, "", ErrReleased)
	s.locker.telemetry.handedOver()
	s.handed++
	k := new(Lock)
	s.newHold(w, new(hold), k, now)
	s.alarms.set(s, s.nextLocked())
	w.ready <- delivery{lock: k}
	return true, crowded
}
