package core_test

import (
	"math"
	"strconv"
	"strings"

	"github.com/onelane/onelane/core"
)

// simNode answers as a Redis does that runs the scripts: TestSimNode_AnswersAsRedis compares the two.
type simNode struct {
	clock func() int64 // µs since 1970
	off   rules

	runID   string // of this run: a node that restarts has another
	started int64  // by its own clock

	data map[string]simValue
	seen func(script, key, value string) // called when a key gets a value; may be nil
	now  string                          // the script that runs
}

type simValue struct {
	text string
	ends int64 // ms
}

// rules are those of the scripts that can be switched off, to see that the simulation notices.
type rules struct {
	releaseAnothers   bool // no owner check on release
	extendTakesBack   bool // a key that is gone is held again
	extendShortens    bool
	raiseNothing      bool // the token is not written back: max-only tokens
	repairNothing     bool // a seal on a minority is answered, and not decided
	repairOldSeals    bool // also where somebody ran after it
	unsealLeavesFence bool // the counter is not moved beyond the seal
	neverAbstain      bool // a node that has just started grants at once
}

func newSimNode(clock func() int64, off rules) *simNode {
	return &simNode{clock: clock, off: off, data: make(map[string]simValue)}
}

// get is GET: a key lives through the millisecond in which it ends.
func (n *simNode) get(key string) (string, bool) {
	v, ok := n.data[key]
	if ok && n.clock()/1000 > v.ends {
		delete(n.data, key)
		return "", false
	}
	return v.text, ok
}

func (n *simNode) pttl(key string) int64 {
	if _, ok := n.get(key); !ok {
		return -2
	}
	return n.data[key].ends - n.clock()/1000
}

func (n *simNode) set(key, text string, px int64) {
	n.data[key] = simValue{text, n.clock()/1000 + px}
	if n.seen != nil {
		n.seen(n.now, key, text)
	}
}

func (n *simNode) pexpire(key string, px int64) {
	v := n.data[key]
	v.ends = n.clock()/1000 + px
	n.data[key] = v
}

// number is a number in a script's text, 0 where there is none.
func number(text string) int64 {
	i, _ := strconv.ParseInt(text, 10, 64)
	return i
}

func numeral(i int64) string { return strconv.FormatInt(i, 10) }

func sealed(value string) bool { return strings.HasPrefix(value, "\x00") }

func sealToken(value string) int64 {
	token, _, _ := strings.Cut(value[1:], ":")
	return number(token)
}

// run executes one script. It is not safe for concurrent use.
func (n *simNode) run(script string, keys, argv []string) []any {
	n.now = script
	value, held := n.get(keys[0])
	fence, counted := "", false
	if len(keys) > 1 {
		fence, counted = n.get(keys[1])
	}
	switch script {
	case "acquire", "quorum_acquire":
		if held && value != argv[0] {
			answer := []any{int64(2), value, n.pttl(keys[0])}
			if sealed(value) {
				answer[0] = int64(3)
			}
			if script == "quorum_acquire" {
				young, run, _ := n.young(argv)
				answer = append(answer, young, run)
			}
			return answer
		}
		if script == "acquire" {
			return n.acquire(keys, argv, held, number(fence))
		}
		return n.quorumAcquire(keys, argv, held, fence, counted)
	case "extend":
		return n.extend(keys[0], argv, value, held)
	case "release":
		return n.release(keys[0], argv, value, held)
	case "seal":
		return n.seal(keys[0], argv, value, held)
	case "unseal":
		if !sealed(value) {
			return []any{int64(4)}
		}
		life := max(n.pttl(keys[0]), n.pttl(keys[1]), number(argv[1]))
		delete(n.data, keys[0])
		if !n.off.unsealLeavesFence {
			n.set(keys[1], numeral(max(number(fence), sealToken(value))), life)
		}
		return []any{int64(1)}
	case "inspect":
		switch {
		case !held:
			return []any{int64(4)}
		case sealed(value):
			return []any{int64(3), value, n.pttl(keys[0])}
		default:
			return []any{int64(2), value, n.pttl(keys[0]), numeral(max(number(fence)-core.TokenBlock+1, 0))}
		}
	case "quorum_raise":
		if value != argv[0] || number(fence) > number(argv[1]) {
			return []any{int64(4)}
		}
		if !n.off.raiseNothing {
			n.set(keys[1], argv[1], max(n.pttl(keys[1]), number(argv[2])))
		}
		return []any{int64(1)}
	case "quorum_seal":
		return n.quorumSeal(keys, argv, value, held, fence, counted)
	case "quorum_unseal":
		token := number(argv[2])
		if sealed(value) && sealToken(value) <= token {
			delete(n.data, keys[0])
		}
		if !n.off.unsealLeavesFence {
			counter := number(fence)
			if counter == 0 {
				counter = n.clock()
			}
			n.set(keys[1], numeral(max(counter, token+number(argv[3])-1)+1), max(n.pttl(keys[1]), number(argv[1])))
		}
		return []any{int64(1)}
	default:
		panic("no such script: " + script)
	}
}

