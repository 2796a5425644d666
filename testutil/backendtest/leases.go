package backendtest

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/ownertext"
)

var leaseCases = []suiteCase{
	{"Acquire_FreeKey", (*suite).acquireFreeKey},
	{"Acquire_TakenKey", (*suite).acquireTakenKey},
	{"Acquire_OwnOwner", (*suite).acquireOwnOwner},
	{"Acquire_CanceledContext", (*suite).acquireCanceled},
	{"Acquire_OneHolder", (*suite).acquireOneHolder},
	{"Acquire_KeysOfAnyText", (*suite).acquireAnyText},
	{"Acquire_LongestNames", (*suite).acquireLongest},
	{"Acquire_DeadlineCountsFromTheRequest", (*suite).acquireDeadline},
	{"Lease_EndsAtItsTTL", (*suite).leaseEnds},
	{"Release_OnlyTheHolder", (*suite).releaseOnlyTheHolder},
	{"Release_ExpiredLease", (*suite).releaseExpired},
	{"Extend_Lengthens", (*suite).extendLengthens},
	{"Extend_NeverShortens", (*suite).extendNeverShortens},
	{"Extend_NeverTakesBack", (*suite).extendNeverTakesBack},
	{"Inspect_ChangesNothing", (*suite).inspectChangesNothing},
	{"Verbs_CanceledContext", (*suite).verbsCanceled},
}

func (s *suite) acquireFreeKey() {
	g := s.acquire(s.request(s.key(), long))
	if g.Deadline.After(time.Now().Add(long)) || g.Deadline.Before(g.asked.Add(long*9/10)) {
		s.Fatalf("deadline in %v, want a little less than %v", time.Until(g.Deadline), long)
	}
	s.held(g.Key, g.Owner)
	s.ok("Release", s.release(g.Grant))
	s.free(g.Key)
}

func (s *suite) acquireTakenKey() {
	key := s.key()
	r := s.request(key, long)
	r.Owner = "host;5:1/" + strings.TrimPrefix(r.Owner, "suite/") + "#the tag#/;9"
	g := s.acquire(r)
	holder, _, _ := strings.Cut(g.Owner, "#")
	_, err := s.refused("second Acquire", s.request(key, long), core.ErrTaken)
	var taken *core.TakenError
	if !errors.As(err, &taken) || taken.Holder != holder || taken.Tag != "the tag#/;9" {
		s.Fatalf("got %+v, want holder %q and its tag", taken, holder)
	}
	if taken.RetryAfter <= long/2 || taken.RetryAfter > long {
		s.Fatalf("RetryAfter = %v, want about %v", taken.RetryAfter, long)
	}
	s.held(key, g.Owner)
}

// A retry after a lost reply finds its own owner.
func (s *suite) acquireOwnOwner() {
	r := s.request(s.key(), short)
	r.Token = true
	g := s.acquire(r)
	r.Owner, r.TTL = g.Owner, long
	again := s.acquire(r)
	if again.Token < g.Token || !again.Deadline.After(g.Deadline) {
		s.Fatalf("got token %d until %v, want at least %d and later than %v", again.Token, again.Deadline, g.Token, g.Deadline)
	}
	s.held(again.Key, again.Owner)
}

func (s *suite) acquireCanceled() {
	key := s.key()
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	for range 50 { // a quick answer may arrive before the server notices the end
		_, err := s.b.Acquire(ctx, s.request(key, long))
		s.want("Acquire with a canceled context", err, core.ErrUnavailable)
		if !errors.Is(err, context.Canceled) {
			s.Fatalf("%v does not match the context's error", err)
		}
	}
	s.endedInTheMiddle(func() core.Request { return s.request(key, long) })
}

// endedInTheMiddle makes attempts whose contexts end during the backend's call. It checks that
// nothing of these attempts stays.
func (s *suite) endedInTheMiddle(request func() core.Request) {
	s.Helper()
	var key string
	for range 20 {
		r := request()
		key = r.Key
		ctx, cancel := context.WithTimeout(s.ctx, rand.N(3*time.Millisecond))
		g, err := s.b.Acquire(ctx, r)
		cancel()
		switch {
		case err == nil:
			s.ok("Release", s.release(g))
		case errors.Is(err, core.ErrUnavailable):
			if !errors.Is(err, context.DeadlineExceeded) {
				s.Logf("the backend's own failure: %v", err)
			}
		case !errors.Is(err, core.ErrTaken): // by an attempt before, which is cleaned up
			s.Fatalf("Acquire: %v", err)
		}
	}
	s.await("the attempts are cleaned up", func() bool {
		g, err := s.b.Acquire(s.ctx, s.request(key, long))
		if err != nil {
			return false
		}
		s.ok("Release", s.release(g))
		return true
	})
	s.awaitStatus(key, core.Free)
}

