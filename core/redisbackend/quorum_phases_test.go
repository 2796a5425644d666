package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	"github.com/onelane/onelane/core"
)

// step is how a scripted node answers one script.
type step struct {
	after  time.Duration
	answer []any
	lost   bool // it never answers
}

// scripted is a node that answers as a test says. Its steps are used up, except the last of each
// script.
type scripted struct {
	name  string
	mu    sync.Mutex
	steps map[*script][]step
	hangs bool
	asked []string // the phases
}

// answers sets what the node answers to a script from now on. The last step stays.
func (n *scripted) answers(s *script, steps []step) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.steps[s] = steps
}

func (n *scripted) hang(hangs bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hangs = hangs
}

func (n *scripted) Address() string { return n.name }
func (n *scripted) Close() error    { return nil }

func (n *scripted) Do(ctx context.Context, commands ...*command) (<-chan struct{}, error) {
	c := commands[0]
	n.mu.Lock()
	n.asked = append(n.asked, phase(c))
	s := step{answer: []any{int64(voteYes)}}
	if steps := n.steps[c.Script]; len(steps) > 0 {
		s = steps[0]
		if len(steps) > 1 {
			n.steps[c.Script] = steps[1:]
		}
	}
	s.lost = s.lost || n.hangs
	n.mu.Unlock()
	if s.lost {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	time.Sleep(s.after)
	c.Value = s.answer
	return nil, nil
}

func phase(c *command) string {
	switch {
	case c.Script == quorumAcquireScript:
		return "acquire"
	case c.Script == quorumPromiseScript:
		return "promise"
	case c.Script == quorumExtendScript && c.Args[2] == "1":
		return "again"
	case c.Script == quorumExtendScript:
		return "extend"
	case c.Script == releaseScript:
		return "release"
	default:
		return "read"
	}
}

func (n *scripted) count(what string) (times int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.asked {
		if s == what {
			times++
		}
	}
	return times
}

const phaseTTL = time.Second

// phases runs a test in fake time on three nodes that answer as the test says. Calls have 5 s.
func phases(t *testing.T, play func(q *quorum, nodes []*scripted)) {
	synctest.Test(t, func(*testing.T) {
		env := core.Environment{TTL: phaseTTL, Logger: slog.New(slog.DiscardHandler), Meter: noop.NewMeterProvider().Meter("")}
		var nodes []*node
		var all []*scripted
		for i := range 3 {
			s := &scripted{name: fmt.Sprint("node", i), steps: map[*script][]step{quorumAcquireScript: {granted(7)}}}
			nodes, all = append(nodes, newNode(s, newLatency(5*time.Second), env)), append(all, s)
		}
		q := newQuorum(nodes, env, 4*time.Second, true)
		play(q, all)
		time.Sleep(time.Minute) // clean-ups end
		_ = q.Close()
	})
}

func granted(number int) step            { return step{answer: []any{int64(voteYes), strconv.Itoa(number), ""}} }
func (s step) late(d time.Duration) step { s.after = d; return s }

var (
	heldByOther = step{answer: []any{int64(voteHeld), "other/1", "", int64(500)}}
	isFreeNow   = step{answer: []any{int64(voteFree)}}
	noAnswerAt  = step{lost: true}
)

func phaseRequest() core.Request { return core.Request{Key: "{k}", Owner: "me/1", TTL: phaseTTL} }

// Answers that come when the lease is over grant nothing. The nodes are released (rule 4).
func TestQuorum_LateGrant(t *testing.T) {
	t.Parallel()
	late := phaseTTL + time.Millisecond
	for name, steps := range map[string]map[*script][]step{
		"acquire": {quorumAcquireScript: {granted(7).late(late)}},
		"promise": {quorumPromiseScript: {granted(9).late(late)}},
	} {
		phases(t, func(q *quorum, nodes []*scripted) {
			for i, n := range nodes {
				n.steps = maps.Clone(steps)
				if name == "promise" {
					n.answers(quorumAcquireScript, []step{granted(7 + i)})
				}
			}
			_, err := q.Acquire(context.Background(), phaseRequest())
			if !errors.Is(err, core.ErrUnavailable) || !errors.Is(err, errLate) {
				t.Errorf("%s: %v", name, err)
			}
			time.Sleep(10 * time.Second)
			for i, n := range nodes {
				if n.count("acquire") > 0 && n.count("release") == 0 {
					t.Errorf("%s: node %d keeps the lease", name, i)
				}
			}
		})
	}
}

// The token is the number that a majority answered. Otherwise the largest one is promised to the
// nodes that granted, and a majority must accept it, the node that answered it included (rule 3).
func TestQuorum_Token(t *testing.T) {
	t.Parallel()
	refuses := []step{{answer: []any{int64(voteClock), "3000000"}}}
	for name, c := range map[string]struct {
		numbers [3]int
		refuse  []int
		token   uint64 // or 0
		promise int    // how many nodes are asked
	}{
		"one number":           {numbers: [3]int{5, 5, 7}, token: 5},
		"different numbers":    {numbers: [3]int{5, 7, 0}, token: 7, promise: 2},
		"refused by one":       {numbers: [3]int{5, 7, 0}, refuse: []int{0}, promise: 2},
		"refused by its own":   {numbers: [3]int{5, 7, 0}, refuse: []int{1}, promise: 2},
		"no majority of nodes": {numbers: [3]int{5, 0, 0}},
	} {
		phases(t, func(q *quorum, nodes []*scripted) {
			for i, n := range nodes {
				n.steps = map[*script][]step{quorumAcquireScript: {heldByOther.late(time.Millisecond)}}
				if c.numbers[i] > 0 {
					n.answers(quorumAcquireScript, []step{granted(c.numbers[i]).late(time.Duration(i) * time.Microsecond)})
				}
				if slices.Contains(c.refuse, i) {
					n.answers(quorumPromiseScript, refuses)
				}
			}
			g, err := q.Acquire(context.Background(), phaseRequest())
			if g.Token != c.token*256 || (err == nil) != (c.token > 0) {
				t.Errorf("%s: token %d, %v", name, g.Token, err)
			}
			time.Sleep(time.Second)
			asked, given := 0, 0
			for i, n := range nodes {
				asked += n.count("promise")
				if c.numbers[i] > 0 && n.count("release") > 0 {
					given++
				}
			}
			if asked != c.promise {
				t.Errorf("%s: %d nodes were asked to promise, want %d", name, asked, c.promise)
			}
			if want := map[bool]int{true: 2, false: 0}[err != nil && c.promise > 0]; given != want && c.promise > 0 {
				t.Errorf("%s: %d grants were given back, want %d", name, given, want)
			}
		})
	}
}

// A grant that comes after the attempt failed, or after the release, is released at once (rule 4).
func TestQuorum_LateGrantIsReleased(t *testing.T) {
	t.Parallel()
	for _, fails := range []bool{true, false} {
		phases(t, func(q *quorum, nodes []*scripted) {
			nodes[2].steps = map[*script][]step{quorumAcquireScript: {granted(7).late(3 * time.Second)}}
			if fails {
				nodes[0].steps = map[*script][]step{quorumAcquireScript: {heldByOther}}
				nodes[1].steps = map[*script][]step{quorumAcquireScript: {heldByOther}}
			}
			g, err := q.Acquire(context.Background(), phaseRequest())
			if errors.Is(err, core.ErrTaken) != fails {
				t.Fatal(err)
			}
			if !fails {
				if _, err := q.Release(context.Background(), g); err != nil {
					t.Error(err)
				}
			}
			if n := nodes[2].count("release"); n > 0 {
				t.Error("a release overtakes the request that it ends")
			}
			time.Sleep(3*time.Second + time.Millisecond)
			if n := nodes[2].count("release"); n != 1 {
				t.Errorf("fails %v: the late grant was given back %d times", fails, n)
			}
		})
	}
}

// Late answers to Extend do not count, and nothing is taken again (rule 6).
func TestQuorum_LateExtend(t *testing.T) {
	t.Parallel()
	phases(t, func(q *quorum, nodes []*scripted) {
		g, err := q.Acquire(context.Background(), phaseRequest())
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range nodes[:2] {
			n.answers(quorumExtendScript, []step{step{answer: []any{int64(voteYes)}}.late(time.Second)})
		}
		nodes[2].answers(quorumExtendScript, []step{isFreeNow})
		e, err := q.Extend(context.Background(), g, phaseTTL)
		if !errors.Is(err, core.ErrLost) || e.Deadline.After(g.Deadline) {
			t.Errorf("until %v, %v", e.Deadline.Sub(g.Deadline), err)
		}
		time.Sleep(time.Second)
		if nodes[2].count("again") > 0 {
			t.Error("a node was taken again")
		}
	})
}

// Extend asks again the nodes that lost the lease, after a majority confirmed it, and counts none of
// their answers (rule 6). If there is no answer, it asks again, but not forever and not after the
// release.
func TestQuorum_TakesAgain(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T, q *quorum, nodes []*scripted, free int, again step) core.Grant {
		g, err := q.Acquire(context.Background(), phaseRequest())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		for _, n := range nodes[:free] {
			n.answers(quorumExtendScript, []step{isFreeNow, again})
		}
		return g
	}
	phases(t, func(q *quorum, nodes []*scripted) {
		g := begin(t, q, nodes, 1, noAnswerAt)
		g, err := q.Extend(context.Background(), g, 4*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if n := nodes[0].count("again"); n != 1 {
			t.Errorf("asked %d times, want 1: no answer within the lease", n)
		}
		_ = g
	})
	phases(t, func(q *quorum, nodes []*scripted) {
		for _, n := range q.nodes {
			n.latency.fixed = 100 * time.Millisecond
		}
		g := begin(t, q, nodes, 1, noAnswerAt)
		if _, err := q.Extend(context.Background(), g, 4*time.Second); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if n := nodes[0].count("again"); n != excludeAfter {
			t.Errorf("asked %d times, want %d", n, excludeAfter)
		}
	})
	phases(t, func(q *quorum, nodes []*scripted) {
		for _, n := range q.nodes {
			n.latency.fixed = 100 * time.Millisecond
		}
		g := begin(t, q, nodes, 1, noAnswerAt)
		g, err := q.Extend(context.Background(), g, 4*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(150 * time.Millisecond)
		if _, err := q.Release(context.Background(), g); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if n := nodes[0].count("again"); n != 2 {
			t.Errorf("asked %d times, want 2: the second before the release", n)
		}
	})
	phases(t, func(q *quorum, nodes []*scripted) {
		g := begin(t, q, nodes, 1, step{answer: []any{int64(voteYes)}}.late(time.Second))
		g, err := q.Extend(context.Background(), g, 4*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond)
		if _, err := q.Release(context.Background(), g); err != nil {
			t.Error(err)
		}
		synctest.Wait() // Release returns when a majority has answered
		before := nodes[0].count("release")
		time.Sleep(time.Second)
		if n := nodes[0].count("release"); n != before+1 {
			t.Errorf("what was taken after the release was given back %d times", n-before)
		}
	})
	phases(t, func(q *quorum, nodes []*scripted) {
		g := begin(t, q, nodes, 2, step{answer: []any{int64(voteYes)}})
		if _, err := q.Extend(context.Background(), g, phaseTTL); !errors.Is(err, core.ErrLost) {
			t.Errorf("without a majority: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
		if nodes[0].count("again") > 0 {
			t.Error("a lost key was taken again")
		}
	})
}
