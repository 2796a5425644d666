package backendtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/ownertext"
)

const (
	// long is the length of a lease, an orphan or a seal that does not end during a case. short is
	// the length of one that does.
	long  = 60 * time.Second
	short = 500 * time.Millisecond

	// patience bounds each wait for a condition. It also bounds for how long a busy machine may
	// fail to answer.
	patience = 30 * time.Second
	look     = 10 * time.Millisecond // between two looks at a condition

	// slack is how far the clocks and the roundings of a backend may differ from this process's.
	slack = 250 * time.Millisecond
)

// suite is one case of TestBackend or TestSealer.
type suite struct {
	*testing.T
	b   core.Backend
	ctx context.Context
}

// lease is a grant and what the suite knows about it.
type lease struct {
	core.Grant
	asked    time.Time // before Acquire
	answered time.Time // after Acquire
	ttl      time.Duration
}

var suiteKeys atomic.Int64

func (s *suite) key() string {
	return fmt.Sprintf("onelane:{%s-%d-%d}", s.Name(), time.Now().UnixNano(), suiteKeys.Add(1))
}

func (s *suite) owner(orphan time.Duration) string { return ownertext.New("suite", "", orphan) }

// request returns a request for a lease on key, in the name of a new owner.
func (s *suite) request(key string, ttl time.Duration) core.Request {
	return core.Request{Key: key, Owner: s.owner(0), TTL: ttl}
}

// orphanRequest returns a request for a lease that leaves an orphan.
func (s *suite) orphanRequest(key string, ttl, orphan time.Duration) core.Request {
	return core.Request{Key: key, Owner: s.owner(orphan), TTL: ttl, Orphan: orphan}
}

// try repeats a call while the backend is unavailable: a busy machine may answer too late.
func (s *suite) try(call func() error) error {
	return again(s.ctx, func() error {
		err := call()
		if errors.Is(err, core.ErrUnavailable) {
			s.Logf("no answer: %v", err)
		}
		return err
	})
}

// acquire acquires a key that is free or that the request may adopt. On a busy machine it may ask
// for a longer lease than requested.
func (s *suite) acquire(r core.Request) lease {
	s.Helper()
	unknown := false // an attempt before may have the key until it is cleaned up
	longest := min(8*r.TTL, long)
	for end := time.Now().Add(patience); ; time.Sleep(look) {
		asked := time.Now()
		g, err := s.b.Acquire(s.ctx, r)
		if err == nil {
			if g.Key != r.Key || g.Owner != r.Owner || g.Orphan != r.Orphan {
				s.Fatalf("Acquire(%+v) = %+v", r, g)
			}
			return lease{g, asked, time.Now(), r.TTL}
		}
		taken, _ := errors.AsType[*core.TakenError](err)
		unknown = unknown || errors.Is(err, core.ErrUnavailable) || taken != nil && taken.Contested
		ghost := errors.Is(err, core.ErrTaken) || errors.Is(err, core.ErrOrphaned)
		if !unknown || !ghost && !errors.Is(err, core.ErrUnavailable) || time.Now().After(end) {
			s.Fatalf("Acquire(%+v): %v", r, err)
		}
		s.Logf("trying again after %v", err)
		if o, is := errors.AsType[*core.OrphanedError](err); is && r.Adopt != "" {
			r.Adopt = o.Owner // an attempt before adopted it, and its answer was late
		}
		r.Owner = another(r)
		if !ghost && r.TTL < longest { // perhaps the lease was too short for this machine
			r.TTL *= 2
		}
	}
}

// another returns a new owner with the instance and the tag of the request's owner.
func another(r core.Request) string {
	holder, tag := ownertext.Split(r.Owner)
	instance, _, _ := strings.Cut(holder, "/")
	return ownertext.New(instance, tag, r.Orphan)
}

// refused makes an attempt that must fail with target. It returns when the attempt began.
func (s *suite) refused(what string, r core.Request, target error) (asked time.Time, err error) {
	s.Helper()
	err = s.try(func() error {
		asked = time.Now()
		_, err := s.b.Acquire(s.ctx, r)
		return err
	})
	s.want(what, err, target)
	return asked, err
}

func (s *suite) release(g core.Grant) error {
	_, err := s.releaseCounting(g)
	return err
}

// releaseCounting is release, and returns how many others wait.
func (s *suite) releaseCounting(g core.Grant) (w core.Waiters, err error) {
	return shared{s.b}.Release(s.ctx, g)
}

func (s *suite) extend(g core.Grant, ttl time.Duration) (longer core.Grant, err error) {
	err = s.try(func() error { longer, err = s.b.Extend(s.ctx, g, ttl); return err })
	return longer, err
}

func (s *suite) mint(g core.Grant) (minted core.Grant, err error) {
	err = s.try(func() error { minted, err = s.b.Mint(s.ctx, g); return err })
	return minted, err
}

