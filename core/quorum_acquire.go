package core

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"
)

// ballot collects the nodes' answers to one Acquire.
type ballot struct {
	granted   map[int]vote
	seals     map[string][]answer // by their bytes
	taken     map[string][]answer // by owner
	learned   map[int]string      // runs of nodes, where they were said
	young     map[int]string      // nodes that have just started, and their runs
	ages      []int               // of those, in s
	abstained []int               // those of them that do not grant
	old       []int               // nodes that have not just started
	failed    []error
	garbled   []answer // grants that cannot be read
}

// vote is a node's grant: its first token, and its counter before.
type vote struct {
	token   uint64
	before  uint64
	counted bool // there was a counter, and before is it
}

// attempt is one Acquire until its lease is over and all nodes have answered. What is granted after that is given back, and so is what
// nodes may have granted, or will, without an answer.
type attempt struct {
	grant Grant // Key and Owner
	ttl   time.Duration

	mu      sync.Mutex
	left    int // nodes that have not answered
	over    bool
	late    []answer // grants after the others had decided
	unknown []answer // failures after which a node may hold the key
	forget  *time.Timer
}

// end says that the lease is over, and which nodes may still hold the key.
func (q *quorum) end(a *attempt) (late, unknown []answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	late, unknown = a.late, a.unknown
	a.over, a.late, a.unknown = true, nil, nil
	if a.forget != nil {
		a.forget.Stop()
	}
	if a.left == 0 {
		q.asked.CompareAndDelete(a.grant.Owner, a)
	}
	return late, unknown
}

// answered notes an answer, late if it came after the others had decided, and says whether the lease is over already.
func (q *quorum) answered(a *attempt, ans answer, late bool) (over bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.over:
	case ans.err != nil && ans.mayHaveGranted():
		a.unknown = append(a.unknown, ans)
	case late && ans.err == nil && ans.status == 1:
		a.late = append(a.late, ans)
	}
	if a.left--; a.left == 0 {
		if a.over || len(a.unknown) == 0 {
			q.asked.CompareAndDelete(a.grant.Owner, a)
		} else { // until it is released, or what they may have granted has lapsed
			a.forget = time.AfterFunc(a.ttl, func() { q.asked.CompareAndDelete(a.grant.Owner, a) })
		}
	}
	return a.over
}

// mayHaveGranted says whether a node that failed may hold the key, now or when a request arrives that is still under way.
func (a answer) mayHaveGranted() bool {
	return (!refused(a.err) && !errors.Is(a.err, errNotSent) || a.retried) && !errors.Is(a.err, ErrInvalidKey)
}

func put(m *map[int]string, i int, text string) {
	if *m == nil {
		*m = make(map[int]string)
	}
	(*m)[i] = text
}

func flag(on bool) string {
	if on {
		return "1"
	}
	return ""
}

func (q *quorum) Acquire(ctx context.Context, key, owner string, ttl time.Duration) (Grant, error) {
	if err := q.doubled(key); err != nil {
		return Grant{}, err
	}
	for {
		g, b, err := q.vote(ctx, key, owner, ttl)
		switch {
		case err == nil:
			return g, nil
		case !errors.Is(err, ErrUnavailable):
			return Grant{}, err
		}
		if guard := max(ttl, q.guard); q.areNew(b, guard) {
			if taken := b.holder(key); taken != nil {
				return Grant{}, taken
			}
			q.takeForNew(guard)
			continue // none has granted anything: with the same owner
		}
		if g.leftOut != 0 { // those that were left out are needed
			for _, n := range q.nodes {
				n.breaker.probeNow()
			}
		}
		return Grant{}, err
	}
}