func (s *suite) acquireOneHolder() {
	key := s.key()
	var inside, granted atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for end := time.Now().Add(patience); granted.Load() < 40 && time.Now().Before(end); {
				g, err := s.b.Acquire(s.ctx, s.request(key, long))
				if err != nil {
					if !errors.Is(err, core.ErrTaken) && !errors.Is(err, core.ErrUnavailable) {
						s.Errorf("Acquire: %v", err)
						return
					}
					time.Sleep(rand.N(2 * time.Millisecond))
					continue
				}
				if n := inside.Add(1); n != 1 {
					s.Errorf("%d holders at a time", n)
				}
				granted.Add(1)
				inside.Add(-1)
				if err := s.release(g); err != nil {
					s.Errorf("Release: %v", err)
				}
			}
		})
	}
	all.Wait()
	if granted.Load() == 0 {
		s.Error("nobody was granted the key")
	}
}

func (s *suite) acquireAnyText() {
	base := s.key()
	var leases []lease
	for _, key := range []string{base, strings.ToUpper(base), base + " ", base + "é", base + "e\u0301", base + "%", base + "_",
		base + "'\"\\`;--", base + "\\0\\n", "锁" + base, "ſ" + base, base[:len(base)-1]} {
		leases = append(leases, s.acquire(s.request(key, long))) // fails if two of them are one
	}
	for _, g := range leases {
		s.held(g.Key, g.Owner)
		s.ok("Release", s.release(g.Grant))
	}
}

// longestKey is a key of 512 bytes, all escaped, in braces, and a prefix of 128.
const longestKey = 128 + 2 + 3*512

// acquireLongest holds two keys that differ in their last byte.
func (s *suite) acquireLongest() {
	base := s.key()
	base += strings.Repeat("k", longestKey-1-len(base))
	for _, last := range []string{"1", "2"} {
		r := s.request(base+last, long)
		retention := 10 * 365 * 24 * time.Hour
		r.Owner = ownertext.New(strings.Repeat("i", 128), strings.Repeat("t", 256), retention)
		if _, seals := s.b.(core.Sealer); seals {
			r.Orphan = retention
		}
		g := s.acquire(r)
		s.held(g.Key, g.Owner)
	}
}

// acquireDeadline allows for nine tries that were slow. Memory has one clock and sends no request.
func (s *suite) acquireDeadline() {
	for range 10 {
		g := s.acquire(s.request(s.key(), long))
		s.ok("Release", s.release(g.Grant))
		if _, memory := g.Backend.(ofMemory); memory || !g.Deadline.After(g.asked.Add(long)) {
			return
		}
	}
	s.Fatal("the deadline does not count from the request, or leaves no margin")
}

// verbsCanceled lets each verb answer, or say that its context ended.
func (s *suite) verbsCanceled() {
	s.canceled(map[string]func(context.Context, core.Grant) error{
		"Mint":    func(ctx context.Context, g core.Grant) error { _, err := s.b.Mint(ctx, g); return err },
		"Extend":  func(ctx context.Context, g core.Grant) error { _, err := s.b.Extend(ctx, g, long); return err },
		"Release": func(ctx context.Context, g core.Grant) error { _, err := s.b.Release(ctx, g); return err },
		"Inspect": func(ctx context.Context, g core.Grant) error { _, err := s.b.Inspect(ctx, g.Key); return err },
	})
}

// canceled calls each verb with a context that is done.
func (s *suite) canceled(verbs map[string]func(context.Context, core.Grant) error) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	for verb, call := range verbs {
		g := s.acquire(s.request(s.key(), long))
		err := call(ctx, g.Grant)
		if err == nil {
			continue
		}
		s.want(verb+" with a canceled context", err, core.ErrUnavailable)
		if !errors.Is(err, context.Canceled) {
			s.Fatalf("%s: %v does not match the context's error", verb, err)
		}
	}
}

