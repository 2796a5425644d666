package core_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/onelane/onelane/core"
)

type opKind int

const (
	opAcquire  opKind = iota
	opEnd             // of a hold: released, lost or dead
	opSeal            // ends a hold
	opAnswer          // somebody was told the seal's value
	opUnseal          //
	opSealEnds        // from when on a seal may be over
)

// simOp is what a client saw of one step. A step that is not sure may have had no effect, or have it any time later.
type simOp struct {
	kind      opKind
	key       string
	client    int
	hold      int // from 1 on
	token     uint64
	value     string
	sure      bool
	call, ret time.Duration // since the start
}

const never = time.Duration(math.MaxInt64)

func (o simOp) String() string {
	what := []string{"acquire", "end", "seal", "answer", "unseal", "seal ends"}[o.kind]
	ret := "?"
	if o.ret != never {
		ret = o.ret.String()
	}
	return fmt.Sprintf("%s…%s client %d: %s %s hold %d token %d %s sure %t", o.call, ret, o.client, what, o.key, o.hold, o.token, o.value, o.sure)
}

// simHold is the time for which a client had a lock.
type simHold struct {
	lock         *core.Lock
	process      *simProcess
	key          string
	client       int
	token        uint64
	called, from time.Duration // when the client asked, and got it
	to, lost     time.Duration // when the client was done with it, and when it was told
	sealed       bool
}

// simHistory is what was seen in one run. It is safe for concurrent use.
type simHistory struct {
	start time.Time

	mu         sync.Mutex
	ops        []simOp
	holds      []*simHold
	violations []string
	count      map[string]int
	notes      []string
	noting     bool
}

func (h *simHistory) now() time.Duration { return time.Since(h.start) }

func (h *simHistory) violate(what, format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.violations = append(h.violations, fmt.Sprintf("%s at %v: %s", what, h.now(), fmt.Sprintf(format, args...)))
}

func (h *simHistory) add(o simOp) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, o)
}

// note keeps what happened in between, for a seed that is looked at.
func (h *simHistory) note(format string, args ...any) {
	if !h.noting {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.notes = append(h.notes, fmt.Sprintf("%v "+format, append([]any{h.now()}, args...)...))
}

// saw counts how calls ended, so that a simulation in which nothing happens is noticed.
func (h *simHistory) saw(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.count == nil {
		h.count = make(map[string]int)
	}
	h.count[what]++
}

// held notes a lock that was acquired, and returns its number.
func (h *simHistory) held(hold *simHold, call time.Duration) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holds = append(h.holds, hold)
	hold.called, hold.token = call, hold.lock.Token()
	id := len(h.holds)
	h.ops = append(h.ops, simOp{kind: opAcquire, key: hold.key, client: hold.client, hold: id, token: hold.token, sure: true,
		call: call, ret: hold.from})
	return id
}

// finish makes the ends of the holds, when everything is over. Who is revoked holds the lock no more, whatever it believes.
func (h *simHistory) finish(revoked map[string]time.Duration) {
	for i, hold := range h.holds {
		if at, ok := revoked[hold.lock.Owner()]; ok {
			hold.to = min(hold.to, max(at, hold.called))
			if hold.from > hold.to { // before its Acquire was told
				hold.from = hold.to
				for j, o := range h.ops {
					if o.kind == opAcquire && o.hold == i+1 {
						h.ops[j].ret = hold.from
					}
				}
			}
		}
		hold.to = min(hold.to, hold.lost, hold.lock.Deadline().Sub(h.start))
		if !hold.process.died.IsZero() {
			hold.to = min(hold.to, max(hold.process.died.Sub(h.start), hold.from))
		}
		h.ops = append(h.ops, simOp{kind: opEnd, key: hold.key, client: hold.client, hold: i + 1, sure: true, call: hold.to, ret: hold.to})
	}
	slices.SortFunc(h.ops, func(a, b simOp) int {
		return cmp.Or(cmp.Compare(a.call, b.call), cmp.Compare(a.ret, b.ret), cmp.Compare(a.client, b.client), cmp.Compare(a.kind, b.kind))
	})
}

func (h *simHistory) String() string {
	var b strings.Builder
	for _, o := range h.ops {
		fmt.Fprintln(&b, o)
	}
	for _, v := range h.violations {
		fmt.Fprintln(&b, v)
	}
	return b.String()
}

// overlaps are the pairs of holds that excluded nobody.
func (h *simHistory) overlaps() (found []string) {
	for i, a := range h.holds {
		for j, b := range h.holds[:i] {
			if a.key == b.key && a.from < b.to && b.from < a.to {
				found = append(found, fmt.Sprintf("I1: holds %d (%v to %v) and %d (%v to %v) of %s overlap", j+1, b.from, b.to, i+1, a.from, a.to, a.key))
			}
		}
	}
	return found
}

// regressions are the tokens that are not larger than one of before.
func (h *simHistory) regressions() (found []string) {
	for i, a := range h.holds {
		for j, b := range h.holds {
			if i != j && a.key == b.key && (a.token == b.token || a.from < b.called && a.token > b.token) {
				found = append(found, fmt.Sprintf("tokens: hold %d of %s has %d, after hold %d with %d", j+1, b.key, b.token, i+1, a.token))
			}
		}
	}
	return found
}

// simState is a key in the model: a mutex with fences that can be sealed.
type simState struct {
	held, last int // holds; 0: nobody
	token      uint64
	seal       string
}

// fencedMutex is what every history must be a linearization of.
var fencedMutex = porcupine.NondeterministicModel{
	Init: func() []any { return []any{simState{}} },
	Step: func(state, input, _ any) []any {
		s, o := state.(simState), input.(simOp)
		before := s
		switch o.kind {
		case opAcquire: // nobody holds, nothing is sealed, the token is larger than all before
			if s.held != 0 || s.seal != "" || o.token <= s.token {
				return nil
			}
			s.held, s.last, s.token = o.hold, o.hold, o.token
		case opEnd:
			if s.held == o.hold {
				s.held = 0
			}
		case opSeal: // also after its holder's lease ended, if nobody ran in between
			if s.seal == "" && (s.held == o.hold || s.held == 0 && s.last == o.hold) {
				s.held, s.seal = 0, o.value
			} else if o.sure {
				return nil
			}
		case opAnswer:
			if s.seal != o.value {
				return nil
			}
		case opUnseal:
			s.seal = ""
		case opSealEnds:
			if s.seal == o.value {
				s.seal = ""
			}
		}
		if o.sure || s == before {
			return []any{s}
		}
		return []any{s, before}
	},
	DescribeOperation: func(input, _ any) string { return input.(simOp).String() },
}

// linearizable says for which key the history is none of a fenced mutex, "" for none.
func (h *simHistory) linearizable() string {
	keys := make(map[string][]porcupine.Operation)
	var end time.Duration
	for _, o := range h.ops {
		if o.kind == opAnswer || o.kind == opAcquire || o.kind == opEnd {
			end = max(end, o.ret)
		}
	}
	for _, o := range h.ops {
		if o.call <= end { // later ones explain nothing
			keys[o.key] = append(keys[o.key], porcupine.Operation{ClientId: o.client, Input: o, Call: int64(o.call), Return: int64(o.ret)})
		}
	}
	model := fencedMutex.ToModel()
	for key, ops := range keys {
		if r := porcupine.CheckOperationsTimeout(model, ops, 20*time.Second); r != porcupine.Ok {
			return fmt.Sprintf("model: the history of %s is not one of a fenced mutex with seals (%s)", key, r)
		}
	}
	return ""
}
