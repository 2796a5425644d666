package backendtest

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/ownertext"
)

var adoptionCases = []suiteCase{
	{"Adopt_RightOwner", (*suite).adoptRightOwner},
	{"Adopt_WrongOwner", (*suite).adoptWrongOwner},
	{"Adopt_NoOrphan", (*suite).adoptNoOrphan},
	{"Adopt_OneOfMany", (*suite).adoptOneOfMany},
	{"Adopt_OldOwnerIsLost", (*suite).adoptOldOwner},
	{"Adopt_OrphanOfAnOrphan", (*suite).adoptAgain},
	{"Adopt_AnswerIsLate", (*suite).adoptLate},
}

// adopting asks for a key and may take over an orphan.
func (s *suite) adopting(key, owner string, ttl, orphan time.Duration) core.Request {
	r := s.orphanRequest(key, ttl, orphan)
	r.Adopt = owner
	return r
}

func (s *suite) adoptRightOwner() {
	g := s.orphan()
	next := s.acquire(s.adopting(g.Key, g.Owner, long, 0))
	s.held(g.Key, next.Owner)
	s.refused("Acquire after the adoption", s.request(g.Key, long), core.ErrTaken)
	s.refused("adoption by a second caller", s.adopting(g.Key, g.Owner, long, long), core.ErrTaken)
	s.ok("Release", s.release(next.Grant))
	s.free(g.Key)
}

func (s *suite) adoptWrongOwner() {
	s.patient(func(ttl time.Duration) bool {
		g := s.acquire(s.orphanRequest(s.key(), ttl, long))
		s.expired(g)
		asked, err := s.refused("adoption of another orphan", s.adopting(g.Key, s.owner(long), long, 0), core.ErrOrphaned)
		var orphaned *core.OrphanedError
		if !errors.As(err, &orphaned) || orphaned.Owner != g.Owner {
			s.Fatalf("got %+v, want the owner %q", orphaned, g.Owner)
		}
		s.orphaned(g.Key, g.Owner)
		return s.sinceInTime(orphaned.Since, g, asked)
	})
}

func (s *suite) adoptNoOrphan() {
	key := s.key()
	g := s.acquire(s.adopting(key, s.owner(long), long, long)) // of a free key
	_, err := s.refused("adoption of a lease that lasts", s.adopting(key, g.Owner, long, 0), core.ErrTaken)
	holder, _ := ownertext.Split(g.Owner)
	var taken *core.TakenError
	if !errors.As(err, &taken) || taken.Holder != holder || taken.RetryAfter > long {
		s.Fatalf("got %+v, want holder %q, and at most %v without the time of the orphan", taken, holder, long)
	}
	s.held(key, g.Owner)
	s.ok("Seal", s.seal(g.Grant, []byte("v"), long))
	s.refused("adoption of a seal", s.adopting(key, g.Owner, long, 0), core.ErrSealed)
	s.sealed(key, []byte("v"), g.Token)
}

func (s *suite) adoptOneOfMany() {
	g := s.orphan()
	var adopted atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			// On a quorum all callers may split the votes, so that nobody gets the key.
			for end := time.Now().Add(patience); adopted.Load() == 0 && time.Now().Before(end); {
				_, err := s.b.Acquire(s.ctx, s.adopting(g.Key, g.Owner, long, long))
				switch {
				case err == nil:
					adopted.Add(1)
				case errors.Is(err, core.ErrTaken), errors.Is(err, core.ErrOrphaned), errors.Is(err, core.ErrUnavailable):
					time.Sleep(rand.N(look))
				default:
					s.Errorf("adoption: %v", err)
					return
				}
			}
		})
	}
	all.Wait()
	if n := adopted.Load(); n != 1 {
		s.Fatalf("%d callers adopted the orphan, want one", n)
	}
}

func (s *suite) adoptOldOwner() {
	g := s.orphan()
	next := s.acquire(s.adopting(g.Key, g.Owner, long, long))
	_, err := s.extend(g.Grant, long)
	s.want("Extend after the adoption", err, core.ErrLost)
	s.want("Seal after the adoption", s.seal(g.Grant, []byte("v"), long), core.ErrLost)
	s.want("Release after the adoption", s.release(g.Grant), core.ErrLost)
	s.held(g.Key, next.Owner)
	s.ok("Release", s.release(next.Grant))
}

func (s *suite) adoptAgain() {
	g := s.orphan()
	second := s.acquire(s.adopting(g.Key, g.Owner, short, long))
	s.expired(second)
	_, err := s.refused("adoption of the first orphan", s.adopting(g.Key, g.Owner, long, 0), core.ErrOrphaned)
	var orphaned *core.OrphanedError
	if !errors.As(err, &orphaned) || orphaned.Owner != second.Owner {
		s.Fatalf("got %+v, want the owner %q", orphaned, second.Owner)
	}
	third := s.acquire(s.adopting(g.Key, second.Owner, short, 0))
	s.expired(third) // free: the last holder asked for no orphan
	s.acquire(s.request(g.Key, long))
}

// adoptLate adopts for so short a time that the answer comes too late. Nobody has looked after the
// orphan then, so that the key must not become free.
func (s *suite) adoptLate() {
	g := s.orphan()
	_, err := s.b.Acquire(s.ctx, s.adopting(g.Key, g.Owner, time.Millisecond, long))
	if err != nil {
		s.want("Acquire whose answer is late", err, core.ErrUnavailable)
	}
	for range 30 { // while the backend cleans up
		if st := s.inspect(g.Key); st.Status == core.Free {
			s.Fatalf("the orphan is forgotten, after %v", err)
		}
		time.Sleep(look)
	}
	s.awaitStatus(g.Key, core.Orphaned)
}
