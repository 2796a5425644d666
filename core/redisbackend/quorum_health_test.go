package redisbackend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/cleanup"
)

// lines keeps what is logged.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A node that keeps not answering gets one call per cool-down, and has its vote again when it
// answers.
func TestHealth_HungNodeIsExcluded(t *testing.T) {
	t.Parallel()
	phases(t, func(q *quorum, nodes []*scripted) {
		var log lines
		reader := sdkmetric.NewManualReader()
		end, err := observe(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter(""), func() []*node { return q.nodes })
		if err != nil {
			t.Fatal(err)
		}
		q.end = end
		for _, n := range q.nodes {
			n.latency.fixed, n.logger = 60*time.Millisecond, slog.New(slog.NewTextHandler(&log, nil))
		}
		excluded := func() (n int64) {
			var data metricdata.ResourceMetrics
			if err := reader.Collect(context.Background(), &data); err != nil {
				t.Fatal(err)
			}
			for _, s := range data.ScopeMetrics {
				for _, m := range s.Metrics {
					if m.Name != "onelane.nodes.excluded" {
						continue
					}
					for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
						n += p.Value
					}
				}
			}
			return n
		}
		locks := 0
		lock := func(n int) {
			for range n {
				locks++
				g, err := q.Acquire(context.Background(), core.Request{Key: "{k}", Owner: fmt.Sprint("a/", locks), TTL: phaseTTL})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := q.Release(context.Background(), g); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
		nodes[1].hang(true)
		lock(20)
		if n := excluded(); n != 1 {
			t.Errorf("%d nodes are excluded, want one", n)
		}
		before, start := nodes[1].count("acquire"), time.Now()
		lock(500)
		// One probe for each cool-down, and the clean-ups, which try about once a second each.
		most := (int(time.Since(start)/coolDown) + 1) * (1 + 2*cleanup.Workers)
		if calls := nodes[1].count("acquire") - before; calls > most {
			t.Errorf("%d calls to a hung node in %v, want at most %d", calls, time.Since(start), most)
		}
		nodes[1].hang(false)
		time.Sleep(2 * coolDown)
		lock(20)
		before = nodes[1].count("acquire")
		lock(20)
		if calls := nodes[1].count("acquire") - before; calls < 20 {
			t.Errorf("%d calls to a node that is back, want 20", calls)
		}
		if n := excluded(); n != 0 {
			t.Errorf("%d nodes are excluded, want none", n)
		}
		for what, want := range map[string]int{"has no vote": 1, "has a vote again": 1} {
			if n := strings.Count(log.String(), what); n != want || !strings.Contains(log.String(), "redis=node1") {
				t.Errorf("%q was logged %d times, want %d with the node's address:\n%s", what, n, want, log.String())
			}
		}
	})
}

// If too few nodes are left, callers ask those that do not answer, too.
func TestHealth_NeededNodesAreAsked(t *testing.T) {
	t.Parallel()
	phases(t, func(q *quorum, nodes []*scripted) {
		nodes[0].hang(true)
		nodes[1].hang(true)
		for range excludeAfter + 2 {
			if _, err := q.Acquire(context.Background(), phaseRequest()); err == nil {
				t.Error("one node granted the key")
			}
		}
		nodes[0].hang(false)
		nodes[1].hang(false)
		g, err := q.Acquire(context.Background(), phaseRequest()) // once, without a cool-down
		if err == nil {
			_, err = q.Release(context.Background(), g)
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// exclude lets a node hang until nobody asks it any more, and answer again after that.
func exclude(t *testing.T, q *quorum, nodes []*scripted, i int) {
	q.nodes[i].latency.fixed = 60 * time.Millisecond
	nodes[i].hang(true)
	for n := range excludeAfter {
		g, err := q.Acquire(context.Background(), core.Request{Key: "{other}", Owner: fmt.Sprint("a/", n), TTL: phaseTTL})
		if err == nil {
			_, err = q.Release(context.Background(), g)
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	if q.nodes[i].health.excluded() != reasonTimeouts {
		t.Fatal("a node that hangs is asked")
	}
	nodes[i].hang(false)
}

// Callers ask an excluded node if the others have no majority: one of them has just started.
func TestHealth_ExcludedAndRestarted(t *testing.T) {
	t.Parallel()
	phases(t, func(q *quorum, nodes []*scripted) {
		exclude(t, q, nodes, 0)
		nodes[1].answers(quorumAcquireScript, []step{{answer: []any{int64(voteAbstains), "3000"}}})
		g, err := q.Acquire(context.Background(), phaseRequest())
		if err != nil {
			t.Fatalf("two of three nodes grant: %v", err)
		}
		if _, err := q.Release(context.Background(), g); err != nil {
			t.Error(err)
		}
	})
	phases(t, func(q *quorum, nodes []*scripted) {
		g, err := q.Acquire(context.Background(), phaseRequest())
		if err != nil {
			t.Fatal(err)
		}
		exclude(t, q, nodes, 0)
		nodes[1].answers(quorumExtendScript, []step{isFreeNow})
		if _, err := q.Extend(context.Background(), g, phaseTTL); err != nil {
			t.Errorf("two of three nodes have the lease: %v", err)
		}
	})
}

// Callers that share the votes do not wait for an excluded node: they try again.
func TestHealth_ExcludedAndContended(t *testing.T) {
	t.Parallel()
	phases(t, func(q *quorum, nodes []*scripted) {
		exclude(t, q, nodes, 0)
		nodes[0].hang(true)
		nodes[1].answers(quorumAcquireScript, []step{heldByOther})
		start := time.Now()
		_, err := q.Acquire(context.Background(), phaseRequest())
		if took := time.Since(start); !errors.Is(err, core.ErrTaken) || took > 0 {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

// Two nodes that are one Redis are refused for as long as they are.
func TestHealth_OneRedisTwiceHeals(t *testing.T) {
	t.Parallel()
	phases(t, func(q *quorum, nodes []*scripted) {
		run := func(i int, run string) {
			nodes[i].answers(quorumAcquireScript, []step{{answer: []any{int64(voteYes), "7", run}}})
		}
		acquire := func(n int) error {
			g, err := q.Acquire(context.Background(), core.Request{Key: "{k}", Owner: fmt.Sprint("me/", n), TTL: phaseTTL})
			if err == nil {
				_, _ = q.Release(context.Background(), g)
			}
			time.Sleep(100 * time.Millisecond)
			return err
		}
		run(0, "a")
		run(1, "b")
		run(2, "a")
		_ = acquire(1) // the third may be late
		if err := acquire(2); err == nil || !strings.Contains(err.Error(), "nodes 1 and 3 of the quorum are one Redis") {
			t.Errorf("one Redis has two votes: %v", err)
		}
		run(2, "c")
		_ = acquire(3)
		if err := acquire(4); err != nil {
			t.Errorf("three masters: %v", err)
		}
	})
}

// A lease is counted from when its request was sent, not from when the answer came (rule 4).
func TestQuorum_DeadlineCountsFromSending(t *testing.T) {
	t.Parallel()
	phases(t, func(q *quorum, nodes []*scripted) {
		for _, n := range nodes {
			n.answers(quorumAcquireScript, []step{granted(7).late(20 * time.Millisecond)})
			n.answers(quorumExtendScript, []step{step{answer: []any{int64(voteYes)}}.late(20 * time.Millisecond)})
		}
		latest := time.Now().Add(phaseTTL * 99 / 100)
		g, err := q.Acquire(context.Background(), phaseRequest())
		if err != nil || g.Deadline.After(latest) {
			t.Errorf("Acquire: the deadline is %v too late, %v", g.Deadline.Sub(latest), err)
		}
		latest = time.Now().Add(phaseTTL * 99 / 100)
		g, err = q.Extend(context.Background(), g, phaseTTL)
		if err != nil || g.Deadline.After(latest) {
			t.Errorf("Extend: the deadline is %v too late, %v", g.Deadline.Sub(latest), err)
		}
	})
}

// A node that refuses or abstains has no vote, for a reason, until it may have one again. A process
// that only asks for a key of another process, as the standbys of a leader do, gets no vote of it.
func TestHealth_Reasons(t *testing.T) {
	t.Parallel()
	for reason, c := range map[string]struct {
		answer step
		over   func(n *node)
	}{
		reasonRestarted: {step{answer: []any{int64(voteAbstains), "3000"}}, func(*node) { time.Sleep(3 * time.Second) }},
		reasonClock:     {step{answer: []any{int64(voteClock), "60000000"}}, func(n *node) { n.skew.note(0) }}, // by a Ping
		reasonACL:       {step{answer: []any{int64(voteAbstains), "-1"}}, nil},
	} {
		phases(t, func(q *quorum, nodes []*scripted) {
			acquire := func(want error) {
				if _, err := q.Acquire(context.Background(), phaseRequest()); !errors.Is(err, want) {
					t.Errorf("%s: %v", reason, err)
				}
				time.Sleep(100 * time.Millisecond)
			}
			for _, n := range nodes {
				n.answers(quorumAcquireScript, []step{c.answer, heldByOther})
			}
			acquire(core.ErrUnavailable)
			for _, n := range q.nodes {
				if r := n.health.excluded(); r != reason {
					t.Errorf("a node has no vote for the reason %q, want %q", r, reason)
				}
				if ahead := time.Duration(n.skew.ahead.Load()); reason == reasonClock && ahead != time.Minute {
					t.Errorf("this process is %v ahead of a node, want a minute", ahead)
				}
			}
			if c.over == nil {
				return
			}
			acquire(core.ErrTaken)
			for _, n := range q.nodes {
				c.over(n)
				if r := n.health.excluded(); r != "" {
					t.Errorf("a node counts as excluded, for the reason %q", r)
				}
			}
		})
	}
}

func TestSkew_Seen(t *testing.T) {
	t.Parallel()
	var s skew
	now := time.Now()
	for _, bad := range [][2]string{{"", ""}, {"x", "1"}, {"1", ""}} {
		if s.seen(now, bad[0], bad[1]); s.known.Load() {
			t.Errorf("%q is a time", bad)
		}
	}
	node := now.Add(-time.Hour)
	s.seen(now, fmt.Sprint(node.Unix()), fmt.Sprint(node.Nanosecond()/1000))
	if ahead := time.Duration(s.ahead.Load()); ahead < time.Hour || ahead > time.Hour+time.Minute {
		t.Errorf("%v ahead of a clock that is an hour late", ahead)
	}
}
