package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
)

// schedule is a sequence of events that a rule is for. With all rules nothing goes wrong; with a rule
// broken, something must.
type schedule struct {
	name   string
	nodes  int
	breaks map[string]simRules
	play   func(*simStage) error
}

func TestSchedule(t *testing.T) {
	for _, c := range append(sealSchedules, leaseSchedules...) {
		t.Run(c.name, func(t *testing.T) {
			if err := stage(t, c.nodes, simRules{}, c.play); err != nil {
				t.Error(err)
			}
			for name, off := range c.breaks {
				if stage(t, c.nodes, off, c.play) == nil {
					t.Errorf("the broken rule %s was not noticed", name)
				}
			}
		})
	}
}

var sealSchedules = []schedule{
	// A retry is answered "sealed" while all nodes are up. Then one of the two that had the seal
	// comes back empty.
	{"SealSurvivesAnEmptyNode", 3, map[string]simRules{"noHeal": {noHeal: true}}, func(s *simStage) error {
		s.down(2)
		g := s.must("A")
		if err := s.seal("A", g, "v"); err != nil {
			return err
		}
		s.up(2)
		if err := s.sealed("B", "v"); err != nil {
			return err
		}
		s.expire()
		s.empty(0)
		time.Sleep(3 * simTTL)
		return s.sealed("B", "v")
	}},
	// A second value under one lease meets a node that has missed the first one.
	{"SealAgainWithAnotherValue", 3, nil, func(s *simStage) error {
		g := s.must("A")
		for i, nodes := range [][]int{{0, 1}, {0, 2}, {1, 2}} {
			s.reach("A", nodes...)
			switch err := s.seal("A", g, string("vwx"[i])); {
			case i == 0 && err != nil:
				return err
			case i > 0 && err == nil:
				return errors.New("one lease was sealed with two values")
			}
		}
		s.reach("A")
		return s.sealed("B", "v")
	}},
	// A decided seal is readable when one node that has it is down and another missed it.
	{"SealReadableOnOneOfTwo", 3, nil, func(s *simStage) error {
		s.down(2)
		g := s.must("A")
		if err := s.seal("A", g, "v"); err != nil {
			return err
		}
		s.up(2)
		s.down(0)
		if st, err := s.as("B").Inspect(context.Background(), simKey); err == nil && st.Status == core.Free {
			return errors.New("Inspect says that the key is free")
		}
		return s.sealed("B", "v")
	}},
	// Seal A reaches one node, seal B two others, and a later attempt only the other two.
	{"SealsOnMinorities", 5, nil, func(s *simStage) error {
		a := s.must("A")
		s.reach("A", 0)
		_ = s.seal("A", a, "a")
		s.expire()
		s.reach("B", 1, 2, 3, 4)
		b := s.must("B")
		s.reach("B", 1, 2)
		_ = s.seal("B", b, "b")
		s.expire()
		s.reach("C", 3, 4)
		if _, err := s.acquire("C"); !errors.Is(err, core.ErrUnavailable) {
			return fmt.Errorf("C reaches two nodes and was told %v", err)
		}
		s.expire()
		if st, err := s.as("D").Inspect(context.Background(), simKey); err == nil && st.Status == core.Free {
			return errors.New("Inspect says that the key is free")
		}
		g, err := s.acquire("D")
		if err != nil && !errors.Is(err, core.ErrSealed) {
			return fmt.Errorf("with all nodes up: %w", err)
		} else if err == nil {
			return s.release("D", g)
		}
		if err := s.as("D").Unseal(context.Background(), simKey); err != nil {
			return err
		}
		_, err = s.acquire("D")
		return err
	}},
	// All nodes restart empty one after the other, and the key is read in between.
	{"SealSurvivesNodesEmptiedInTurn", 5, map[string]simRules{"noHeal": {noHeal: true}}, func(s *simStage) error {
		s.down(3, 4)
		g := s.must("A")
		if err := s.seal("A", g, "v"); err != nil {
			return err
		}
		s.up(3, 4)
		for i := range 5 {
			if err := s.sealed("B", "v"); err != nil {
				return fmt.Errorf("before node %d is emptied: %w", i, err)
			}
			s.expire()
			s.empty(i)
			time.Sleep(3 * simTTL)
		}
		return s.sealed("B", "v")
	}},
	// Only one node has a seal, and one reader gets it as the answer. All later readers must get it
	// too.
	{"AnsweredSealIsEverybodys", 3, map[string]simRules{"trust": {trust: true}}, func(s *simStage) error {
		a := s.must("A")
		s.reach("A", 0)
		_ = s.seal("A", a, "v")
		s.expire()
		s.reach("R", 0, 1)
		if err := s.sealed("R", "v"); err != nil {
			return err
		}
		s.expire()
		s.reach("B", 1, 2)
		return s.sealed("B", "v")
	}},
	// Two minorities have different seals. The first reader sees the older one.
	{"RepairedSealIsNewest", 3, map[string]simRules{"highest": {highest: true}}, func(s *simStage) error {
		s.reach("A", 0, 2)
		a := s.must("A")
		s.reach("A", 0)
		_ = s.seal("A", a, "v")
		s.expire()
		s.reach("B", 1, 2)
		b := s.must("B")
		s.reach("B", 1)
		_ = s.seal("B", b, "w")
		s.expire()
		s.reach("R", 0, 2)
		if err := s.sealed("R", "v"); err != nil {
			return err
		}
		s.expire()
		s.reach("Q", 1, 2)
		return s.sealed("Q", "v")
	}},
	// Two repairers use one number.
	{"OneNumberTwoRepairers", 3, map[string]simRules{"tie": {tie: true}}, func(s *simStage) error {
		s.accept(0, "A", stamp{65, 1}, "\x001:v", modeRepair)
		s.accept(2, "C", stamp{66, 1}, "\x002:w", modeRepair)
		var first, second int
		one, two := []int{0, 1}, []int{1, 2}
		for _, i := range one {
			if s.prepare(i, "R1", 67) == voteYes {
				first++
			}
		}
		for _, i := range two {
			if s.prepare(i, "R2", 67) == voteYes {
				second++
			}
		}
		answers := 0
		for _, r := range []struct {
			owner, value string
			nodes        []int
			promised     int
		}{{"R1", "\x001:v", one, first}, {"R2", "\x002:w", two, second}} {
			stored := 0
			for _, i := range r.nodes {
				if r.promised > 1 && s.accept(i, r.owner, stamp{67, 1}, r.value, modeRepair) == voteYes {
					stored++
				}
			}
			if stored > 1 {
				answers++
			}
		}
		// The second one replaced the first one's value under the same stamp.
		if answers > 1 || second > 1 && first > 1 {
			return errors.New("two repairers were promised one number")
		}
		return nil
	}},
	// Unseal reached one node of two. H saw the leftovers, ran and released.
	{"UnsealedStaysAwayAfterAHolder", 3, map[string]simRules{"noVoid": {noVoid: true}}, func(s *simStage) error {
		s.reach("A", 0, 1)
		a := s.must("A")
		if err := s.seal("A", a, "v"); err != nil {
			return err
		}
		b := s.ballot(0) + 9
		s.prepare(0, "U", b)
		s.prepare(1, "U", b)
		s.accept(0, "U", stamp{b, 1}, void, modeRepair)
		s.reach("H", 0, 2)
		h := s.must("H")
		if err := s.release("H", h); err != nil {
			return err
		}
		s.reach("R", 1, 2)
		if s.sealed("R", "v") == nil {
			return errors.New("an unsealed value came back after another holder ran")
		}
		return nil
	}},
	// A repairer prepared a ballot. The holder seals over its own orphan, then the repairer goes on.
	{"SealHonoursLaterPromise", 3, map[string]simRules{"noPromise": {noPromise: true}}, func(s *simStage) error {
		s.reach("A", 0, 1)
		r := s.request("A")
		r.Orphan = time.Hour
		g, err := s.as("A").Acquire(context.Background(), r)
		if err != nil {
			return err
		}
		s.expire()
		b := s.ballot(0) + 9
		s.prepare(1, "R", b)
		s.prepare(2, "R", b)
		if err := s.seal("A", g, "v"); err != nil {
			return fmt.Errorf("the owner cannot seal over its orphan: %w", err)
		}
		orphaned := 0
		for _, i := range []int{1, 2} {
			if s.accept(i, "R", stamp{b, 1}, begun(g.Owner, time.Hour), modeRepair) == voteYes {
				orphaned++
			}
		}
		if orphaned > 1 {
			return errors.New("the key was orphaned after it was sealed")
		}
		return s.sealed("B", "v")
	}},
	// Late copies of the record that a holder wrote before it ran arrive after its seal.
	{"LateRecordDoesNotUndoASeal", 3, map[string]simRules{"oldStamps": {oldStamps: true}}, func(s *simStage) error {
		r := s.request("A")
		r.Orphan = time.Hour
		g, err := s.as("A").Acquire(context.Background(), r)
		if err != nil {
			return err
		}
		if err := s.seal("A", g, "v"); err != nil {
			return err
		}
		for i := range 3 {
			s.accept(i, g.Owner, stamp{g.Token / tokenBlock, 0}, begun(g.Owner, time.Hour), modeKeep)
		}
		return s.sealed("B", "v")
	}},
	// An adoption is written to one node and fails. The orphan must not be lost.
	{"FailedAdoptionKeepsOrphan", 3, nil, func(s *simStage) error {
		r := s.request("A")
		r.Orphan = time.Hour
		if _, err := s.as("A").Acquire(context.Background(), r); err != nil {
			return err
		}
		s.expire()
		adopting := s.request("B")
		adopting.Adopt = r.Owner
		// B's requests arrive, and after the grants nothing comes back.
		ctx, cancel := context.WithCancel(context.Background())
		s.w.do(func() { s.w.onAccept = cancel })
		if _, err := s.as("B").Acquire(ctx, adopting); err == nil {
			return errors.New("B was granted the key")
		}
		s.w.do(func() { s.w.onAccept = nil })
		time.Sleep(3 * simTTL)
		var orphaned *core.OrphanedError
		if g, err := s.acquire("C"); !errors.As(err, &orphaned) || orphaned.Owner != r.Owner {
			return fmt.Errorf("C was told %v, token %d; want the orphan of %s", err, g.Token, r.Owner)
		}
		return nil
	}},
	// One node missed an adoption that was released. A late adopter finds the orphan there, and fails.
	{"FailedAdoptionOfNoOrphan", 3, nil, func(s *simStage) error {
		r := s.request("A")
		r.Orphan = time.Hour
		if _, err := s.as("A").Acquire(context.Background(), r); err != nil {
			return err
		}
		s.expire()
		adopting := s.request("B")
		adopting.Adopt = r.Owner
		s.reach("B", 1, 2)
		g, err := s.as("B").Acquire(context.Background(), adopting)
		if err != nil {
			return err
		}
		if err := s.release("B", g); err != nil {
			return err
		}
		adopting.Owner = "C/1"
		s.reach("C", 0, 1)
		ctx, cancel := context.WithCancel(context.Background())
		s.w.do(func() { s.w.onAccept = cancel })
		if _, err := s.as("C").Acquire(ctx, adopting); err == nil {
			return errors.New("C was granted the key")
		}
		s.w.do(func() { s.w.onAccept = nil })
		time.Sleep(3 * simTTL)
		_, err = s.acquire("D")
		return err
	}},
	// Node 2 was away from Unseal on. A later seal replaced VOID, and ended sooner.
	{"UnsealedStaysAwayAfterAShortSeal", 3, forgotten, unsealedWithout2(func(s *simStage) error {
		g := s.must("A")
		if err := s.as("A").Seal(context.Background(), g, []byte("short"), time.Second); err != nil {
			return err
		}
		return s.sealed("A", "short")
	})},
	// Others raise what node 0 promised, and at first node 1, too. So Unseal tries again, and node
	// 0 refuses it with the beginning of the value.
	{"UnsealOfALongValueTriesAgain", 3, nil, func(s *simStage) error {
		for n := range 8 {
			if err := s.seal("A", s.must("A"), strings.Repeat("v", 600+n)); err != nil {
				return err
			}
			began := time.Now()
			ctx, stop := context.WithCancel(context.Background())
			go func() {
				for ballot := s.ballot(0); ctx.Err() == nil; time.Sleep(100 * time.Microsecond) {
					ballot += 1000
					s.prepare(0, "somebody", ballot)
					if time.Since(began) < 4*time.Millisecond {
						s.prepare(1, "somebody", ballot)
					}
				}
			}()
			err := s.as("A").Unseal(context.Background(), simKey)
			stop()
			if err != nil {
				return err
			}
			time.Sleep(2 * promiseLife) // so that nothing is promised to somebody
			g, err := s.acquire("B")
			if err != nil {
				return fmt.Errorf("Unseal returned nil, and the key is not free: %.100v", err)
			}
			if err := s.release("B", g); err != nil {
				return err
			}
		}
		return nil
	}},
	// The same after an orphan that is renewed once.
	{"UnsealedStaysAwayAfterAnOrphan", 3, forgotten, unsealedWithout2(func(s *simStage) error {
		r := s.request("A")
		r.Orphan = time.Second
		g, err := s.as("A").Acquire(context.Background(), r)
		if err == nil {
			_, err = s.as("A").Extend(context.Background(), g, 2*simTTL)
		}
		return err
	})},
	// A's lease has an old VOID beside it. Its seal is delayed, and A releases.
	{"LateSealAfterRelease", 3, map[string]simRules{"noRaise": {noRaise: true}}, func(s *simStage) error {
		g := s.must("A")
		if err := s.seal("A", g, "old"); err != nil {
			return err
		}
		if err := s.as("A").Unseal(context.Background(), simKey); err != nil {
			return err
		}
		g = s.must("A")
		if err := s.release("A", g); err != nil {
			return err
		}
		time.Sleep(simTTL)
		for i := range 3 {
			if s.accept(i, g.Owner, stamp{g.Token / tokenBlock, 1}, "\x00late", modeEnd) == voteYes {
				return errors.New("a seal took effect after the release")
			}
		}
		return nil
	}},
}

var forgotten = map[string]simRules{"forgetVoid": {forgetVoid: true}}

// unsealedWithout2 is a schedule in which node 2 keeps a seal that the others unseal. Then A uses the
// key, in a way that ends soon. Later the key must be free for those who reach node 2.
func unsealedWithout2(use func(*simStage) error) func(*simStage) error {
	return func(s *simStage) error {
		if err := s.seal("A", s.must("A"), "old"); err != nil {
			return err
		}
		s.reach("A", 0, 1)
		if err := s.as("A").Unseal(context.Background(), simKey); err != nil {
			return err
		}
		if err := use(s); err != nil {
			return err
		}
		time.Sleep(20 * time.Minute)
		s.reach("B", 1, 2)
		g, err := s.acquire("B")
		if err != nil {
			return fmt.Errorf("the key is not free: %w", err)
		}
		return s.release("B", g)
	}
}
