//go:build !race

package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
)

// schedules are those that the wording of the rules was attacked with. The first reading must fail,
// the rules as they are must hold. Some cannot be promised: docs/quorum.md has them.
var schedules = []struct {
	name     string
	longest  time.Duration
	first    edits         // the first reading: other lines of the scripts,
	tune     func(*quorum) // another guard,
	faults   simFaults     // or another client. Some schedules play it themselves.
	hopeless bool          // the rules as they are fail, too
	want     string        // what fails
	play     func(s *simStage)
}{
	// A's TTL is long, B's is short. Node 1 forgets A.
	{name: "S1", longest: 60 * simS, tune: guard(7 * simS), want: "two holders", play: func(s *simStage) {
		a, b := s.client(0), s.client(0)
		s.reach(a, 0, 1)
		s.acquire(a, 60*simS)
		s.at(simS)
		s.restart(1, simEmpty, 0)
		s.at(9200 * simStep)
		s.reach(b, 1, 2)
		s.acquire(b, simS)
	}},
	// A's clock is an hour ahead. Its promise ends.
	{name: "S2", longest: 10 * simS, first: edits{clockCheck, "if false then", lifeOfP, "text(LIFE)"}, want: "token", play: func(s *simStage) {
		a := s.client(time.Hour)
		g, h, _ := s.acquire(a, simS)
		s.release(a, g, h)
		s.at(70 * simS)
		s.acquire(s.client(0), simS)
	}},
	// The key is idle. B's clock is an hour behind.
	{name: "S3", longest: 10 * simS, first: edits{clockCheck, "if promised() > 0 and false then"}, want: "token", play: func(s *simStage) {
		a := s.client(0)
		g, h, _ := s.acquire(a, simS)
		s.release(a, g, h)
		s.at(70 * simS)
		s.acquire(s.client(-time.Hour), simS)
	}},
	// Node 1 abstains for 3 s only. A is 2 s ahead, B is 2 s behind.
	{name: "S4", longest: simS, tune: guard(3 * simS), want: "token", play: func(s *simStage) {
		a, b := s.client(1980*simStep), s.client(-1980*simStep)
		s.reach(a, 0, 1)
		s.reach(b, 1, 2)
		s.at(980 * simStep)
		g, h, _ := s.acquire(a, simS)
		s.release(a, g, h)
		s.at(990 * simStep)
		s.restart(1, simEmpty, 0)
		for t := 4010 * simStep; t < 20*simS && s.count.holds < 2; t += simS {
			s.at(t)
			s.acquire(b, simS)
		}
	}},
	// A's number is on node 0 only, whose clock is ahead. promise(t) of Z carries it to node 1.
	{name: "S5", longest: simS, first: edits{promiseCheck, "if false then"}, tune: guard(5 * simS), want: "token", play: func(s *simStage) {
		for i, off := range []time.Duration{1950 * simStep, -1900 * simStep, -1900 * simStep} {
			s.nodes[i].offset = off
		}
		s.acquire(s.client(3900*simStep), simS)
		z, b := s.client(0), s.client(-3800*simStep)
		s.reach(z, 0, 1)
		s.reach(b, 1, 2)
		g, h, _ := s.acquire(z, simS)
		s.release(z, g, h)
		s.restart(1, simEmpty, 0)
		for t := 6100 * simStep; t < 20*simS && s.count.holds < 2; t += simS {
			s.at(t)
			s.acquire(b, simS)
		}
	}},
	// A promise lives for 3 s. A is 2 s ahead, B is 2 s behind.
	{name: "S6", longest: 10 * simS, first: edits{lifeOfP, "text(3000)"}, want: "token", play: func(s *simStage) {
		a := s.client(1980 * simStep)
		g, h, _ := s.acquire(a, simS)
		s.release(a, g, h)
		s.at(3100 * simStep)
		s.acquire(s.client(-1980*simStep), simS)
	}},
	// A promise lives from now on. All clocks step back by 2 min between two holders.
	{name: "S7", longest: 10 * simS, first: edits{lifeOfP, "text(LIFE)"}, want: "token", play: func(s *simStage) {
		a, b := s.client(0), s.client(-2*time.Minute)
		g, h, _ := s.acquire(a, simS)
		s.release(a, g, h)
		s.at(simS)
		for _, n := range s.nodes {
			n.offset = -2 * time.Minute
		}
		g, h, _ = s.acquire(b, simS)
		s.release(b, g, h)
		s.at(62 * simS)
		s.acquire(b, simS)
	}},
	// Node 1 abstains for the TTL only. Its clock steps by 1.9 s meanwhile.
	{name: "S8", longest: 10 * simS, tune: guard(10 * simS), want: "two holders", play: func(s *simStage) {
		a, b := s.client(0), s.client(0)
		s.reach(a, 0, 1)
		s.reach(b, 1, 2)
		s.acquire(a, 10*simS)
		s.at(10 * simStep)
		s.restart(1, simEmpty, 0)
		s.nodes[1].offset = 1900 * simStep
		s.at(9500 * simStep)
		s.acquire(b, 10*simS)
	}},
	// Node 1 starts with a clock that is 30 s late. Then it is set.
	{name: "S9", longest: 10 * simS, hopeless: true, want: "two holders", play: func(s *simStage) {
		a, b := s.client(0), s.client(0)
		s.reach(a, 0, 1)
		s.reach(b, 1, 2)
		s.acquire(a, 10*simS)
		s.at(simS)
		s.nodes[1].offset = -30 * simS
		s.restart(1, simEmpty, 0)
		s.at(3 * simS)
		s.nodes[1].offset = 0
		s.acquire(b, 10*simS)
	}},
	// Two lists of nodes are in use.
	{name: "S10", longest: 10 * simS, hopeless: true, want: "two holders", play: func(s *simStage) {
		a, b := s.client(0, 0, 1, 2), s.client(0, 0, 1, 3)
		s.reach(a, 0, 2)
		s.reach(b, 1, 3)
		s.acquire(a, 10*simS)
		s.acquire(b, 10*simS)
	}},
	// An operator releases A. A's Extend takes the key again and counts it.
	{name: "S11", longest: 10 * simS, want: "revoked", play: func(s *simStage) {
		a := s.client(0)
		g, h, _ := s.acquire(a, 10*simS)
		s.at(simS)
		_, err := s.client(0).Release(context.Background(), core.Grant{Key: simKey, Owner: g.Owner})
		if err != nil {
			panic(err)
		}
		if s.first {
			t, _ := a.ask(context.Background(), a.extension(g, 10*simS, "1"), func(*tally, int) bool { return false })
			err = t.outcome(simKey)
		} else {
			err = s.renew(a, &g, h, 10*simS)
		}
		if !errors.Is(err, core.ErrLost) {
			s.do(func() { s.violateLocked("a lock that was revoked is renewed: %v", err) })
		}
	}},
	// Z left a larger number on node 0. A's promise(t) reaches that node only, which counts as enough.
	{name: "S12", longest: 10 * simS, want: "token", play: func(s *simStage) {
		z, a, b := s.hasty(1500*simStep), s.hasty(0), s.client(0)
		s.reach(z, 0)
		s.acquire(z, simS)
		s.reach(a, 0, 1)
		s.slows(a, 1, quorumPromiseScript, lost, 0)
		if s.first {
			me, t := s.owner(), s.largest(a, 0, 1)
			if status, _ := s.ask(0, quorumPromiseScript, me, t); status == voteYes {
				s.counts(me, t, time.Now().Add(50*simStep))
			}
		} else if _, _, ok := s.acquire(a, simS); ok {
			s.do(func() { s.violateLocked("a minority accepted, and A holds") })
		}
		time.Sleep(1050 * simStep)
		s.reach(b, 1, 2)
		s.acquire(b, simS)
	}},
	// B waits for node 0. A takes node 1, which forgot B, again while it abstains.
	{name: "S13", longest: 60 * simS, first: edits{againWaits, "local wait = 0"}, want: "two holders", play: func(s *simStage) {
		a, b := s.client(0), s.client(20*simStep) // both nodes answer B's time
		s.reach(b, 0, 1)
		s.slows(b, 0, quorumAcquireScript, 1500*simStep, 0)
		go s.acquire(b, 60*simS)
		s.at(10 * simStep)
		g, h, _ := s.acquire(a, simS)
		s.at(20 * simStep)
		s.restart(1, simEmpty, 0)
		_ = s.renew(a, &g, h, simS)
		s.at(100 * simStep)
		s.reach(a, 1, 2)
		s.at(500 * simStep)
		go func() { _ = s.renew(a, &g, h, simS) }()
		s.at(1010 * simStep)
		go func() { _ = s.renew(a, &g, h, simS) }()
		s.at(2 * simS)
	}},
	// The same with one TTL.
	{name: "S13b", longest: simS, first: edits{againWaits, "local wait = 0"}, want: "two holders", play: func(s *simStage) {
		a, b := s.client(0), s.client(0)
		s.reach(a, 0, 2)
		g, h, _ := s.acquire(a, simS)
		s.reach(a)
		s.slows(a, 1, quorumExtendScript, 600*simStep, 0)
		_ = s.renew(a, &g, h, simS)
		s.at(500 * simStep)
		s.slows(b, 0, quorumAcquireScript, 550*simStep, 0)
		go s.acquire(b, simS)
		s.at(590 * simStep)
		s.slow = nil
		s.restart(1, simEmpty, 0)
		s.at(640 * simStep)
		s.reach(a, 1, 2)
		go func() { _ = s.renew(a, &g, h, simS) }()
		s.at(1200 * simStep)
	}},
	// The first token of a holder is computed in Lua.
	{name: "S14", longest: 10 * simS, want: "token", play: func(s *simStage) {
		g, _, _ := s.acquire(s.client(0), simS)
		_, number := s.ask(0, quorumAcquireScript, g.Owner, 1000, 0, 0, "", "", 0)
		var said any
		s.do(func() {
			said, _ = s.lua.run(s.nodes[0].simNode, fmt.Sprintf("return string.format('%%.0f', %d * 256 + 3)", number), nil, nil)
		})
		want := fmt.Sprint(number*tokenBlock + 3)
		if !s.first {
			said = fmt.Sprint(g.Token + 3)
		}
		if said != want {
			s.do(func() { s.violateLocked("token %v of the fourth local holder, want %v", said, want) })
		}
	}},
	// A's renewal is answered when its lease is over, and B holds the key.
	{name: "R1", longest: 10 * simS, faults: simFaults{late: true}, want: "two holders", play: func(s *simStage) {
		a, b := s.client(0), s.client(0)
		g, h, _ := s.acquire(a, simS)
		s.at(900 * simStep)
		for i := range s.nodes {
			s.slows(a, i, quorumExtendScript, 0, 1300*simStep)
		}
		go s.acquireAt(1950*simStep, b, simS)
		_ = s.renew(a, &g, h, simS)
	}},
	// A late give-back of A's first attempt deletes the lease of its second one.
	{name: "R2", longest: 10 * simS, faults: simFaults{owners: true}, want: "two holders", play: func(s *simStage) {
		a, b := s.client(0), s.client(0)
		owner := s.owner()
		s.reach(a, 0)
		s.slows(a, 0, releaseScript, 300*simStep, 0)
		ctx, cancel := context.WithTimeout(context.Background(), 50*simStep)
		defer cancel()
		_, err := a.Acquire(ctx, core.Request{Key: simKey, Owner: owner, TTL: simS})
		s.at(100 * simStep)
		s.reach(a, 0, 1)
		if !s.owners {
			owner = s.owner()
		}
		s.try(a, owner, simS)
		s.at(500 * simStep)
		s.reach(b, 0, 2)
		s.acquire(b, simS)
		if err == nil {
			panic("one node is no majority")
		}
	}},
	// A looks at its deadline before promise(t), which is slow.
	{name: "R3", longest: 10 * simS, want: "two holders", play: func(s *simStage) {
		z, a, b := s.hasty(1500*simStep), s.client(0), s.client(0)
		s.reach(z, 0)
		s.acquire(z, simS)
		s.at(100 * simStep)
		s.reach(a, 0, 1)
		for i := range 2 {
			s.slows(a, i, quorumPromiseScript, 800*simStep, 500*simStep)
		}
		go s.acquireAt(1200*simStep, b, simS)
		if s.first {
			me, t := s.owner(), s.largest(a, 0, 1)
			s.at(900 * simStep)
			s.ask(0, quorumPromiseScript, me, t)
			s.ask(1, quorumPromiseScript, me, t)
			s.at(1400 * simStep)
			s.counts(me, t, time.Now().Add(simS))
		} else {
			s.acquire(a, simS)
		}
	}},
	// The caller's time counts for new keys only. Two nodes start with old promises.
	{name: "R4", longest: simS, first: edits{floor, "promised() == 0 and sent or promised() + 1"}, want: "token", play: func(s *simStage) {
		a := s.client(0)
		for i := range 3 {
			s.at(time.Duration(i) * simS)
			g, h, _ := s.acquire(a, simS)
			s.release(a, g, h)
		}
		s.restart(0, simOld, 0)
		s.restart(1, simOld, 0)
		s.at(15 * simS)
		s.reach(a, 0, 1)
		s.acquire(a, simS)
	}},
	// A is an hour ahead. Then all nodes forget its promise.
	{name: "ahead", longest: simS, first: edits{clockCheck, "if now() - sent > T then"}, want: "token", play: func(s *simStage) {
		a := s.client(time.Hour)
		g, h, _ := s.acquire(a, simS)
		s.release(a, g, h)
		for i := range s.nodes {
			s.restart(i, simEmpty, 0)
		}
		s.at(15 * simS)
		s.acquire(s.client(0), simS)
	}},
	// Nodes start just before a second ends. One tells LASTSAVE only, another INFO only.
	{name: "seconds", longest: simS, first: edits{"(up - 1)", "up", "(saved + 1)", "saved"}, want: "too early", play: func(s *simStage) {
		s.nodes[0].denied, s.nodes[1].denied = "INFO", "LASTSAVE"
		s.at(950 * simStep)
		s.restart(0, simEmpty, 0)
		s.restart(1, simEmpty, 0)
		s.at(9010 * simStep)
		for i := range 2 {
			if status, _ := s.ask(i, quorumAcquireScript, s.owner(), 1000, s.nodes[i].now(), 9000, "", "", 0); status != voteAbstains {
				s.do(func() { s.violateLocked("node %d, of an age of 8.06 s, grants too early", i) })
			}
		}
	}},
	// No node tells when it started.
	{name: "silent", longest: simS, first: edits{"return -1", "return 0"}, want: "does not tell", play: func(s *simStage) {
		for _, n := range s.nodes {
			n.denied = "INFO LASTSAVE"
		}
		if _, _, ok := s.acquire(s.client(0), simS); ok {
			s.do(func() { s.violateLocked("a node grants that does not tell its age") })
		}
	}},
	// A request arrives twice.
	{name: "copy", longest: simS, first: edits{copyAnswers, "promise(promised() + 1)"}, want: "copy", play: func(s *simStage) {
		me, now := s.owner(), s.nodes[0].now()
		_, x := s.ask(0, quorumAcquireScript, me, 1000, now, 0, "", "", 0)
		if status, y := s.ask(0, quorumAcquireScript, me, 1000, now, 0, "", "", 0); status != voteYes || x != y {
			s.do(func() { s.violateLocked("a copy is answered %d, the request %d", y, x) })
		}
	}},
	// All nodes restart empty, one after the other. A keeps its lock, although others wait for it.
	{name: "rolling", longest: 10 * simS, first: edits{takesAgain, "if true then return {FREE} end"}, want: "is lost", play: func(s *simStage) {
		a, b := s.client(0), s.client(0)
		g, h, _ := s.acquire(a, 10*simS)
		go func() {
			for time.Since(s.start) < 75*simS {
				s.acquire(b, 10*simS)
				time.Sleep(700 * simStep)
			}
		}()
		for i := range 23 {
			s.at(time.Duration(i+1) * 3333 * simStep)
			if i%8 == 0 && i/8 < len(s.nodes) {
				s.restart(i/8, simEmpty, 0)
			}
			if err := s.renew(a, &g, h, 10*simS); err != nil {
				s.do(func() { s.violateLocked("a held lock is lost: %v", err) })
				return
			}
		}
	}},
	// A failed attempt left one number on nodes 0 and 2. A is revoked before its promise(t) arrives.
	{name: "unique", longest: simS, first: edits{"if owner ~= me then -- rule 3", "if false then"}, want: "two holders", play: func(s *simStage) {
		a, b := s.client(0), s.client(0)
		s.leave(1500*simStep, 0, 2)
		s.reach(a, 0, 1)
		s.reach(b, 1, 2)
		for i := range 2 {
			s.slows(a, i, quorumPromiseScript, 300*simStep, 0)
		}
		go func() { s.acquire(a, simS) }()
		s.at(100 * simStep)
		_, _ = s.client(0).Release(context.Background(), core.Grant{Key: simKey, Owner: "owner1"})
		s.acquire(b, simS)
	}},
	// A failed attempt left a number on node 0. Node 1 accepts it as A's token.
	{name: "accepts", longest: simS, first: edits{"  promise(t)\n", "\n"}, want: "token", play: func(s *simStage) {
		a, b := s.client(0), s.client(0)
		s.leave(1500*simStep, 0)
		s.reach(a, 0, 1)
		s.reach(b, 1, 2)
		g, h, _ := s.acquire(a, simS)
		s.release(a, g, h)
		s.at(300 * simStep)
		s.acquire(b, simS)
	}},
	// A node promised more than t to its owner.
	{name: "larger", longest: simS, first: edits{acceptsLarger, "return p > t and {FREE} or {YES, text(p)}"}, want: "refuses", play: func(s *simStage) {
		me := s.owner()
		_, p := s.ask(0, quorumAcquireScript, me, 1000, s.nodes[0].now(), 0, "", "", 0)
		s.ask(0, quorumPromiseScript, me, p+10)
		if status, _ := s.ask(0, quorumPromiseScript, me, p+5); status != voteYes {
			s.do(func() { s.violateLocked("a node that promised more refuses") })
		}
	}},
	// Somebody gives back what it was not granted.
	{name: "foreign", longest: simS, first: edits{ownerReleases, "if not value then"}, want: "two holders", play: func(s *simStage) {
		s.acquire(s.client(0), simS)
		for i := range s.nodes {
			s.ask(i, releaseScript, "another", "", "")
		}
		s.acquire(s.client(0), simS)
	}},
}

