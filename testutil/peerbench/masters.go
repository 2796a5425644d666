package main

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil/internal/server"
)

const hung = ", one hung"

// masters: a quorum of five, all healthy and with one that hangs.
func masters(goroutines int) scenario {
	return scenario{
		name: fmt.Sprintf("masters-%d", goroutines),
		about: fmt.Sprintf("%d goroutines, each with a key of its own, on %d independent masters; all healthy, and one stopped (SIGSTOP) since a second. "+
			"What failed is not among those per second. The CPU time is per lock: this process's, and all masters'. The best peer is that of all rows.",
			goroutines, mastersCount),
		columns: []column{{"per s", false}, {"p50 ms", true}, {"p99 ms", true}, {"failed %", true}, {"µs CPU", true}, {"of Redis", true}},
		open: func(b *bench) ([]contender, error) {
			nodes, err := b.quorum()
			if err != nil {
				return nil, err
			}
			var clients []redis.UniversalClient
			for _, n := range nodes {
				clients = append(clients, redis.NewClient(&redis.Options{Addr: n.Addr}))
			}
			q := redisbackend.New(clients...)
			q.LongestTTL, q.NewInstallation = ttl, b.short
			l, err := core.New(q, core.WithTTL(ttl), core.WithLogger(slog.New(slog.DiscardHandler)))
			if err != nil {
				return nil, err
			}
			rs := redsync.New(redsyncPools(clients)...)
			measure := func(l locker, stopped bool) func(context.Context, time.Duration) (sample, error) {
				return func(ctx context.Context, d time.Duration) (sample, error) {
					var failed, all atomic.Int64 // with time-outs of 50 ms some calls fail on a busy machine
					op := func(ctx context.Context, worker int) (time.Duration, error) {
						began := time.Now()
						all.Add(1)
						if _, err := cycle(ctx, l, "own:"+strconv.Itoa(worker), nil); err != nil {
							failed.Add(1)
						}
						return time.Since(began), nil
					}
					if stopped && b.short {
						d = min(d, 20*time.Millisecond)
					}
					var own, theirs float64
					t, err := onMasters(ctx, nodes, stopped, d, goroutines, op, func() (err error) {
						own = processCPU() - own
						if stopped { // one does not answer
							theirs = math.NaN()
							return nil
						}
						theirs, err = mastersCPU(ctx, clients, theirs)
						return err
					})
					share := float64(failed.Load()) / float64(all.Load())
					most := 0.5
					if b.short { // a slow machine may answer less than half of so short a load
						most = 0.99
					}
					if err == nil && share > most {
						err = fmt.Errorf("%.0f %% of the calls failed", 100*share)
					}
					return sample{t.perSecond() * (1 - share), t.wait(50), t.wait(99), 100 * share, perOp(own, t), perOp(theirs, t)}, err
				}
			}
			slow := redsyncOn(rs)
			fast := redsyncOn(rs, redsync.WithFailFast(true), redsync.WithTimeoutFactor(0.005)) // 50 ms, as ours
			cs := []contender{
				{name: "onelane", kind: ours, run: measure(onelane{l}, false)},
				{name: "redsync", kind: theirs, run: measure(slow, false)},
				{name: "redsync, fail-fast", kind: theirs, run: measure(fast, false)},
				{name: "onelane" + hung, kind: ours, run: measure(onelane{l}, true)},
				{name: "redsync" + hung, kind: theirs, once: true, run: measure(slow, true)},
				{name: "redsync, fail-fast" + hung, kind: theirs, run: measure(fast, true)},
			}
			if b.short { // that one takes 15 s
				cs = slices.DeleteFunc(cs, func(c contender) bool { return c.once })
			}
			cs[0].close = func() {
				_ = l.Close()
				for _, c := range clients {
					_ = c.Close()
				}
			}
			return cs, nil
		},
		targets: []target{
			{"healthy: at least 1.3 × redsync", times("onelane", "redsync", "per s"), 1.3, 0},
			{"healthy: at most 0.75 × redsync's CPU time", times("onelane", "redsync", "µs CPU"), 0, 0.75},
			{"one hung: at least 0.9 × our own healthy figure", times("onelane"+hung, "onelane", "per s"), 0.9, 0},
			{"one hung: p99 at most 3 × our own healthy one", times("onelane"+hung, "onelane", "p99 ms"), 0, 3},
		},
	}
}

// onMasters loads the masters, after a warm-up in which a breaker may open and connections are
// made. It calls cpu before and after the load.
func onMasters(ctx context.Context, nodes []*server.Server, stopped bool, d time.Duration, goroutines int,
	op func(context.Context, int) (time.Duration, error), cpu func() error) (t tally, err error) {
	for _, n := range nodes {
		if err := flush(ctx, n.Addr); err != nil {
			return tally{}, err
		}
	}
	if stopped {
		last := nodes[len(nodes)-1]
		if err := last.Pause(); err != nil {
			return tally{}, err
		}
		defer func() {
			if resumed := last.Resume(); err == nil {
				err = resumed
			}
			time.Sleep(d / 2) // it works off what it was sent
		}()
		if t, err := load(ctx, min(d, time.Second), goroutines, op); err != nil || t.ops == 0 {
			return bySlowest(t), err
		}
	}
	if _, err := load(ctx, d/4, goroutines, op); err != nil {
		return tally{}, err
	}
	if err := cpu(); err != nil {
		return tally{}, err
	}
	if t, err = load(ctx, d, goroutines, op); err != nil {
		return t, err
	}
	return t, cpu()
}

// mastersCPU is the CPU time of all masters, less what it was before.
func mastersCPU(ctx context.Context, clients []redis.UniversalClient, before float64) (float64, error) {
	total := -before
	for _, c := range clients {
		cpu, err := redisCPU(ctx, c.(*redis.Client))
		if err != nil {
			return 0, err
		}
		total += cpu
	}
	return total, nil
}

// bySlowest is for a locker so slow that its warm-up says everything: the time is that of its
// slowest lock.
func bySlowest(t tally) tally {
	if t.held > 0 {
		t.ops, t.time = int(t.held), time.Duration(t.waits.Max())
	}
	return t
}
