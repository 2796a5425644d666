package redisbackend

import (
	"fmt"
	"strconv"
	"strings"
)

// simRules are the rules that a simulated node can break, also on behalf of the callers. For
// example, a value that a node claims to have accepted, and did not, was never repaired.
type simRules struct {
	trust      bool // A value on a minority is answered as it is: repairs are not stored.
	highest    bool // A repair keeps the stamp of the value.
	noPromise  bool // A holder's seal ignores later promises.
	tie        bool // One number is promised to two proposers.
	regrant    bool // A duplicate of the owner's acquire raises the ballot.
	noVoid     bool // A holder does not void leftovers.
	noAbstain  bool // A restarted node grants at once.
	noPrepare  bool // The token is the maximum of the ballots, which no majority promised.
	anyClock   bool // A caller with a wrong clock gets new keys.
	noHeal     bool // A decided value is not written to the nodes that lack it.
	noRetake   bool // Extend does not take the key again.
	retakeLess bool // Extend takes the key again only where the ballot is not larger.
	oldStamps  bool // A late copy of an earlier accept replaces a later value.
	noRaise    bool // Release does not raise the promise.
	forgetVoid bool // A value that replaces VOID ends it.
}

// simNode does what the scripts lua/quorum_*.lua do. Its caller locks it.
type simNode struct {
	clock   func() int64 // µs
	started int64        // µs
	runID   string
	off     simRules
	data    map[string]simEntry
	stamps  map[string]stamp // the first of each value on any node, for the rule "highest"
}

type simEntry struct {
	text string
	ends int64 // µs
}

func newSimNode(clock func() int64, off simRules) *simNode {
	return &simNode{clock: clock, off: off, data: make(map[string]simEntry), stamps: make(map[string]stamp)}
}

func (n *simNode) get(key string) (string, bool) {
	e, ok := n.data[key]
	if ok && e.ends <= n.clock() {
		delete(n.data, key)
		return "", false
	}
	return e.text, ok
}

func (n *simNode) set(key, text, px string) {
	n.data[key] = simEntry{text, n.clock() + simNumber(px)*1000}
}

func (n *simNode) pttl(key string) int64 {
	if _, ok := n.get(key); !ok {
		return -2
	}
	return (n.data[key].ends - n.clock()) / 1000
}

// extend makes a key last for at least px ms.
func (n *simNode) extend(key, px string) {
	if n.pttl(key) < simNumber(px) && n.pttl(key) >= 0 {
		n.set(key, n.data[key].text, px)
	}
}

