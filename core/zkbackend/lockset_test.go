package zkbackend_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
)

var errStale = errors.New("a later holder has registered")

// sharedSet is read, changed and written under a lock. If it is fenced, a holder registers its token
// before it reads, and only the last one that registered may write.
type sharedSet struct {
	fenced  bool
	mu      sync.Mutex
	token   uint64
	members map[string]bool
}

func (s *sharedSet) read(token uint64) (map[string]bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fenced && token <= s.token {
		return nil, errStale
	}
	s.token = token
	return maps.Clone(s.members), nil
}

func (s *sharedSet) write(token uint64, members map[string]bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fenced && token != s.token {
		return errStale
	}
	s.members = members
	return nil
}

// add puts a member into the set under the lock. It does not look whether its lease has ended during
// the pause, as no program can at the moment when it writes.
func (s *sharedSet) add(l *core.Locker, member string, pause func()) error {
	k, err := l.Acquire(context.Background(), "set", core.WithToken())
	if err != nil {
		return err
	}
	defer func() { _ = k.Release(context.Background()) }()
	token, err := k.Token(context.Background())
	if err != nil {
		return err
	}
	members, err := s.read(token)
	if err != nil {
		return err
	}
	pause()
	members[member] = true
	return s.write(token, members)
}

// Jepsen's lock-set: a holder pauses beyond its lease. Without the fence the update of the next one is
// lost, whatever the lock. With it none is.
func TestLockSet(t *testing.T) {
	for _, fenced := range []bool{false, true} {
		t.Run(fmt.Sprintf("Fenced_%t", fenced), func(t *testing.T) {
			t.Parallel()
			node := shared(t)
			p := newProxy(t, node.Addr())
			opts := []core.Option{core.WithTTL(2 * time.Second), core.WithOutageWait(patience)}
			slow := locker(t, at(t, p.addr()), opts...)
			quick := locker(t, at(t, node.Addr()), opts...)
			s := &sharedSet{fenced: fenced, members: make(map[string]bool)}
			const rounds = 2
			for round := range rounds {
				member := fmt.Sprint("slow", round)
				err := s.add(slow, member, func() {
					p.part(true) // as if the process stood still
					ok(t, "add", s.add(quick, fmt.Sprint("quick", round), func() {}))
				})
				p.part(false)
				if !fenced {
					ok(t, "add", err)
					continue
				}
				want(t, "add after the pause", err, errStale)
				eventually(t, "add again", func() bool { return s.add(slow, member, func() {}) == nil })
			}
			lost := 2*rounds - len(s.members)
			if fenced && lost > 0 || !fenced && lost != rounds {
				t.Errorf("%d of %d updates are lost", lost, 2*rounds)
			}
		})
	}
}