func (s *suite) seal(g core.Grant, value []byte, retention time.Duration) error {
	s.Helper()
	return again(s.ctx, func() error { return s.sealer().Seal(s.ctx, g, value, retention) })
}

// leave makes a held key an orphan at once.
func (s *suite) leave(g core.Grant) error {
	s.Helper()
	return again(s.ctx, func() error { return s.sealer().Orphan(s.ctx, g) })
}

// sealer returns the backend as the core.Sealer that it must be.
func (s *suite) sealer() core.Sealer {
	s.Helper()
	sealer, ok := s.b.(core.Sealer)
	if !ok {
		s.Fatalf("%T is no core.Sealer: use TestBackend", s.b)
	}
	return sealer
}

func (s *suite) unseal(key string) {
	s.Helper()
	s.ok("Unseal", s.try(func() error { return s.sealer().Unseal(s.ctx, key) }))
}

func (s *suite) inspect(key string) (st core.State) {
	s.Helper()
	s.ok("Inspect", s.try(func() (err error) { st, err = s.b.Inspect(s.ctx, key); return err }))
	return st
}

func (s *suite) ok(what string, err error) {
	s.Helper()
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

// typed reports whether err has the type of target's errors itself. A Locker does not unwrap a
// backend's errors.
func typed(err, target error) (ok bool) {
	switch target {
	case core.ErrTaken:
		_, ok = err.(*core.TakenError)
	case core.ErrSealed:
		_, ok = err.(*core.SealedError)
	case core.ErrOrphaned:
		_, ok = err.(*core.OrphanedError)
	case core.ErrUnavailable:
		_, ok = err.(*core.UnavailableError)
	default:
		return true
	}
	return ok
}

// want checks that err matches target and none of the other errors.
func (s *suite) want(what string, err, target error) {
	s.Helper()
	if !errors.Is(err, target) {
		s.Fatalf("%s: got %v, want an error that matches %v", what, err, target)
	}
	if !typed(err, target) {
		s.Fatalf("%s: %v is a %T: return the error of core as it is, without wrapping it", what, err, err)
	}
	for _, other := range []error{core.ErrTaken, core.ErrSealed, core.ErrOrphaned, core.ErrLost, core.ErrUnavailable} {
		if other != target && errors.Is(err, other) {
			s.Fatalf("%s: %v matches both %v and %v", what, err, target, other)
		}
	}
}

func (s *suite) await(what string, done func() bool) {
	s.Helper()
	for begun := time.Now(); !done(); {
		waited := time.Since(begun)
		if waited > patience {
			s.Fatalf("%s: not within %v", what, patience)
		}
		time.Sleep(min(max(waited/16, look), 5*look))
	}
}

// awaitStatus waits until key has a status.
func (s *suite) awaitStatus(key string, want core.Status) (st core.State) {
	s.Helper()
	s.await(fmt.Sprintf("key %q is %v", key, want), func() bool {
		var err error
		st, err = s.b.Inspect(s.ctx, key)
		return err == nil && st.Status == want
	})
	return st
}

// expired waits until a lease has ended on each node of a backend. The key is then free or
// orphaned.
func (s *suite) expired(l lease) {
	s.Helper()
	// A node of a quorum may have granted the lease a while after the majority answered.
	time.Sleep(time.Until(l.answered.Add(2 * l.ttl)))
	after := core.Free
	if l.Orphan > 0 {
		after = core.Orphaned
	}
	s.awaitStatus(l.Key, after)
}

// held checks who holds key.
func (s *suite) held(key, owner string) {
	s.Helper()
	if st := s.inspect(key); st.Status != core.Held || st.Owner != owner {
		s.Fatalf("Inspect(%q) = %v, owner %q; want it held by %q", key, st.Status, st.Owner, owner)
	}
}

// free checks that key is free.
func (s *suite) free(key string) {
	s.Helper()
	if st := s.inspect(key); st.Status != core.Free || st.Owner != "" {
		s.Fatalf("Inspect(%q) = %v, owner %q; want it free", key, st.Status, st.Owner)
	}
}

// orphaned checks that key is the orphan of owner.
func (s *suite) orphaned(key, owner string) {
	s.Helper()
	if st := s.inspect(key); st.Status != core.Orphaned || st.Owner != owner {
		s.Fatalf("Inspect(%q) = %v, owner %q; want the orphan of %q", key, st.Status, st.Owner, owner)
	}
}

// patient runs fn with longer and longer leases until fn reports that it was done in time. On a
// busy machine a lease may end before fn has looked at it.
func (s *suite) patient(fn func(ttl time.Duration) (inTime bool)) {
	s.Helper()
	for ttl := short; !fn(ttl); ttl *= 2 {
		if ttl > long {
			s.Fatalf("the backend is too slow for a lease of %v", ttl)
		}
	}
}