// playSchedule plays a schedule. It returns the first violation, and the log.
func playSchedule(t *testing.T, name string, first bool, mutant edits) (bad string, notes []string) {
	for _, sc := range schedules {
		if sc.name != name {
			continue
		}
		synctest.Test(t, func(*testing.T) {
			s := &simStage{simRun: &simRun{tokens: make(map[uint64]bool)}, first: first}
			s.simWorld = newSimWorld(1, 3, sc.longest, newSimLua())
			if sc.name == "S10" {
				close(s.jobs)
				s.simWorld = newSimWorld(1, 4, sc.longest, newSimLua())
			}
			s.log = true
			if first {
				s.simFaults, s.tune = sc.faults, sc.tune
				if mutant == nil {
					mutant = sc.first
				}
			}
			if len(mutant) > 0 {
				s.mutant = strings.NewReplacer(mutant...)
			}
			sc.play(s)
			time.Sleep(time.Minute)
			close(s.jobs)
			if bad, notes = s.bad, s.notes; bad == "" && s.broken != nil {
				bad = s.broken.Error()
			}
		})
	}
	return bad, notes
}

func TestSchedule(t *testing.T) {
	for _, sc := range schedules {
		t.Run(sc.name, func(t *testing.T) {
			for _, first := range []bool{true, false} {
				if first && sc.hopeless {
					continue
				}
				bad, notes := playSchedule(t, sc.name, first, nil)
				want := ""
				if first || sc.hopeless {
					want = sc.want
				}
				if want == "" && bad != "" || !strings.Contains(bad, want) {
					t.Errorf("first reading %v: %q, want %q\n%s", first, bad, want, strings.Join(notes, "\n"))
				}
			}
		})
	}
}
