package backendtest

import (
	"context"
	"errors"
	"time"

	"github.com/onelane/onelane/core"
)

var orphanCases = []suiteCase{
	{"Orphan_AfterTheLease", (*suite).orphanAfterTheLease},
	{"Orphan_ExtendedLeaseStaysHeld", (*suite).orphanExtended},
	{"Orphan_ReleaseLeavesNothing", (*suite).orphanReleased},
	{"Orphan_RefusedAttemptLeavesNothing", (*suite).orphanRefused},
	{"Orphan_CanceledAttemptLeavesNothing", (*suite).orphanCanceled},
	{"Orphan_EndsWithItsRetention", (*suite).orphanEnds},
	{"Orphan_NoExtendNoMint", (*suite).orphanNoExtend},
	{"Orphan_OwnerReleases", (*suite).orphanOwnerReleases},
	{"Orphan_OwnerSeals", (*suite).orphanOwnerSeals},
	{"Orphan_AtOnce", (*suite).orphanAtOnce},
	{"Orphan_AtOnceOnlyTheHolder", (*suite).orphanOnlyTheHolder},
	{"Orphan_AtOnceEnds", (*suite).orphanAtOnceEnds},
	{"Unseal_FreesAnOrphan", (*suite).orphanUnsealed},
}

// orphan returns an orphan on a new key.
func (s *suite) orphan() lease {
	s.Helper()
	g := s.acquire(s.orphanRequest(s.key(), short, long))
	s.expired(g)
	return g
}

// sinceInTime checks when an orphan's lease ended, by the answer to a question at a time. It
// reports false if the end is later than the lease explains. A node of a quorum may grant late on a
// busy machine, and a backend may hear late of its server's time. A longer lease leaves more room
// for that.
func (s *suite) sinceInTime(since time.Time, g lease, asked time.Time) bool {
	s.Helper()
	// The backend says how much time has passed, and the answer takes a while.
	late := time.Since(asked) + slack + g.ttl/4
	first, last := g.asked.Add(g.ttl), g.answered.Add(g.ttl+late)
	if since.Before(first.Add(-slack)) {
		s.Fatalf("orphaned since %v, want a time from %v to %v", since, first, last)
	}
	if since.After(last) {
		s.Logf("orphaned since %v, want a time from %v to %v", since, first, last)
	}
	return !since.After(last)
}

func (s *suite) orphanAfterTheLease() {
	s.patient(func(ttl time.Duration) bool {
		g := s.acquire(s.orphanRequest(s.key(), ttl, long))
		ttl = g.ttl
		_, err := s.b.Acquire(s.ctx, s.request(g.Key, long))
		st, inspected := s.b.Inspect(s.ctx, g.Key)
		if !time.Now().Before(g.Deadline) || errors.Is(err, core.ErrUnavailable) || errors.Is(inspected, core.ErrUnavailable) {
			return false
		}
		s.want("Acquire before the deadline", err, core.ErrTaken)
		var taken *core.TakenError
		if errors.As(err, &taken) && (taken.RetryAfter <= 0 || taken.RetryAfter > ttl) {
			s.Fatalf("RetryAfter = %v, want what is left of the lease of %v", taken.RetryAfter, ttl)
		}
		if s.ok("Inspect", inspected); st.Status != core.Held || st.Owner != g.Owner || !st.Since.IsZero() || st.ExpiresIn > ttl {
			s.Fatalf("Inspect before the deadline = %+v", st)
		}
		time.Sleep(time.Until(g.answered.Add(ttl + 2*slack))) // nobody looks before
		s.expired(g)
		asked, err := s.refused("Acquire after the lease", s.orphanRequest(g.Key, long, long), core.ErrOrphaned)
		var orphaned *core.OrphanedError
		if !errors.As(err, &orphaned) || orphaned.Owner != g.Owner {
			s.Fatalf("got %+v, want the owner %q", orphaned, g.Owner)
		}
		if !s.sinceInTime(orphaned.Since, g, asked) {
			return false
		}
		withToken := s.orphanRequest(g.Key, long, long)
		withToken.Token = true
		s.refused("Acquire with a token after the lease", withToken, core.ErrOrphaned)
		asked = time.Now()
		st = s.inspect(g.Key)
		if st.Status != core.Orphaned || st.Owner != g.Owner || st.ExpiresIn > long || st.ExpiresIn < long/2 {
			s.Fatalf("Inspect after the lease = %+v", st)
		}
		return s.sinceInTime(st.Since, g, asked)
	})
}

