package redisbackend

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

type simOpKind int

const (
	opAcquire simOpKind = iota
	opEnd               // the holder stops to believe in its lease
	opRelease
	opSeal
	opSealed   // somebody got the value
	opOrphaned // somebody learned of the orphan
	opFree     // somebody learned that the key is free
	opUnseal
	opGhost // an Acquire that failed may have left an orphan
)

// simOp is what a client saw of one call. A call that is not sure may have had no effect, or have it
// at any later time.
type simOp struct {
	kind      simOpKind
	client    int
	hold      int // from 1 on
	adopts    int // the hold that left the orphan
	token     uint64
	value     string
	orphan    bool
	sure      bool
	call, ret time.Duration // since the start
}

const never = time.Duration(math.MaxInt64)

func (o simOp) String() string {
	what := []string{"acquire", "end", "release", "seal", "sealed", "orphaned", "free", "unseal", "ghost"}[o.kind]
	return fmt.Sprintf("%v to %v: client %d: %s hold %d adopts %d token %d %q orphan %t sure %t",
		o.call, o.ret, o.client, what, o.hold, o.adopts, o.token, o.value, o.orphan, o.sure)
}

// simHold is the time for which a client believed that it held the key.
type simHold struct {
	client         int
	token          uint64
	call, from, to time.Duration
}

// simHistory is what was seen in one run.
type simHistory struct {
	start time.Time
	sane  bool // leases last as long as they should

	mu     sync.Mutex
	ops    []simOp
	holds  []*simHold
	owners map[string]int // of holds and ghosts
	next   int
	bad    []string
	count  map[string]int
}

func newSimHistory(sane bool) *simHistory {
	return &simHistory{start: time.Now(), sane: sane, owners: make(map[string]int), count: make(map[string]int)}
}

func (h *simHistory) now() time.Duration { return time.Since(h.start) }

func (h *simHistory) add(o simOp) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, o)
}

func (h *simHistory) violate(what, format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bad = append(h.bad, fmt.Sprintf("%s at %v: %s", what, h.now(), fmt.Sprintf(format, args...)))
}

func (h *simHistory) saw(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count[what]++
}

// hold returns the number of the hold with that owner.
func (h *simHistory) hold(owner string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.owners[owner] == 0 {
		h.next++
		h.owners[owner] = h.next
	}
	return h.owners[owner]
}

// violations checks the history when everything is over.
func (h *simHistory) violations() []string {
	bad := slices.Clone(h.bad)
	for i, a := range h.holds {
		for j, b := range h.holds {
			if h.sane && i < j && a.from < b.to && b.from < a.to {
				bad = append(bad, fmt.Sprintf("I1: the holds with the tokens %d (%v to %v) and %d (%v to %v) overlap", a.token, a.from, a.to, b.token, b.from, b.to))
			}
			if i != j && (i < j && a.token == b.token || a.from < b.call && a.token >= b.token) {
				bad = append(bad, fmt.Sprintf("I2: token %d after token %d", b.token, a.token))
			}
		}
	}
	slices.SortStableFunc(h.ops, func(a, b simOp) int {
		return cmp.Or(cmp.Compare(a.call, b.call), cmp.Compare(a.client, b.client), cmp.Compare(a.kind, b.kind))
	})
	var ops []porcupine.Operation
	for _, o := range h.ops {
		ops = append(ops, porcupine.Operation{ClientId: o.client, Input: o, Call: int64(o.call), Return: int64(o.ret)})
	}
	model := simModel(h.sane)
	switch r := porcupine.CheckOperationsTimeout(model.ToModel(), ops, time.Second); r {
	case porcupine.Unknown:
		h.saw("too many unknown outcomes to check")
	case porcupine.Illegal:
		bad = append(bad, "model: the history is not one of a key that is free, held, orphaned or sealed")
	}
	return bad
}

// simState is the key in the model.
type simState struct {
	held, last, orphan int // holds; 0: none
	token              uint64
	seal               string
}

// simModel is what every history must be a linearization of. If leases may end too soon, it allows
// two holders at a time, but not two that may leave an orphan.
func simModel(sane bool) porcupine.NondeterministicModel {
	return porcupine.NondeterministicModel{
		Init: func() []any { return []any{simState{}} },
		Step: func(state, input, _ any) []any {
			s, o := state.(simState), input.(simOp)
			next, legal := s.step(o, sane)
			switch {
			case o.sure && !legal:
				return nil
			case o.sure && o.kind == opUnseal && s.orphan != 0 && s.seal == "":
				return []any{s, next} // its lease may not have been over yet
			case o.sure:
				return []any{next}
			case !legal || next == s:
				return []any{s}
			}
			return []any{s, next}
		},
		DescribeOperation: func(input, _ any) string { return input.(simOp).String() },
	}
}

// step returns the next state, and whether the operation can be.
func (s simState) step(o simOp, sane bool) (simState, bool) {
	free := (!sane || s.held == 0 || s.held == o.hold) && s.seal == ""
	switch o.kind {
	case opAcquire:
		if !free || s.held == o.hold || s.orphan != 0 && s.orphan != o.adopts || o.token <= s.token {
			return s, false
		}
		s.held, s.last, s.token, s.orphan = o.hold, o.hold, o.token, 0
		if o.orphan {
			s.orphan = o.hold
		}
	case opGhost:
		if !free || s.orphan != 0 && s.orphan != o.adopts {
			return s, false
		}
		s.orphan, s.last = o.hold, o.hold
	case opEnd:
		if s.held == o.hold {
			s.held = 0
		}
	case opRelease:
		if s.held == o.hold {
			s.held = 0
		}
		if s.orphan == o.hold {
			s.orphan = o.adopts // what a failed adoption restores
		}
	case opSeal:
		// An answer that was not given may come later, also after others ran: what a minority has
		// can be out of their reach. An answer that was given may not.
		if !free || s.orphan != 0 && s.orphan != o.hold || o.sure && s.last != o.hold {
			return s, false
		}
		s.held, s.orphan, s.seal = 0, 0, o.value
	case opSealed:
		return s, s.seal == o.value
	case opOrphaned:
		return s, s.orphan == o.hold && s.seal == ""
	case opFree:
		return s, s.seal == "" && s.orphan == 0 && (!sane || s.held == 0)
	case opUnseal:
		s.seal, s.orphan = "", 0
	}
	return s, true
}
