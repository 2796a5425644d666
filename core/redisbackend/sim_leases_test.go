package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/onelane/onelane/core"
)

var leaseSchedules = []schedule{
	// Late copies of A's own request arrive. They must not cost its seal a second round.
	{"DuplicateOfOwnAcquire", 3, map[string]simRules{"regrant": {regrant: true}}, func(s *simStage) error {
		g := s.must("A")
		now := time.Now().UnixMicro()
		for i := range 3 {
			s.run(i, quorumAcquireScript, g.Owner, 1000, 60_000, now, 2_000_000, 0, "", "")
		}
		if err := s.seal("A", g, "v"); err != nil {
			return fmt.Errorf("a holder that lost nothing cannot seal: %w", err)
		}
		for i := range 3 {
			if s.ballot(i) != g.Token/tokenBlock {
				return errors.New("the seal of a holder that lost nothing needed another ballot")
			}
		}
		return nil
	}},
	// A node promised more than the holder's token, by an attempt that failed. The holder needs it to
	// seal.
	{"HolderThatLostNothingSeals", 3, nil, func(s *simStage) error {
		s.prepare(2, "R", uint64(time.Now().Add(time.Minute).UnixMicro()))
		s.reach("A", 0, 1)
		g := s.must("A")
		s.run(2, quorumAcquireScript, g.Owner, 10_000, 60_000, time.Now().UnixMicro(), 2_000_000, 0, "", "")
		s.reach("A", 1, 2)
		return s.seal("A", g, "v")
	}},
	// Two of three nodes have the lease, and one of them restarts empty.
	{"RestartedNodeAbstains", 3, map[string]simRules{"noAbstain": {noAbstain: true}}, func(s *simStage) error {
		s.reach("A", 0, 1)
		g := s.must("A")
		s.empty(1)
		time.Sleep(10 * time.Millisecond)
		if b, err := s.as("B").Acquire(context.Background(), s.request("B")); err == nil && time.Now().Before(g.Deadline) {
			return fmt.Errorf("B holds the key beside A, with token %d after %d", b.Token, g.Token)
		}
		return nil
	}},
	// The nodes' ballots differ, and two holders have different majorities.
	{"TokenIsPromisedByAMajority", 3, map[string]simRules{"noPrepare": {noPrepare: true}}, func(s *simStage) error {
		base := uint64(time.Now().UnixMicro())
		s.prepare(0, "X", base+10)
		s.prepare(1, "X", base+10)
		s.prepare(2, "X", base+5)
		s.reach("A", 0, 2)
		a := s.must("A")
		s.expire() // A is gone
		s.reach("B", 1, 2)
		b := s.must("B")
		if b.Token <= a.Token {
			return fmt.Errorf("token %d after token %d", b.Token, a.Token)
		}
		return nil
	}},
	// A client's clock is ten minutes ahead. Later all nodes restart empty, one after the other.
	{"WrongClockPushesNoTokens", 3, map[string]simRules{"anyClock": {anyClock: true}}, func(s *simStage) error {
		s.ahead("A", 10*time.Minute)
		a, err := s.acquire("A")
		if err != nil {
			if !errors.Is(err, core.ErrUnavailable) || !strings.Contains(err.Error(), "clock is 10m0s ahead") {
				return fmt.Errorf("A was told %w", err)
			}
			return nil
		}
		if err := s.release("A", a); err != nil {
			return err
		}
		for i := range 3 {
			s.empty(i)
			time.Sleep(3 * simTTL)
		}
		if b := s.must("B"); b.Token <= a.Token {
			return fmt.Errorf("token %d after token %d", b.Token, a.Token)
		}
		return nil
	}},
	// A releases its lock before all nodes have answered. On some of them the release overtakes the
	// request that it is about. The lease must not stay there.
	{"OvertakenLeaseIsCleanedUp", 5, nil, func(s *simStage) error {
		s.w.do(func() { s.w.net = simNet{slow: 0.5, slowest: 6 * time.Millisecond} })
		for range 100 {
			if err := s.release("A", s.must("A")); err != nil {
				return err
			}
			time.Sleep(simTTL / 4)
			var left []int
			s.w.do(func() {
				for i, h := range s.w.nodes {
					if _, held := h.get(simKey); held {
						left = append(left, i)
					}
				}
			})
			if len(left) > 0 {
				return fmt.Errorf("after the release the nodes %v still have the lease", left)
			}
		}
		return nil
	}},
	// A's context ends while the record of its orphan is under way. While A takes everything back,
	// no other process may see an orphan of A: A never held the key.
	{"FailedAttemptIsNoOrphan", 5, nil, func(s *simStage) error {
		b, orphaned := s.as("B"), false
		for range 100 {
			ctx, cancel := context.WithCancel(context.Background())
			s.w.do(func() { s.w.onAccept = cancel })
			r := s.request("A")
			r.Orphan = time.Hour
			if g, err := s.as("A").Acquire(ctx, r); err == nil {
				if err := s.release("A", g); err != nil {
					return err
				}
				continue
			}
			told := make(chan core.Status)
			for i := range 20 {
				go func() {
					time.Sleep(time.Duration(i) * 200 * time.Microsecond)
					st, _ := b.Inspect(context.Background(), simKey)
					told <- st.Status
				}()
			}
			for range 20 {
				orphaned = <-told == core.Orphaned || orphaned
			}
			if orphaned {
				return errors.New("B was told that A left an orphan")
			}
			time.Sleep(simTTL)
		}
		return nil
	}},
	rollingRestart(3), rollingRestart(5),
}

// rollingRestart restarts all nodes empty, one after the other, while a lock is held. Another
// process keeps asking for the key. A grant to it on a restarted node raises that node's ballot.
func rollingRestart(nodes int) schedule {
	broken := map[string]simRules{"noRetake": {noRetake: true}, "retakeLess": {retakeLess: true}}
	return schedule{fmt.Sprintf("RollingRestartKeepsLock%d", nodes), nodes, broken, func(s *simStage) error {
		g := s.must("A")
		polled := make(chan error, 1)
		stop, cancel := context.WithCancel(context.Background())
		b, r := s.as("B"), s.request("B")
		go func() {
			var err error
			for n := 0; stop.Err() == nil && err == nil; n++ {
				r.Owner = fmt.Sprint("B/", n)
				if _, e := b.Acquire(context.Background(), r); e == nil {
					err = errors.New("B was granted the key that A holds")
				}
				time.Sleep(45 * time.Millisecond)
			}
			polled <- err
		}()
		err := s.renewWhile(&g, func() {
			for i := range nodes {
				s.empty(i)
				time.Sleep(4 * simTTL)
			}
		})
		cancel()
		if p := <-polled; err == nil {
			err = p
		}
		return err
	}}
}

// renewWhile extends a lease as the engine does, until fn is over.
func (s *simStage) renewWhile(g *core.Grant, fn func()) error {
	done := make(chan struct{})
	go func() {
		fn()
		close(done)
	}()
	for {
		select {
		case <-done:
			return nil
		case <-time.After(simTTL / 3):
		}
		ctx, cancel := context.WithDeadline(context.Background(), g.Deadline)
		longer, err := s.as("A").Extend(ctx, *g, simTTL)
		cancel()
		if err == nil {
			*g = longer
		} else if errors.Is(err, core.ErrLost) || !time.Now().Before(g.Deadline) {
			<-done
			return fmt.Errorf("the lock was lost: %w", err)
		}
	}
}