func (s *suite) orphanExtended() {
	s.patient(func(ttl time.Duration) bool {
		g := s.acquire(s.orphanRequest(s.key(), ttl, long))
		ttl = g.ttl
		longer, err := s.extend(g.Grant, 4*ttl)
		if errors.Is(err, core.ErrLost) && time.Now().After(g.Deadline) {
			return false
		}
		s.ok("Extend", err)
		time.Sleep(time.Until(g.answered.Add(ttl + slack)))
		st, inspected := s.b.Inspect(s.ctx, g.Key)
		if !time.Now().Before(longer.Deadline) || errors.Is(inspected, core.ErrUnavailable) {
			return false
		}
		if s.ok("Inspect", inspected); st.Status != core.Held || st.Owner != g.Owner || st.ExpiresIn > 4*ttl {
			s.Fatalf("Inspect of an extended lease = %+v", st)
		}
		s.awaitStatus(g.Key, core.Orphaned) // Extend keeps the retention
		return true
	})
}

func (s *suite) orphanReleased() {
	s.patient(func(ttl time.Duration) bool {
		g := s.acquire(s.orphanRequest(s.key(), ttl, long))
		ttl = g.ttl
		err := s.release(g.Grant)
		if !time.Now().Before(g.Deadline) {
			return false
		}
		s.ok("Release", err)
		s.free(g.Key)
		time.Sleep(time.Until(g.answered.Add(ttl + slack)))
		s.free(g.Key)
		s.acquire(s.request(g.Key, long))
		return true
	})
}

func (s *suite) orphanRefused() {
	g := s.acquire(s.request(s.key(), long))
	s.refused("Acquire of a held key", s.orphanRequest(g.Key, short, long), core.ErrTaken)
	s.held(g.Key, g.Owner)
	s.ok("Release", s.release(g.Grant))
	s.free(g.Key)
	time.Sleep(short + slack)
	s.free(g.Key)

	key := s.key()
	g = s.acquire(s.orphanRequest(key, long, long))
	s.ok("Seal", s.seal(g.Grant, nil, long))
	s.refused("Acquire of a sealed key", s.orphanRequest(key, short, long), core.ErrSealed)
	s.unseal(key)
	time.Sleep(short + slack)
	s.free(key)
}

func (s *suite) orphanCanceled() {
	key := s.key()
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	for range 20 {
		_, err := s.b.Acquire(ctx, s.orphanRequest(key, long, long))
		s.want("Acquire with a canceled context", err, core.ErrUnavailable)
	}
	s.endedInTheMiddle(func() core.Request { return s.orphanRequest(key, long, long) })
}

func (s *suite) orphanEnds() {
	s.patient(func(ttl time.Duration) bool {
		g := s.acquire(s.orphanRequest(s.key(), ttl, 2*ttl))
		end := g.asked.Add(g.ttl + 2*ttl)
		time.Sleep(time.Until(end.Add(-slack)))
		if time.Now().Before(g.answered.Add(g.ttl)) {
			return false // the lease may have begun so late that it is not yet an orphan
		}
		st, err := s.b.Inspect(s.ctx, g.Key)
		if before := time.Now().Before(end.Add(-slack / 5)); before && err == nil && st.Status != core.Orphaned {
			s.Fatalf("before its end the orphan is %v", st.Status)
		}
		s.awaitStatus(g.Key, core.Free)
		released := s.release(g.Grant)
		if released == nil {
			return false // a node of a quorum granted late
		}
		s.want("Release after the orphan", released, core.ErrLost)
		s.want("Seal after the orphan", s.seal(g.Grant, nil, long), core.ErrLost)
		s.acquire(s.request(g.Key, long))
		return true
	})
}

func (s *suite) orphanNoExtend() {
	g := s.orphan()
	_, err := s.extend(g.Grant, long)
	s.want("Extend of an orphan", err, core.ErrLost)
	if g.Token == 0 {
		_, err = s.mint(g.Grant)
		s.want("Mint for an orphan", err, core.ErrLost)
	}
	s.orphaned(g.Key, g.Owner)
}

func (s *suite) orphanOwnerReleases() {
	g := s.orphan()
	other := g.Grant
	other.Owner = s.owner(long)
	s.want("Release of an orphan by another", s.release(other), core.ErrLost)
	s.orphaned(g.Key, g.Owner)
	s.ok("Release of the own orphan", s.release(g.Grant))
	s.free(g.Key)
	s.acquire(s.request(g.Key, long))
}

