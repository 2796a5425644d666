package testutil

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
)

const (
	long  = 30 * time.Second       // a lease that does not end during a test
	short = 250 * time.Millisecond // one that does
)

// TestBackend is the conformance suite that every core.Backend passes. open returns a backend that is used by one
// subtest; keys are unique, so that it may return the same one each time. It takes about two seconds, in real time.
//
//	testutil.TestBackend(t, func(t *testing.T) core.Backend { return testutil.Memory() })
func TestBackend(t *testing.T, open func(t *testing.T) core.Backend) {
	for name, test := range map[string]func(*suite){
		"AcquireTakesAFreeKey":            (*suite).acquireTakesAFreeKey,
		"TakenSaysByWhomAndForHowLong":    (*suite).takenSaysByWhom,
		"OwnOwnerIsGrantedAgain":          (*suite).ownOwnerIsGrantedAgain,
		"LeaseEndsAtItsTTL":               (*suite).leaseEndsAtItsTTL,
		"TokensIncrease":                  (*suite).tokensIncrease,
		"OnlyTheHolderReleases":           (*suite).onlyTheHolderReleases,
		"ReleaseOfAnExpiredLeaseIsLost":   (*suite).releaseOfAnExpiredLeaseIsLost,
		"ExtendLengthensAndNeverShortens": (*suite).extendLengthens,
		"ExtendNeverTakesBack":            (*suite).extendNeverTakesBack,
		"OneHolderAtATime":                (*suite).oneHolderAtATime,
		"DoneContextIsRefused":            (*suite).doneContextIsRefused,
		"KeysOfAnyText":                   (*suite).keysOfAnyText,
		"SealSwapsTheKeyForAValue":        (*suite).sealSwaps,
		"SealIsKeptForItsRetention":       (*suite).sealIsKept,
		"SealAgain":                       (*suite).sealAgain,
		"OnlyTheHolderSeals":              (*suite).onlyTheHolderSeals,
		"ReleaseAfterSealKeepsTheSeal":    (*suite).releaseAfterSeal,
		"UnsealFreesTheKey":               (*suite).unsealFrees,
		"UnsealTouchesOnlySeals":          (*suite).unsealTouchesOnlySeals,
		"InspectChangesNothing":           (*suite).inspectChangesNothing,
		"WatchIsToldOfChanges":            (*suite).watchIsTold,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(&suite{T: t, b: open(t), ctx: t.Context()})
		})
	}
}

type suite struct {
	*testing.T
	b   core.Backend
	ctx context.Context
}

var suiteKeys atomic.Int64

func (s *suite) key() string {
	return fmt.Sprintf("onelane:{%s-%d-%d}", s.Name(), time.Now().UnixNano(), suiteKeys.Add(1))
}

func (s *suite) owner() string {
	return fmt.Sprintf("suite/%d-%d", time.Now().UnixNano(), suiteKeys.Add(1))
}

// acquire holds key in a new owner's name.
func (s *suite) acquire(key string, ttl time.Duration) core.Grant {
	s.Helper()
	for try := 1; ; try++ {
		g, err := s.b.Acquire(s.ctx, key, s.owner(), ttl)
		switch {
		case err == nil:
			return g
		case !errors.Is(err, core.ErrUnavailable) || ttl >= long || try == 5:
			s.Fatalf("Acquire(%q) of a free key: %v", key, err)
		}
		s.free(key) // on a busy machine the answer may come when a short lease is about to end
	}
}

