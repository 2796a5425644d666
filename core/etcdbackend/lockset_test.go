package etcdbackend_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// set is a shared set that is read, changed and written back as a whole, under a lock. If it is
// fenced, a holder registers its token before it reads, and only the newest one may write.
type set struct {
	fenced bool

	mu       sync.Mutex
	token    uint64
	elements []int
}

var errStale = errors.New("a newer holder has registered")

func (s *set) read(token uint64) ([]int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fenced && token <= s.token {
		return nil, errStale
	}
	s.token = max(s.token, token)
	return slices.Clone(s.elements), nil
}

func (s *set) write(token uint64, elements []int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fenced && token != s.token {
		return errStale
	}
	s.elements = elements
	return nil
}

// Holders that pause beyond their TTL lose updates of a set that is not fenced. If it is fenced,
// each update that was acknowledged is there.
func TestLockSet(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	const rounds, ttl = 3, 200 * time.Millisecond
	for name, fenced := range map[string]bool{"Unfenced": false, "Fenced": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slow, quick := open(t, etcd.Client()), open(t, etcd.Client())
			s := &set{fenced: fenced}
			var acknowledged []int
			hold := func(b core.Backend) (g core.Grant) {
				eventually(t, "the lock", func() (got bool) {
					var err error
					g, err = b.Acquire(t.Context(), request(name, ttl, 0))
					return err == nil
				})
				return g
			}
			add := func(n int, g core.Grant, pause func()) {
				elements, err := s.read(g.Token)
				if err != nil {
					return
				}
				pause()
				if s.write(g.Token, append(elements, n)) == nil {
					acknowledged = append(acknowledged, n)
				}
			}
			for round := range rounds {
				g := hold(slow)
				add(2*round, g, func() { // it pauses, and meanwhile another one gets the lock
					next := hold(quick)
					if time.Now().Before(g.Deadline) {
						t.Error("two holders")
					}
					add(2*round+1, next, func() {})
					_, _ = quick.Release(t.Context(), next)
				})
			}
			lost := 0
			for _, n := range acknowledged {
				if !slices.Contains(s.elements, n) {
					lost++
				}
			}
			t.Logf("%d updates acknowledged, %d lost", len(acknowledged), lost)
			if want := map[bool]int{false: rounds, true: 0}[fenced]; lost != want || len(acknowledged) < rounds {
				t.Errorf("%d of %d acknowledged updates are lost, want %d", lost, len(acknowledged), want)
			}
		})
	}
}
