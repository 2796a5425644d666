package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// ownKeys: every goroutine locks and unlocks its own key.
func ownKeys(goroutines int) scenario {
	return scenario{
		name:    fmt.Sprintf("own-keys-%d", goroutines),
		about:   fmt.Sprintf("%d goroutine(s), each with a key of its own: lock and unlock, on one Redis. The CPU time is per lock: this process's, Redis', and both.", goroutines),
		columns: []column{{"per s", false}, {"p50 µs", true}, {"p99 µs", true}, {"µs CPU", true}, {"of Redis", true}, {"both", true}},
		open: func(b *bench) ([]contender, error) {
			addr, err := b.redis()
			if err != nil {
				return nil, err
			}
			client := redis.NewClient(&redis.Options{Addr: addr})
			cs, err := lockers(slices.Concat(peers, shares), addr, func(ctx context.Context, d time.Duration, l locker) (sample, error) {
				if _, err := load(ctx, d/8, goroutines, onOwnKey(l)); err != nil { // connections, and the garbage of the one before
					return nil, err
				}
				runtime.GC()
				own := processCPU()
				server, err1 := redisCPU(ctx, client)
				t, err2 := load(ctx, d, goroutines, onOwnKey(l))
				server2, err3 := redisCPU(ctx, client)
				mine, its := perOp(processCPU()-own, t), perOp(server2-server, t)
				return sample{t.perSecond(), 1e3 * t.wait(50), 1e3 * t.wait(99), mine, its, mine + its}, errors.Join(err1, err2, err3)
			})
			if len(cs) > 0 {
				closeFirst := cs[0].close
				cs[0].close = func() { closeFirst(); _ = client.Close() }
			}
			return cs, err
		},
		targets: ownKeysTargets(goroutines),
	}
}

func onOwnKey(l locker) func(context.Context, int) (time.Duration, error) {
	return func(ctx context.Context, worker int) (time.Duration, error) {
		return cycle(ctx, l, "own:"+strconv.Itoa(worker), nil)
	}
}

// onGoRedis are the peers on the same Redis client as ours.
var onGoRedis = []string{"redsync", "redislock"}

func ownKeysTargets(goroutines int) []target {
	than := func(who string, names []string) []target {
		return []target{
			{"throughput at least that of " + who, timesBestOf("onelane", names, "per s", false), 1, 0},
			{"p50 at most that of " + who, timesBestOf("onelane", names, "p50 µs", true), 0, 1},
			{"CPU time of both at most that of " + who, timesBestOf("onelane", names, "both", true), 0, 1},
		}
	}
	ts := append(than("the best peer on go-redis", onGoRedis), than("rueidislock", []string{"rueidislock"})...)
	if goroutines >= 64 {
		ts = append(ts, target{"at least 0.8 × redislock on AutoPipeline", times("onelane", pipelinedName, "per s"), 0.8, 0})
	}
	switch goroutines {
	case 1:
		ts = append(ts, target{"at least 0.85 × bare commands", times("onelane", "bare commands", "per s"), 0.85, 0})
	case 256:
		ts = append(ts, target{"at least 1.3 × the best peer", timesBest("onelane", "per s", false), 1.3, 0})
	}
	return ts
}

// cycle locks, calls do, unlocks, and returns how long that took without do.
func cycle(ctx context.Context, l locker, key string, do func()) (time.Duration, error) {
	return cycleAll(ctx, l, []string{key}, do)
}

// cycleAll is cycle for several keys.
func cycleAll(ctx context.Context, l locker, keys []string, do func()) (time.Duration, error) {
	began := time.Now()
	unlock, err := lockAll(ctx, l, keys)
	if err != nil {
		return 0, err
	}
	wait := time.Since(began)
	if do != nil {
		do()
		return wait, unlock(ctx)
	}
	err = unlock(ctx)
	return time.Since(began), err
}

// lockAll locks sorted keys: one after the other, if the locker has no better way.
func lockAll(ctx context.Context, l locker, keys []string) (unlock func(context.Context) error, err error) {
	if len(keys) == 1 {
		return l.lock(ctx, keys[0])
	}
	if ours, ok := l.(onelane); ok {
		locks, err := ours.AcquireAll(ctx, keys)
		if err != nil {
			return nil, err
		}
		return locks.Release, nil
	}
	var unlocks []func(context.Context) error
	unlock = func(ctx context.Context) error {
		var errs []error
		for _, u := range slices.Backward(unlocks) {
			errs = append(errs, u(ctx))
		}
		return errors.Join(errs...)
	}
	for _, key := range keys {
		u, err := l.lock(ctx, key)
		if err != nil {
			return nil, errors.Join(err, unlock(context.WithoutCancel(ctx)))
		}
		unlocks = append(unlocks, u)
	}
	return unlock, nil
}

// lockers makes contenders of peers on one Redis.
func lockers(ps []peer, addr string, measure func(ctx context.Context, d time.Duration, l locker) (sample, error)) ([]contender, error) {
	var cs []contender
	for _, p := range ps {
		l, closeIt, err := p.open(addr)
		if err != nil {
			return cs, fmt.Errorf("%s: %w", p.name, err)
		}
		cs = append(cs, contender{name: p.name, kind: p.kind, close: closeIt, run: func(ctx context.Context, d time.Duration) (sample, error) {
			if err := flush(ctx, addr); err != nil {
				return nil, err
			}
			if _, err := cycle(ctx, l, "warm-up", nil); err != nil { // connections, and scripts that the flush did not keep
				return nil, err
			}
			return measure(ctx, d, l)
		}})
	}
	return cs, nil
}

// hotKey: many goroutines of one process want the same key.
func hotKey(goroutines int) scenario {
	return scenario{
		name: "hot-key",
		about: fmt.Sprintf("%d goroutines of one process want one key. The fair share is that each has it once in %d turns; most turns says how many such "+
			"shares others had while one waited.", goroutines, goroutines),
		columns: []column{{"per s", false}, {"p50 ms", true}, {"p99 ms", true}, {"longest ms", true}, {"most turns / fair", true}},
		open: func(b *bench) ([]contender, error) {
			addr, err := b.redis()
			if err != nil {
				return nil, err
			}
			return lockers(waiting(), addr, measureHot(goroutines))
		},
		targets: []target{
			{"at least 20 × the best peer", timesBest("onelane", "per s", false), 20, 0},
			{"longest wait at most 5 × the fair share", func(r result) float64 { return r.of("onelane", "most turns / fair") }, 0, 5},
		},
	}
}

func measureHot(goroutines int) func(ctx context.Context, d time.Duration, l locker) (sample, error) {
	return func(ctx context.Context, d time.Duration, l locker) (sample, error) {
		var c counter
		most := make([]int64, goroutines)
		t, err := load(ctx, d, goroutines, func(ctx context.Context, worker int) (time.Duration, error) {
			before := c.n.Load()
			return cycle(ctx, l, "hot", func() {
				most[worker] = max(most[worker], c.n.Load()-before)
				c.increment(nil)
			})
		})
		if err == nil {
			err = c.check(t.held)
		}
		return sample{t.perSecond(), t.wait(50), t.wait(99), t.wait(100), float64(slices.Max(most)) / float64(goroutines)}, err
	}
}
