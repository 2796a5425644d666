package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/loglimit"
	"github.com/onelane/onelane/testutil"
)

// faultsVar is for how long TestLogs_InFaults runs, for example "10m".
const faultsVar = "ONELANE_FAULTS"

// tally is a slog.Handler that counts lines by message.
type tally struct {
	slog.Handler
	t *testing.T

	mu     sync.Mutex
	lines  map[string]int // by message
	all    map[string]int // with those that were left out
	series map[string]int // by message and Redis
}

func newTally(t *testing.T) *tally {
	return &tally{Handler: slog.DiscardHandler, t: t, lines: make(map[string]int), all: make(map[string]int), series: make(map[string]int)}
}

func (h *tally) Enabled(_ context.Context, l slog.Level) bool { return l > slog.LevelDebug }

func (h *tally) Handle(_ context.Context, r slog.Record) error {
	left, attrs := 0, make(map[string]string)
	r.Attrs(func(a slog.Attr) bool {
		if attrs[a.Key] = a.Value.String(); a.Key == "left_out" {
			left = int(a.Value.Int64())
		}
		return true
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines[r.Message]++
	h.all[r.Message] += 1 + left
	h.series[fmt.Sprint(r.Message, attrs["redis"], attrs["reason"])]++
	const host = "127.0.0.1:"
	about, of, err := strings.Contains(r.Message, "redisbackend:"), attrs["redis"], attrs["error"]
	if about && !strings.HasPrefix(of, host) && !strings.Contains(err, host) {
		h.t.Errorf("a line names no address: %s %v", r.Message, attrs)
	}
	if strings.Contains(err, "unavailable") && !strings.Contains(err, host) && !strings.Contains(err, "an earlier call") {
		h.t.Errorf("an error names no address: %s %v", r.Message, attrs)
	}
	return nil
}

// faults are what happens to the nodes until the end.
func faults(nodes testutil.Nodes, end time.Time, longest time.Duration) {
	for time.Now().Before(end) {
		some := nodes[:min(1+rand.N(2), len(nodes))]
		var all sync.WaitGroup
		for _, n := range some {
			last := rand.N(longest)
			if rand.N(2) == 0 {
				n.Kill()
				all.Go(func() { time.Sleep(last); n.Restart() })
			} else {
				n.Stop()
				all.Go(func() { time.Sleep(last); n.Cont() })
			}
		}
		all.Wait()
		time.Sleep(rand.N(longest))
		rand.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	}
}

// holders hold a lock each until the end, and take it again if it is lost.
func holders(ctx context.Context, l *core.Locker, name string, n int, all *sync.WaitGroup) {
	for i := range n {
		all.Go(func() {
			for ctx.Err() == nil {
				k, err := l.Acquire(ctx, fmt.Sprint(name, ":held:", i), core.WithOutageWait(time.Second))
				if err != nil {
					time.Sleep(rand.N(100 * time.Millisecond))
					continue
				}
				<-k.Context().Done()
				_ = k.Release(context.Background())
			}
		})
	}
}

// requests are short locks with little patience, as in a service.
func requests(ctx context.Context, l *core.Locker, name string, n int, all *sync.WaitGroup) {
	for i := range n {
		all.Go(func() {
			for ctx.Err() == nil {
				short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
				err := l.Do(short, fmt.Sprint(name, ":request:", rand.N(2*n)), func(context.Context) error {
					time.Sleep(rand.N(5 * time.Millisecond))
					return nil
				}, core.WithOrphan(time.Duration(i%2)*100*time.Millisecond))
				if errors.Is(err, core.ErrClosed) {
					cancel()
					return
				}
				_ = l.Ping(short)
				cancel()
				time.Sleep(rand.N(20 * time.Millisecond))
			}
		})
	}
}

// However many locks are held while Redis servers are killed, stopped and restarted, the log has a few
// lines for each message. ONELANE_FAULTS=10m runs it for ten minutes, with more locks and longer
// faults, and prints what was logged.
func TestLogs_InFaults(t *testing.T) {
	t.Parallel()
	length, locks, longest := 3*time.Second, 40, 500*time.Millisecond
	if text := os.Getenv(faultsVar); text != "" {
		d, err := time.ParseDuration(text)
		ok(t, faultsVar, err)
		length, locks, longest = d, 300, 8*time.Second
	}
	nodes := testutil.Cluster(t, 4)
	began, h := time.Now(), newTally(t)
	if os.Getenv(faultsVar) != "" {
		redis.SetLogger(clientLog{h})
	}
	end := began.Add(length)
	ctx, cancel := context.WithDeadline(t.Context(), end)
	defer cancel()
	quorum := quorumOf(nodes[:3])
	quorum.NodeTimeout = 0
	var working, failing sync.WaitGroup
	var lockers []*core.Locker
	for name, o := range map[string]core.Opener{"a": quorum, "b": quorum, "c": one(nodes[3].Client())} {
		l, err := core.New(o, core.WithLogger(slog.New(h)), core.WithTTL(2*time.Second), core.WithInstance(name))
		ok(t, "New", err)
		lockers = append(lockers, l)
		holders(ctx, l, name, locks, &working)
		requests(ctx, l, "shared", locks/20, &working)
	}
	failing.Go(func() { faults(slices.Clone(nodes[:3]), end, longest) })
	failing.Go(func() { faults(slices.Clone(nodes[3:]), end, longest) })
	failing.Wait()
	working.Wait()
	for _, l := range lockers {
		ok(t, "Close", l.Close())
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, message := range slices.Sorted(maps.Keys(h.lines)) {
		t.Logf("%5d lines, %7d with those left out: %s", h.lines[message], h.all[message], message)
	}
	if len(h.lines) == 0 {
		t.Error("nothing was logged: this test tests nothing")
	}
	// The first, one for each interval, and one by Close; of each Locker.
	most := len(lockers) * (2 + int(time.Since(began)/loglimit.Interval))
	for series, n := range h.series {
		if n > most {
			t.Errorf("%d lines in %v, want at most %d: %s", n, time.Since(began), most, series)
		}
	}
}

// clientLog counts what go-redis itself writes.
type clientLog struct{ *tally }

func (l clientLog) Printf(_ context.Context, format string, _ ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines["go-redis: "+format]++
	l.all["go-redis: "+format]++
}