func simNumber(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// simCall is one script on one key.
type simCall struct {
	*simNode
	keys, argv    []string
	me, owner, by string
	ballot        uint64
	at            stamp
	value         string
	accepted      string
	over          bool  // the value replaced VOID, or is VOID
	ends          int64 // µs, if the value ends before what it replaced; else 0
}

func (n *simNode) run(s *script, keys, argv []string) []any {
	c := &simCall{simNode: n, keys: keys, argv: argv, me: argv[0]}
	c.owner, _ = n.get(keys[0])
	if promise, ok := n.get(keys[1]); ok {
		number, by, _ := strings.Cut(promise, " ")
		c.ballot, c.by = uint64(simNumber(number)), by
	}
	if c.accepted, _ = n.get(keys[2]); c.accepted != "" {
		v := newVote(0, reply{fields: []any{int64(0), "0", "", "", "", int64(0), c.accepted}}, nil)
		c.at, c.value, c.over = v.at, v.value, v.value == void
		if inner, ok := strings.CutPrefix(v.value, "@"); ok {
			ends, value, _ := strings.Cut(inner, " ")
			c.over, c.ends, c.value = true, simNumber(ends)*1000, value
			if c.ends <= n.clock() {
				c.ends, c.value = 0, void
			}
			c.accepted = fmt.Sprintf("%d %d %s", c.at.ballot, c.at.step, c.value)
		}
		if c.at.ballot > c.ballot {
			c.ballot, c.by = c.at.ballot, ""
		}
	}
	switch s {
	case quorumAcquireScript:
		return c.acquire()
	case quorumPrepareScript:
		return c.prepare()
	case quorumAcceptScript:
		return c.accept()
	case quorumExtendScript:
		return c.extendLease()
	case quorumReleaseScript:
		return c.release()
	case quorumReadScript:
		return c.read()
	default:
		panic("unknown script")
	}
}

func (c *simCall) closed() bool { return c.value != "" && c.value != void }

func (c *simCall) begun() string {
	owner, _, _ := orphan(c.value)
	return owner
}

func (c *simCall) holds() bool {
	return c.owner == c.me || c.owner == "" && c.value != "" && (c.by == c.me || c.begun() == c.me)
}

func (c *simCall) promised(b uint64) bool {
	return c.ballot < b || c.ballot == b && (c.by == c.me || c.off.tie)
}

func (c *simCall) promise(b uint64, who, life string) {
	c.ballot, c.by = b, who
	c.set(c.keys[1], fmt.Sprintf("%d %s", b, who), life)
}

// abstains counts whole seconds, as INFO does.
func (c *simCall) abstains(guard string) int64 {
	up := (c.clock()/1e6 - c.started/1e6)
	if c.off.noAbstain || simNumber(guard) <= 0 {
		return 0
	}
	return max(simNumber(guard)-(up-1)*1000, 0)
}

func (c *simCall) answer(status int64, whole bool, extra string) []any {
	accepted, lease := c.accepted, int64(0)
	if !whole {
		accepted = accepted[:min(len(accepted), 512)]
	}
	if c.owner != "" {
		lease = c.pttl(c.keys[0])
	}
	return []any{status, fmt.Sprint(c.ballot), extra, c.by, c.owner, lease, accepted, c.remaining()}
}

// remaining returns for how many ms the accepted value lasts.
func (c *simCall) remaining() int64 {
	switch {
	case c.accepted == "":
		return 0
	case c.ends != 0:
		return (c.ends - c.clock()) / 1000
	}
	return c.pttl(c.keys[2])
}

// store keeps a value for px ms, and a VOID that it replaces for as long as that lasts.
func (c *simCall) store(at stamp, value string, px int64) {
	covered := int64(0)
	if c.over && !c.off.forgetVoid {
		covered = c.pttl(c.keys[2])
	}
	c.accepted, c.ends = fmt.Sprintf("%d %d %s", at.ballot, at.step, value), 0
	stored := c.accepted
	if covered > px {
		if value != void {
			c.ends = c.clock() + px*1000
			stored = fmt.Sprintf("%d %d @%d %s", at.ballot, at.step, c.ends/1000, value)
		}
		px = covered
	}
	c.set(c.keys[2], stored, fmt.Sprint(px))
}

func (c *simCall) acquire() []any {
	run := ""
	if c.argv[7] == "1" {
		run = c.runID
	}
	switch {
	case c.owner == c.me:
		if c.off.regrant {
			c.promise(c.ballot+1, c.me, c.argv[2])
		}
		c.extend(c.keys[0], c.argv[1])
		return c.answer(voteYes, false, run)
	case c.owner != "":
		return c.answer(voteHeld, false, run)
	case c.closed() && (c.argv[6] == "" || c.begun() != c.argv[6]):
		return c.answer(voteSealed, true, run)
	}
	if wait := c.abstains(c.argv[5]); wait > 0 {
		return c.answer(voteAbstains, false, fmt.Sprint(wait))
	}
	b := c.ballot + 1
	if c.ballot == 0 {
		b = uint64(simNumber(c.argv[3]))
		ahead := int64(b) - c.clock()
		if max(ahead, -ahead) > simNumber(c.argv[4]) && !c.off.anyClock {
			return c.answer(voteClock, false, fmt.Sprint(ahead))
		}
	}
	c.promise(b, c.me, c.argv[2])
	c.set(c.keys[0], c.me, c.argv[1])
	if c.accepted == "" {
		return []any{int64(voteYes), fmt.Sprint(c.ballot), run}
	}
	return c.answer(voteYes, true, run)
}

func (c *simCall) prepare() []any {
	b := uint64(simNumber(c.argv[1]))
	switch {
	case c.owner != "" && c.owner != c.me:
		return c.answer(voteHeld, false, "")
	case c.argv[4] == "1" && !c.holds():
		return c.answer(voteFree, false, "")
	case c.owner != c.me && c.abstains(c.argv[3]) > 0:
		return c.answer(voteAbstains, false, "")
	case c.off.noPrepare && c.argv[4] == "1":
		return c.answer(voteYes, true, "")
	case !c.promised(b):
		return c.answer(voteRefused, false, "")
	}
	c.promise(b, c.me, c.argv[2])
	return c.answer(voteYes, true, "")
}

func (c *simCall) accept() []any {
	at := stamp{uint64(simNumber(c.argv[1])), int(simNumber(c.argv[2]))}
	value, px, mode := c.argv[3], c.argv[4], c.argv[6]
	if c.off.trust && (mode == modeRepair || mode == modeHeal) && value != void || c.off.noVoid && mode == modeKeep && value == void || c.off.noHeal && mode == modeHeal {
		return c.answer(voteYes, false, "")
	}
	if first, ok := c.stamps[value]; ok && value != void && c.off.highest && mode == modeRepair {
		at = first
	}
	if c.value == value && c.at == at {
		if mode != modeHeal {
			if life := simNumber(px); c.remaining() < life {
				c.store(at, value, life)
			}
		}
		return c.answer(voteYes, false, "")
	}
	same := ""
	if c.value == value && value != void {
		same = "same"
	}
	switch {
	case c.owner != "" && c.owner != c.me:
		return c.answer(voteHeld, false, same)
	case mode == modeEnd && !c.holds() && c.closed():
		return c.answer(voteSealed, false, same)
	case mode == modeEnd && !c.holds():
		return c.answer(voteFree, false, same)
	case c.owner != c.me && mode != modeHeal && mode != modeEnd && c.abstains(c.argv[7]) > 0:
		return c.answer(voteAbstains, false, "")
	case c.value != "" && !c.at.less(at) && !c.off.oldStamps:
		return c.answer(voteRefused, false, same)
	case mode != modeHeal && !c.promised(at.ballot) && !(c.off.noPromise && mode == modeEnd) && !c.off.highest:
		return c.answer(voteRefused, false, same)
	}
	if mode != modeKeep {
		delete(c.data, c.keys[0])
		c.owner = ""
	}
	if _, ok := c.stamps[value]; !ok {
		c.stamps[value] = at
	}
	c.store(at, value, simNumber(px))
	if c.ballot <= at.ballot {
		c.promise(at.ballot, c.me, c.argv[5])
	}
	return c.answer(voteYes, false, "")
}

func (c *simCall) extendLease() []any {
	open, mine := !c.closed(), c.begun() == c.me && c.value != ""
	b := uint64(simNumber(c.argv[2]))
	switch {
	case c.owner == c.me:
		c.extend(c.keys[0], c.argv[1])
	case c.owner != "":
		return c.answer(voteHeld, false, "")
	case !open && !mine:
		return c.answer(voteSealed, false, "")
	case c.argv[6] != "1" || c.off.noRetake || c.off.retakeLess && c.ballot > b:
		return c.answer(voteFree, false, "")
	case c.abstains(c.argv[4]) > 0:
		return c.answer(voteAbstains, false, "")
	default:
		c.owner = c.me
		c.set(c.keys[0], c.me, c.argv[1])
	}
	if c.ballot < b {
		c.promise(b, c.me, c.argv[3])
	} else if text, ok := c.get(c.keys[1]); ok {
		c.set(c.keys[1], text, c.argv[3])
	}
	if c.argv[5] != "" {
		_, retention, _ := orphan(c.argv[5])
		px := simNumber(c.argv[1]) + retention.Milliseconds()
		if mine && c.remaining() < px {
			c.store(c.at, c.value, px)
		} else if !mine && open && c.at.ballot < b {
			c.store(stamp{b, 0}, c.argv[5], px)
		}
	}
	return c.answer(voteYes, false, "")
}

func (c *simCall) release() []any {
	switch {
	case c.owner == c.me:
	case c.owner != "":
		return c.answer(voteHeld, false, "")
	case c.closed():
		return c.answer(voteSealed, false, "")
	default:
		return c.answer(voteFree, false, "")
	}
	delete(c.data, c.keys[0])
	if b := uint64(simNumber(c.argv[1])); b > 0 && !c.off.noRaise {
		c.promise(max(c.ballot, b)+1, "", c.argv[2])
	}
	return []any{int64(voteYes), "0", int64(-1)}
}

func (c *simCall) read() []any {
	switch {
	case c.owner != "":
		return c.answer(voteHeld, true, "")
	case c.closed():
		return c.answer(voteSealed, true, "")
	case c.abstains(c.argv[1]) > 0:
		return c.answer(voteAbstains, true, "")
	default:
		return c.answer(voteFree, true, "")
	}
}