func (n *simNode) acquire(keys, argv []string, ours bool, fence int64) []any {
	const block = core.TokenBlock
	ttl, life := number(argv[1]), number(argv[2])
	if ours && fence >= block {
		n.pexpire(keys[0], ttl)
		return []any{int64(1), numeral(fence)}
	}
	last := n.clock()
	if ahead := fence + block - last; ahead > 0 {
		last += ahead
		life += ceilMillis(ahead)
	}
	n.set(keys[1], numeral(last), life)
	n.set(keys[0], argv[0], ttl)
	return []any{int64(1), numeral(last)}
}

func ceilMillis(micros int64) int64 { return int64(math.Ceil(float64(micros) / 1000)) }

func (n *simNode) quorumAcquire(keys, argv []string, ours bool, before string, counted bool) []any {
	const block = core.TokenBlock
	ttl, life := number(argv[1]), number(argv[2])
	young, run, left := n.young(argv)
	if ours && counted {
		n.pexpire(keys[0], ttl)
		return []any{int64(1), numeral(number(before) - block + 1), "?", young, run}
	}
	if young != "" && run != argv[6] && !n.off.neverAbstain {
		return []any{int64(7), left, "", young, run}
	}
	now, token := n.clock(), number(argv[3])
	if counted {
		token = number(before) + 1
	} else if d := token - now; max(d, -d) > number(argv[4]) {
		return []any{int64(6), numeral(d)}
	}
	last := token + block - 1
	n.set(keys[1], numeral(last), life+max(0, ceilMillis(last-now)))
	n.set(keys[0], argv[0], ttl)
	if n.off.repairOldSeals && counted {
		before = "1"
	}
	return []any{int64(1), numeral(token), before, young, run}
}

// young says whether the node has just started, for how long it is young, and its run if that is looked up.
func (n *simNode) young(argv []string) (young, run string, left int64) {
	up := (n.clock() - n.started) / 1e6
	if left = number(argv[5]) - (up-1)*1000; left > 0 {
		young = numeral(up)
	}
	if young != "" || argv[7] == "1" {
		run = n.runID
	}
	return young, run, left
}

func (n *simNode) extend(key string, argv []string, value string, held bool) []any {
	switch {
	case !held && n.off.extendTakesBack:
		n.set(key, argv[0], number(argv[1]))
	case !held:
		return []any{int64(4)}
	case value != argv[0]:
		return []any{int64(2), value}
	case n.pttl(key) < number(argv[1]) || n.off.extendShortens:
		n.pexpire(key, number(argv[1]))
	}
	return []any{int64(1)}
}

func (n *simNode) release(key string, argv []string, value string, held bool) []any {
	switch {
	case !held:
		return []any{int64(4)}
	case value == argv[0], n.off.releaseAnothers && !sealed(value):
		delete(n.data, key)
		return []any{int64(1)}
	case sealed(value):
		return []any{int64(3), value}
	default:
		return []any{int64(2), value}
	}
}

func (n *simNode) seal(key string, argv []string, value string, held bool) []any {
	switch {
	case !held:
		return []any{int64(4)}
	case value == argv[0]:
		n.set(key, argv[2], number(argv[3]))
		return []any{int64(1)}
	case value == argv[2]:
		return []any{int64(1)}
	case sealed(value):
		return []any{int64(3), value}
	default:
		return []any{int64(2), value}
	}
}

func (n *simNode) quorumSeal(keys, argv []string, value string, held bool, before string, counted bool) []any {
	repair := argv[6] != ""
	switch {
	case !held:
		return []any{int64(4)}
	case value == argv[2]:
		return []any{int64(1)}
	case value != argv[0] && sealed(value):
		return []any{int64(3), value}
	case value != argv[0]:
		return []any{int64(2), value}
	case repair && (!counted || before != argv[6]):
		return []any{int64(4)}
	case !repair && number(before) >= number(argv[4])+core.TokenBlock:
		return []any{int64(4)}
	case repair && n.off.repairNothing:
		return []any{int64(1)}
	}
	life := max(n.pttl(keys[1]), number(argv[5]))
	n.set(keys[0], argv[2], number(argv[3]))
	n.set(keys[1], numeral(max(number(before), number(argv[4]))), life)
	return []any{int64(1)}
}
