package redisbackend

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend/internal/driver"
	"github.com/onelane/onelane/internal/cleanup"
)

// simLog keeps what is logged.
type simLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *simLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *simLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// countingConn counts the requests for locks that a node gets.
type countingConn struct {
	driver.Conn
	calls int
}

func (c *countingConn) Do(ctx context.Context, commands ...*command) (<-chan struct{}, error) {
	if commands[0].Script == quorumAcquireScript {
		c.calls++
	}
	return c.Conn.Do(ctx, commands...)
}

// A node that keeps not answering is asked once per cool-down, and has its vote again when it answers.
func TestHealth_HungNodeIsExcluded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log simLog
		reader := sdkmetric.NewManualReader()
		env := core.Environment{TTL: simTTL, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Meter: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("")}
		w := newSimWorld(1, 3, simRules{})
		var nodes []*node
		for i := range w.nodes {
			nodes = append(nodes, newNode(&countingConn{Conn: &simConn{w, 0, i}}, newLatency(simNodeTimeout), env))
		}
		q := newQuorum(nodes, env, false)
		end, err := observe(env.Meter, func() []*node { return nodes })
		if err != nil {
			t.Fatal(err)
		}
		q.end = end
		hung := nodes[1].conn.(*countingConn)
		excluded := func() (n int64) {
			var data metricdata.ResourceMetrics
			if err := reader.Collect(t.Context(), &data); err != nil {
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
				g, err := q.Acquire(t.Context(), core.Request{Key: simKey, Owner: fmt.Sprint("a/", locks), TTL: simTTL})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := q.Release(t.Context(), g); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
		w.do(func() { w.cut[[2]int{0, 1}] = time.Now().Add(24 * time.Hour) })
		lock(20)
		if n := excluded(); n != 1 {
			t.Errorf("%d nodes are excluded, want one", n)
		}
		before, start := hung.calls, time.Now()
		lock(500)
		// One probe for each cool-down, and the clean-ups, which try about once a second each.
		most := (int(time.Since(start)/coolDown) + 1) * (1 + 2*cleanup.Workers)
		if calls := hung.calls - before; calls > most {
			t.Errorf("%d calls to a hung node in %v, want at most %d", calls, time.Since(start), most)
		}
		w.do(func() { clear(w.cut) })
		time.Sleep(2 * coolDown)
		lock(20)
		before = hung.calls
		lock(20)
		if calls := hung.calls - before; calls < 20 {
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
		if err := q.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute) // calls that are under way end
	})
}

// If too few nodes are left, those that do not answer are asked all the same.
func TestHealth_NeededNodesAreAsked(t *testing.T) {
	t.Parallel()
	if err := stage(t, 3, simRules{}, func(s *simStage) error {
		s.down(0, 1)
		for range 5 {
			if _, err := s.acquire("A"); err == nil {
				return fmt.Errorf("one node granted the key")
			}
		}
		s.up(0, 1)
		// Once, without a cool-down.
		g, err := s.as("A").Acquire(context.Background(), s.request("A"))
		if err != nil {
			return err
		}
		return s.release("A", g)
	}); err != nil {
		t.Error(err)
	}
}

// A lease is counted from when its request was sent, not from when the answer came.
func TestQuorum_DeadlineCountsFromSending(t *testing.T) {
	t.Parallel()
	if err := stage(t, 3, simRules{}, func(s *simStage) error {
		s.w.do(func() { s.w.net = simNet{slow: 1, slowest: 20 * time.Millisecond} })
		for range 20 {
			sent := time.Now()
			g, err := s.as("A").Acquire(context.Background(), s.request("A"))
			if err != nil {
				return err
			}
			if latest := sent.Add(simTTL * 99 / 100); g.Deadline.After(latest) {
				return fmt.Errorf("Acquire: the deadline is %v too late", g.Deadline.Sub(latest))
			}
			sent = time.Now()
			if g, err = s.as("A").Extend(context.Background(), g, simTTL); err != nil {
				return err
			}
			if latest := sent.Add(simTTL * 99 / 100); g.Deadline.After(latest) {
				return fmt.Errorf("Extend: the deadline is %v too late", g.Deadline.Sub(latest))
			}
			if err := s.release("A", g); err != nil {
				return err
			}
			s.expire()
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// A node whose clock differs too much refuses new keys. The process sees which way it differs.
func TestHealth_ClockSkew(t *testing.T) {
	t.Parallel()
	if err := stage(t, 3, simRules{}, func(s *simStage) error {
		s.ahead("A", time.Minute)
		if _, err := s.acquire("A"); err == nil {
			return fmt.Errorf("nodes granted a new key to a process whose clock is wrong")
		}
		for _, n := range s.as("A").nodes {
			if ahead := time.Duration(n.skew.ahead.Load()); ahead < 59*time.Second || ahead > 61*time.Second {
				return fmt.Errorf("this process is %v ahead of a node, want a minute", ahead)
			}
			if reason := n.health.excluded(); reason != reasonClock {
				return fmt.Errorf("a node has no vote for the reason %q", reason)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
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