func (s *suite) ok(what string, err error) {
	s.Helper()
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

func (s *suite) want(what string, err, target error) {
	s.Helper()
	if !errors.Is(err, target) {
		s.Fatalf("%s: got %v, want an error that matches %v", what, err, target)
	}
	for _, other := range []error{core.ErrTaken, core.ErrSealed, core.ErrLost, core.ErrUnavailable} {
		if other != target && errors.Is(err, other) {
			s.Fatalf("%s: %v matches both %v and %v", what, err, target, other)
		}
	}
}

// expire waits until a lease has ended in the backend, which may have begun it a while after it was asked to.
func (s *suite) expire(g core.Grant) {
	s.Helper()
	time.Sleep(time.Until(g.Deadline))
	s.free(g.Key)
}

// free waits until key is free.
func (s *suite) free(key string) {
	s.Helper()
	for range 500 {
		if st, err := s.b.Inspect(s.ctx, key); err == nil && st.Status == core.Free {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.Fatalf("key %q did not become free", key)
}

// held checks who holds key.
func (s *suite) held(key, owner string) {
	s.Helper()
	st, err := s.b.Inspect(s.ctx, key)
	s.ok("Inspect", err)
	if st.Status != core.Held || st.Owner != owner {
		s.Fatalf("Inspect(%q) = %v, owner %q; want it held by %q", key, st.Status, st.Owner, owner)
	}
}

func (s *suite) acquireTakesAFreeKey() {
	key, owner, before := s.key(), s.owner(), time.Now()
	g, err := s.b.Acquire(s.ctx, key, owner, long)
	s.ok("Acquire", err)
	if g.Key != key || g.Owner != owner || g.Token == 0 || g.Tokens == 0 {
		s.Fatalf("Acquire = %+v", g)
	}
	if g.Deadline.After(time.Now().Add(long)) || g.Deadline.Before(before.Add(long*9/10)) {
		s.Fatalf("deadline in %v, want a little less than %v", time.Until(g.Deadline), long)
	}
	s.held(key, owner)
	s.ok("Release", s.b.Release(s.ctx, g))
	st, err := s.b.Inspect(s.ctx, key)
	if err != nil || st.Status != core.Free {
		s.Fatalf("after Release: %v, %v", st.Status, err)
	}
}

func (s *suite) takenSaysByWhom() {
	key := s.key()
	_, err := s.b.Acquire(s.ctx, key, "host:1/abc#the tag", long)
	s.ok("Acquire", err)
	_, err = s.b.Acquire(s.ctx, key, s.owner(), long)
	s.want("second Acquire", err, core.ErrTaken)
	var taken *core.TakenError
	if !errors.As(err, &taken) || taken.Holder != "host:1/abc" || taken.Tag != "the tag" {
		s.Fatalf("got %+v, want the holder and the tag", taken)
	}
	if taken.RetryAfter <= long/2 || taken.RetryAfter > long {
		s.Fatalf("RetryAfter = %v, want about %v", taken.RetryAfter, long)
	}
	s.held(key, "host:1/abc#the tag")
}

func (s *suite) ownOwnerIsGrantedAgain() {
	key := s.key()
	g := s.acquire(key, short)
	again, err := s.b.Acquire(s.ctx, key, g.Owner, long)
	s.ok("Acquire again with the same owner, as after a lost reply", err)
	if again.Token < g.Token || !again.Deadline.After(g.Deadline) {
		s.Fatalf("got token %d until %v, want at least %d and later than %v", again.Token, again.Deadline, g.Token, g.Deadline)
	}
}

func (s *suite) leaseEndsAtItsTTL() {
	var key string
	var g core.Grant
	for ttl := 4 * short; ; ttl *= 2 { // a busy machine may answer after the deadline
		key = s.key()
		g = s.acquire(key, ttl)
		time.Sleep(time.Until(g.Deadline) / 2)
		_, err := s.b.Acquire(s.ctx, key, s.owner(), long)
		if err == nil && !time.Now().Before(g.Deadline) && ttl < long {
			continue
		}
		s.want("Acquire before the deadline", err, core.ErrTaken)
		break
	}
	s.expire(g)
	next := s.acquire(key, long)
	if next.Token < g.Token+g.Tokens {
		s.Fatalf("token %d after an expired lease with %d..%d", next.Token, g.Token, g.Token+g.Tokens-1)
	}
}

func (s *suite) tokensIncrease() {
	key := s.key()
	var last uint64
	for range 50 {
		g := s.acquire(key, long)
		if g.Token <= last {
			s.Fatalf("token %d, but an earlier lease had up to %d", g.Token, last)
		}
		last = g.Token + g.Tokens - 1
		s.ok("Release", s.b.Release(s.ctx, g))
	}
}

func (s *suite) onlyTheHolderReleases() {
	key := s.key()
	g := s.acquire(key, long)
	other := g
	other.Owner = s.owner()
	s.want("Release by another", s.b.Release(s.ctx, other), core.ErrLost)
	s.held(key, g.Owner)
	s.ok("Release", s.b.Release(s.ctx, g))
	s.want("second Release", s.b.Release(s.ctx, g), core.ErrLost)
}

func (s *suite) releaseOfAnExpiredLeaseIsLost() {
	key := s.key()
	g := s.acquire(key, short)
	s.expire(g)
	s.want("Release of an expired lease", s.b.Release(s.ctx, g), core.ErrLost)
	next := s.acquire(key, long)
	s.want("Release of an expired lease, the key another's", s.b.Release(s.ctx, g), core.ErrLost)
	s.held(key, next.Owner)
}

func (s *suite) extendLengthens() {
	key := s.key()
	g := s.acquire(key, short)
	longer, err := s.b.Extend(s.ctx, g, long)
	s.ok("Extend", err)
	if time.Until(longer.Deadline) < long*9/10 || longer.Owner != g.Owner || longer.Token != g.Token {
		s.Fatalf("Extend = %+v of %+v", longer, g)
	}
	same, err := s.b.Extend(s.ctx, longer, short)
	s.ok("Extend by less", err)
	if same.Deadline.Before(longer.Deadline) {
		s.Fatalf("Extend shortened the lease from %v to %v", longer.Deadline, same.Deadline)
	}
	time.Sleep(short + short/4)
	s.held(key, g.Owner)
}

func (s *suite) extendNeverTakesBack() {
	key := s.key()
	g := s.acquire(key, short)
	s.expire(g)
	_, err := s.b.Extend(s.ctx, g, long)
	s.want("Extend of an expired lease, the key free", err, core.ErrLost)
	if st, err := s.b.Inspect(s.ctx, key); err != nil || st.Status != core.Free {
		s.Fatalf("Extend of an expired lease left the key %v, %v", st.Status, err)
	}
	next := s.acquire(key, long)
	_, err = s.b.Extend(s.ctx, g, long)
	s.want("Extend of an expired lease, the key another's", err, core.ErrLost)
	s.held(key, next.Owner)
}

func (s *suite) oneHolderAtATime() {
	key := s.key()
	var inside, granted atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 25 {
				g, err := s.b.Acquire(s.ctx, key, s.owner(), long)
				if errors.Is(err, core.ErrTaken) {
					continue
				}
				if err != nil {
					s.Errorf("Acquire: %v", err)
					return
				}
				if n := inside.Add(1); n != 1 {
					s.Errorf("%d holders at a time", n)
				}
				granted.Add(1)
				inside.Add(-1)
				if err := s.b.Release(s.ctx, g); err != nil {
					s.Errorf("Release: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if granted.Load() == 0 {
		s.Error("nobody was ever granted the key")
	}
}

func (s *suite) doneContextIsRefused() {
	key := s.key()
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	for range 50 { // a quick answer could be there before the end is seen
		_, err := s.b.Acquire(ctx, key, s.owner(), long)
		s.want("Acquire with a context that is done", err, core.ErrUnavailable)
		if !errors.Is(err, context.Canceled) {
			s.Fatalf("%v does not match the context's error", err)
		}
	}
	s.free(key) // what may have been set is released in the background
}

func (s *suite) keysOfAnyText() {
	base := s.key()
	var grants []core.Grant
	for _, key := range []string{base, strings.ToUpper(base), base + " ", base + "é", base + "e\u0301", base + "%", base + "_", base + "'\"\\`;--", "锁" + base, base[:len(base)-1]} {
		grants = append(grants, s.acquire(key, long)) // fails where two of them are taken for one
	}
	for _, g := range grants {
		s.ok("Release", s.b.Release(s.ctx, g))
	}
}