func (s *suite) leaseEnds() {
	s.patient(func(ttl time.Duration) bool {
		g := s.acquire(s.request(s.key(), ttl))
		time.Sleep(time.Until(g.Deadline) / 2)
		_, err := s.b.Acquire(s.ctx, s.request(g.Key, long))
		if !time.Now().Before(g.Deadline) {
			return false
		}
		if !errors.Is(err, core.ErrUnavailable) {
			s.want("Acquire before the deadline", err, core.ErrTaken)
		}
		s.expired(g)
		s.acquire(s.request(g.Key, long))
		return true
	})
}

func (s *suite) releaseOnlyTheHolder() {
	key := s.key()
	g := s.acquire(s.request(key, long))
	other := g.Grant
	other.Owner = s.owner(0)
	s.want("Release by another", s.release(other), core.ErrLost)
	s.held(key, g.Owner)
	w, err := s.releaseCounting(g.Grant)
	s.ok("Release", err)
	if w.Others != 0 && w.Others != -1 {
		s.Errorf("Release says that %d others wait", w.Others)
	}
	s.want("second Release", s.release(g.Grant), core.ErrLost)
	s.free(key)
}

func (s *suite) releaseExpired() {
	g := s.acquire(s.request(s.key(), short))
	s.expired(g)
	s.want("Release of an expired lease", s.release(g.Grant), core.ErrLost)
	next := s.acquire(s.request(g.Key, long))
	s.want("Release of an expired lease, the key another's", s.release(g.Grant), core.ErrLost)
	s.held(g.Key, next.Owner)
}

func (s *suite) extendLengthens() {
	s.patient(func(ttl time.Duration) bool {
		g := s.acquire(s.request(s.key(), ttl))
		longer, err := s.extend(g.Grant, long)
		if (err == nil || errors.Is(err, core.ErrLost)) && time.Now().After(g.Deadline) {
			return false // the lease may have ended in the middle: time goes on in a script of miniredis
		}
		s.ok("Extend", err)
		if longer.Deadline.Before(g.asked.Add(long*9/10)) || longer.Owner != g.Owner || longer.Token != g.Token {
			s.Fatalf("Extend = %+v of %+v", longer, g)
		}
		if longer.Deadline.After(g.Deadline) && longer.Deadline.After(time.Now().Add(long)) {
			s.Fatalf("Extend by %v says that the lease lasts for %v", long, time.Until(longer.Deadline))
		}
		time.Sleep(time.Until(g.answered.Add(g.ttl + slack)))
		s.held(g.Key, g.Owner)
		return true
	})
}

func (s *suite) extendNeverShortens() {
	g := s.acquire(s.request(s.key(), long))
	same, err := s.extend(g.Grant, short)
	s.ok("Extend by less", err)
	if same.Deadline.Before(g.Deadline) {
		s.Fatalf("Extend shortened the lease from %v to %v", g.Deadline, same.Deadline)
	}
	time.Sleep(short + slack)
	s.held(g.Key, g.Owner)
}

func (s *suite) extendNeverTakesBack() {
	g := s.acquire(s.request(s.key(), short))
	s.expired(g)
	_, err := s.extend(g.Grant, long)
	s.want("Extend of an expired lease, the key free", err, core.ErrLost)
	s.free(g.Key)
	next := s.acquire(s.request(g.Key, long))
	_, err = s.extend(g.Grant, long)
	s.want("Extend of an expired lease, the key another's", err, core.ErrLost)
	s.held(g.Key, next.Owner)
}

func (s *suite) inspectChangesNothing() {
	key := s.key()
	s.free(key)
	r := s.request(key, long)
	r.Token = true
	g := s.acquire(r)
	st := s.inspect(key)
	if st.Status != core.Held || st.Owner != g.Owner || st.Token != 0 && st.Token != g.Token || !st.Since.IsZero() {
		s.Fatalf("Inspect = %+v; want owner %q and token %d or 0", st, g.Owner, g.Token)
	}
	if st.ExpiresIn <= long/2 || st.ExpiresIn > long {
		s.Fatalf("ExpiresIn = %v, want about %v", st.ExpiresIn, long)
	}
	s.ok("Release after Inspect", s.release(g.Grant))
}