func (s *suite) orphanOwnerSeals() {
	g := s.orphan()
	other := g.Grant
	other.Owner = s.owner(long)
	s.want("Seal of an orphan by another", s.seal(other, []byte("v"), long), core.ErrLost)
	s.orphaned(g.Key, g.Owner)
	s.ok("Seal of the own orphan", s.seal(g.Grant, []byte("v"), long))
	s.sealed(g.Key, []byte("v"), g.Token)
	s.ok("Seal again", s.seal(g.Grant, []byte("v"), long))
	s.ok("Release by the sealer", s.release(g.Grant))
	s.sealed(g.Key, []byte("v"), g.Token)
}

func (s *suite) orphanUnsealed() {
	g := s.orphan()
	s.unseal(g.Key)
	s.free(g.Key)
	s.want("Release after Unseal", s.release(g.Grant), core.ErrLost)
	next := s.acquire(s.orphanRequest(g.Key, long, long))
	s.unseal(g.Key)
	s.held(g.Key, next.Owner)
	if st := s.inspect(g.Key); st.ExpiresIn <= long/2 || st.ExpiresIn > long {
		s.Fatalf("ExpiresIn = %v, want about %v, without the time of the orphan", st.ExpiresIn, long)
	}
}

// orphanAtOnce checks that a lease becomes an orphan before its end: the owner may seal or release
// it, and may not extend it.
func (s *suite) orphanAtOnce() {
	for what, end := range map[string]func(core.Grant) error{
		"Release": s.release,
		"Seal":    func(g core.Grant) error { return s.seal(g, []byte("v"), long) },
	} {
		g := s.acquire(s.orphanRequest(s.key(), long, long))
		longer, err := s.extend(g.Grant, 2*long)
		s.ok("Extend", err)
		before := time.Now()
		s.ok("Orphan", s.leave(longer))
		s.orphaned(g.Key, g.Owner)
		s.ok("Orphan again", s.leave(longer))
		_, err = s.refused("Acquire", s.orphanRequest(g.Key, long, long), core.ErrOrphaned)
		var orphaned *core.OrphanedError
		if !errors.As(err, &orphaned) || orphaned.Owner != g.Owner || orphaned.Since.Before(before.Add(-slack)) {
			s.Fatalf("got %+v, want the orphan of %q since %v or later", orphaned, g.Owner, before)
		}
		if st := s.inspect(g.Key); st.ExpiresIn > long || st.ExpiresIn <= long/2 || st.Since.Before(before.Add(-slack)) {
			s.Fatalf("Inspect = %+v, want what is left of an orphan of %v since %v or later", st, long, before)
		}
		_, err = s.extend(longer, long)
		s.want("Extend of an orphan", err, core.ErrLost)
		if g.Token == 0 {
			_, err = s.mint(longer)
			s.want("Mint for an orphan", err, core.ErrLost)
		}
		s.orphaned(g.Key, g.Owner)
		s.ok(what, end(longer))
		s.want("Orphan after "+what, s.leave(longer), core.ErrLost)
	}

	g := s.acquire(s.orphanRequest(s.key(), long, long))
	s.ok("Orphan", s.leave(g.Grant))
	r := s.orphanRequest(g.Key, long, long)
	r.Adopt = g.Owner
	next := s.acquire(r)
	s.want("Orphan after an adoption", s.leave(g.Grant), core.ErrLost)
	s.held(g.Key, next.Owner)
}

func (s *suite) orphanOnlyTheHolder() {
	g := s.acquire(s.orphanRequest(s.key(), long, long))
	other := g.Grant
	other.Owner = s.owner(long)
	s.want("Orphan by another", s.leave(other), core.ErrLost)
	s.held(g.Key, g.Owner)
	s.ok("Release", s.release(g.Grant))
	s.want("Orphan of a free key", s.leave(g.Grant), core.ErrLost)
	s.free(g.Key)
}

func (s *suite) orphanAtOnceEnds() {
	s.patient(func(ttl time.Duration) bool {
		g := s.acquire(s.orphanRequest(s.key(), long, 2*ttl))
		asked := time.Now()
		s.ok("Orphan", s.leave(g.Grant))
		time.Sleep(time.Until(asked.Add(2*ttl - slack)))
		st, err := s.b.Inspect(s.ctx, g.Key)
		if before := time.Now().Before(asked.Add(2*ttl - slack/5)); before && err == nil && st.Status != core.Orphaned {
			s.Fatalf("before its end the orphan is %v", st.Status)
		}
		s.awaitStatus(g.Key, core.Free)
		s.want("Orphan after its end", s.leave(g.Grant), core.ErrLost)
		s.acquire(s.request(g.Key, long))
		return true
	})
}