// vote asks the nodes once.
func (q *quorum) vote(ctx context.Context, key, owner string, ttl time.Duration) (Grant, *ballot, error) {
	sent := time.Now()
	b := &ballot{granted: make(map[int]vote), seals: make(map[string][]answer), taken: make(map[string][]answer)}
	nodes, leftOut := q.voters()
	for i := range q.nodes {
		if leftOut&(1<<i) != 0 {
			b.failed = append(b.failed, answer{node: i, err: errLeftOut}.failure())
		}
	}
	att := &attempt{grant: Grant{Key: key, Owner: owner}, ttl: ttl, left: len(nodes)}
	q.asked.Store(owner, att)
	guard, left := max(ttl, q.guard), len(nodes)
	q.ask(ctx, nodes, func(ctx context.Context, n *redisBackend, i int) (reply, error) {
		run, learn := q.freshRun(i, guard)
		return n.call(ctx, key, quorumAcquireScript, []string{key, companion(key, "fence")}, owner, millis(ttl), millis(ttl+fenceLife),
			strconv.FormatInt(sent.UnixMicro(), 10), clockTolerance.Microseconds(), millis(guard), run, flag(learn))
	}, func(a answer) bool {
		left--
		b.add(a)
		q.answered(att, a, false)
		return b.settled(left, q.majority())
	}, func(a answer) {
		if over := q.answered(att, a, true); over && (a.err != nil && a.mayHaveGranted() || a.err == nil && a.status == 1) {
			q.nodes[a.node].cleanUp(att.grant, ttl, a.reply.late)
		}
	})
	q.noteRuns(b)
	g, err := q.decide(ctx, b, Grant{Key: key, Owner: owner, Tokens: tokenBlock, Deadline: deadline(sent, ttl), leftOut: leftOut}, ttl)
	if err == nil {
		err = q.doubled(key)
	}
	if err == nil && !time.Now().Before(g.Deadline) {
		err = &UnavailableError{Key: key, Nodes: []error{errors.New("the answers came when the lease was about to end")}}
	}
	if err != nil {
		late, unknown := q.end(att)
		q.giveBack(ctx, b, slices.Concat(unknown, late, b.garbled), g, ttl)
	}
	return g, b, err
}

