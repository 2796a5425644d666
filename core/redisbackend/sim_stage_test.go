//go:build !race

package redisbackend

import (
	"context"
	"fmt"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/ownertext"
)

// simStage is a quorum on which a schedule happens step by step. No message is lost but those that
// the schedule cuts.
type simStage struct {
	*simRun
	first bool // the first reading, not the rules as they are
	calls int
}

// at lets time pass until d after the start.
func (s *simStage) at(d time.Duration) { time.Sleep(time.Until(s.start.Add(d))) }

// client makes a process whose clock is wrong. It waits for answers for up to 10 s.
func (s *simStage) client(ahead time.Duration, on ...int) *quorum {
	return s.process(ahead, 10*time.Second, on...)
}

// hasty makes one that waits for 50 ms.
func (s *simStage) hasty(ahead time.Duration) *quorum { return s.process(ahead, 50*time.Millisecond) }

// reach says which nodes a process reaches from now on. None are all.
func (s *simStage) reach(q *quorum, nodes ...int) {
	s.do(func() {
		for i := range s.nodes {
			s.cut[[2]int{processOf(q), i}] = time.Now().Add(24 * time.Hour)
			if len(nodes) == 0 {
				delete(s.cut, [2]int{processOf(q), i})
			}
		}
		for _, i := range nodes {
			delete(s.cut, [2]int{processOf(q), i})
		}
	})
}

// slows makes messages of a script from a process to a node late.
func (s *simStage) slows(q *quorum, node int, sc *script, there, back time.Duration) {
	before, process := s.slow, processOf(q)
	s.do(func() {
		s.slow = func(p, i int, x *script) (time.Duration, time.Duration) {
			if p == process && i == node && x == sc {
				return there, back
			}
			if before != nil {
				return before(p, i, x)
			}
			return 0, 0
		}
	})
}

// lost is later than any message arrives.
const lost = 24 * time.Hour

func (s *simStage) owner() string {
	s.calls++
	return fmt.Sprint("owner", s.calls)
}

// try makes an attempt.
func (s *simStage) try(q *quorum, owner string, ttl time.Duration) (g core.Grant, h *simHold, ok bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	before := s.newest
	g, err := q.Acquire(ctx, core.Request{Key: simKey, Owner: owner, TTL: ttl, Token: true})
	s.do(func() {
		if s.noteLocked("process %d: Acquire: %v %v", processOf(q), g.Token, err); err == nil {
			h = s.grantedLocked(before, g)
		}
	})
	return g, h, err == nil
}

func (s *simStage) acquire(q *quorum, ttl time.Duration) (g core.Grant, h *simHold, ok bool) {
	return s.try(q, s.owner(), ttl)
}

// release ends a hold, if there is one.
func (s *simStage) release(q *quorum, g core.Grant, h *simHold) {
	if h != nil {
		s.do(func() { h.over = true })
		_, _ = q.Release(context.Background(), g)
	}
}

// renew calls Extend.
func (s *simStage) renew(q *quorum, g *core.Grant, h *simHold, ttl time.Duration) error {
	longer, err := s.simFaults.extend(q, *g, ttl)
	s.do(func() {
		if s.noteLocked("process %d: Extend: %v", processOf(q), err); err == nil {
			s.renewedLocked(h, longer)
			*g = longer
		}
	})
	return err
}

// ask runs a script on one node, as a separate message, and returns the status and the number.
func (s *simStage) ask(node int, sc *script, owner string, args ...any) (status int64, number uint64) {
	texts := make([]string, len(args))
	for i, a := range args {
		texts[i] = fmt.Sprint(a)
	}
	round := (&quorum{}).round(simKey, sc, owner, texts...)
	c := scriptCommand(sc, round.keys, round.args...)
	s.do(func() {
		v, err := s.runLocked(node, sc, c.Keys, c.All()[3+len(c.Keys):])
		if err != nil {
			panic(err)
		}
		r := reply{}
		if err := r.decode(v); err != nil {
			panic(err)
		}
		status = r.status
		number, _ = r.uint(1)
		s.noteLocked("node %d: %s %v: %v", node, scriptName(sc), args, v)
	})
	return status, number
}

// largest acquires some nodes for a second, in the name of the last owner. It returns the largest
// answer.
func (s *simStage) largest(q *quorum, nodes ...int) (t uint64) {
	for _, i := range nodes {
		_, number := s.ask(i, quorumAcquireScript, fmt.Sprint("owner", s.calls), 1000, q.now().UnixMicro(), 0, "", "", 0)
		t = max(t, number)
	}
	return t
}

// counts notes that an attempt counts itself as holder, by another reading.
func (s *simStage) counts(owner string, number uint64, deadline time.Time) {
	s.do(func() {
		s.grantedLocked(s.newest, core.Grant{Owner: owner, Token: number * tokenBlock, Deadline: deadline})
	})
}

// edits are replacements in the scripts.
type edits []string

const (
	clockCheck   = "if math.abs(sent - now()) > T then"
	promiseCheck = "if t > now() + T then"
	lifeOfP      = "text(math.ceil(math.max(p - now(), 0) / 1000) + LIFE)"
	floor        = "math.max(promised() + 1, sent)"
	againWaits   = "local wait = abstains(ARGV[4]) -- rules 6 and 8"
	takesAgain   = "call('SET', KEYS[1], me, 'PX', ARGV[2]) -- rule 6: whatever the node promised"
	copyAnswers  = "lengthen(ARGV[2]) -- rule 2: a copy of this request leaves the promise unchanged"

	acceptsLarger = "return {YES, text(p)} -- rule 3: also if the promise was larger"
	ownerReleases = "if value ~= ARGV[1] then"
)

// guard makes the nodes abstain for d only.
func guard(d time.Duration) func(*quorum) {
	return func(q *quorum) { q.again, q.grants = ownertext.Millis(d), ownertext.Millis(d) }
}

const (
	simStep = time.Millisecond
	simS    = time.Second
)

// leave leaves the number of an attempt that failed on some nodes.
func (s *simStage) leave(ahead time.Duration, nodes ...int) {
	for _, i := range nodes {
		s.ask(i, quorumAcquireScript, "failed", 1000, s.nodes[i].now()+ahead.Microseconds(), 0, "", "", 0)
		s.ask(i, releaseScript, "failed", "", "")
	}
}

func (s *simStage) acquireAt(d time.Duration, q *quorum, ttl time.Duration) {
	s.at(d)
	s.acquire(q, ttl)
}