// areNew says whether the nodes are all new, so that there is nothing that they could have forgotten: they all started less than guard
// ago, together, and are still in the run in which this process first saw them. (Simulated: where they need not have started together,
// one that was used and restarted before this process came is taken for new.)
func (q *quorum) areNew(b *ballot, guard time.Duration) bool {
	if len(b.abstained) == 0 || len(b.young) < len(q.nodes) || len(b.seals) > 0 ||
		slices.Max(b.ages)-slices.Min(b.ages) > int((startTogether+guard/10)/time.Second) {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, run := range b.young {
		if q.runs[i] != run {
			return false
		}
	}
	return true
}

// takeForNew lets nodes grant that are younger than guard, as long as they are not restarted.
func (q *quorum) takeForNew(guard time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.fresh == 0 || guard < q.fresh {
		q.fresh = guard
	}
}

// holder is one that a node of a new quorum names: the others may have forgotten it, or not have got to know it yet.
func (b *ballot) holder(key string) *TakenError {
	if len(b.taken) == 0 {
		return nil
	}
	owner := slices.Min(slices.Collect(maps.Keys(b.taken)))
	holder, tag := splitOwner(owner)
	return &TakenError{Key: key, Holder: holder, Tag: tag, RetryAfter: b.taken[owner][0].millis(2), contested: true}
}

// freshRun is the run in which node i need not abstain, "" if there is none, and whether its run is still to be learned.
func (q *quorum) freshRun(i int, guard time.Duration) (run string, learn bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.fresh != 0 && guard >= q.fresh {
		run = q.runs[i]
	}
	return run, q.runs[i] == ""
}

// doubled is the error of a quorum in which one Redis has two votes, once that is known.
func (q *quorum) doubled(key string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.twice == nil {
		return nil
	}
	return &UnavailableError{Key: key, Nodes: []error{q.twice}}
}

// twice says which: what that Redis loses, a majority may have lost.
func twice(i, j int, as string) error {
	return fmt.Errorf("nodes %d and %d of the quorum are one Redis, %s: pass each master once", i+1, j+1, as)
}

// noteRuns remembers the runs in which nodes were first seen, and which nodes abstain.
func (q *quorum) noteRuns(b *ballot) {
	if len(b.learned) > 0 {
		q.mu.Lock()
		for i, run := range b.learned {
			if q.runs[i] != "" {
				continue
			}
			if j := slices.Index(q.runs, run); j >= 0 {
				q.twice = twice(min(i, j), max(i, j), "with the run_id "+run)
			}
			q.runs[i] = run
		}
		q.mu.Unlock()
	}
	for _, i := range b.old {
		q.abstention(i, false)
	}
	if len(b.old) > 0 { // else they may all be new, not restarted
		for _, i := range b.abstained {
			q.abstention(i, true)
		}
	}
}

func (b *ballot) add(a answer) {
	if a.err == nil && a.status != 6 {
		run := a.text(4)
		if a.text(3) == "" {
			b.old = append(b.old, a.node)
		} else {
			age, _ := strconv.Atoi(a.text(3))
			put(&b.young, a.node, run)
			b.ages = append(b.ages, age)
		}
		if run != "" {
			put(&b.learned, a.node, run)
		}
	}
	switch {
	case a.err != nil:
		b.failed = append(b.failed, a.failure())
	case a.status == 1:
		token, err := a.uint(1)
		if err != nil {
			b.failed, b.garbled = append(b.failed, err), append(b.garbled, a)
			return
		}
		v := vote{token: token}
		if before, err := a.uint(2); err == nil {
			v.before, v.counted = before, true
		}
		b.granted[a.node] = v
	case a.status == 2:
		b.taken[a.text(1)] = append(b.taken[a.text(1)], a)
	case a.status == 3:
		b.seals[a.text(1)] = append(b.seals[a.text(1)], a)
	case a.status == 6:
		b.failed = append(b.failed, fmt.Errorf("core: this machine's clock is %s µs off node %d's: set both by NTP", a.text(1), a.node+1))
	case a.status == 7:
		b.abstained = append(b.abstained, a.node)
		b.failed = append(b.failed, fmt.Errorf("node %d: it started less than a TTL ago and may have lost what it granted before: it grants nothing for %v more",
			a.node+1, a.millis(1)))
	default:
		b.failed = append(b.failed, a.unexpected(""))
	}
}

// settled says that the answers still to come do not matter.
func (b *ballot) settled(left, majority int) bool {
	if len(b.granted) >= majority && len(b.seals) == 0 {
		return true
	}
	answered, most := len(b.granted), 0
	for _, nodes := range b.seals {
		answered, most = answered+len(nodes), max(most, len(nodes))
	}
	for _, nodes := range b.taken {
		answered += len(nodes)
	}
	return most >= majority || // sealed
		len(b.taken) > 0 && answered >= majority && len(b.granted)+left < majority && most+left < majority // taken
}

// giveBack releases what the nodes granted: at once where they said so, in the background where it is not known. Nobody is
// told of it, since the key was not free before.
func (q *quorum) giveBack(ctx context.Context, b *ballot, unknown []answer, g Grant, ttl time.Duration) {
	for _, a := range unknown {
		q.nodes[a.node].cleanUp(g, ttl, a.reply.late)
	}
	nodes := make([]int, 0, len(b.granted))
	for i := range b.granted {
		nodes = append(nodes, i)
	}
	ctx, cancel := detach(ctx)
	defer cancel()
	q.ask(ctx, nodes, func(ctx context.Context, n *redisBackend, i int) (reply, error) {
		r, err := n.call(ctx, g.Key, releaseScript, []string{g.Key}, g.Owner, "")
		if err != nil {
			n.cleanUp(g, ttl, r.late)
		}
		return r, err
	}, func(answer) bool { return false }, nil)
}
