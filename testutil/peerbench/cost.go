package main

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// cost: what one lock and its unlock take, in counts that do not drift.
func cost() scenario {
	return scenario{
		name: "cost",
		about: "One goroutine locks and unlocks keys that were never locked before: commands sent to Redis, allocations, and those of them that the " +
			"library itself made, and not its Redis client.",
		columns: []column{{"commands", true}, {"allocations", true}, {"its own", true}, {"bytes", true}},
		open: func(b *bench) ([]contender, error) {
			addr, err := b.redis()
			if err != nil {
				return nil, err
			}
			engine := peer{"onelane, without a Redis", ours, true, func(string) (locker, func(), error) {
				l, err := core.New(backendtest.Memory(), core.WithTTL(ttl))
				if err != nil {
					return nil, nil, err
				}
				return onelane{l}, func() { _ = l.Close() }, nil
			}}
			return lockers(append([]peer{engine}, peers...), addr, func(ctx context.Context, _ time.Duration, l locker) (sample, error) {
				const n = 500
				next := 0
				some := func() error {
					for range n {
						next++
						if _, err := cycle(ctx, l, "new:"+strconv.Itoa(next), nil); err != nil {
							return err
						}
					}
					return nil
				}
				commands, err := monitored(addr, some)
				if err != nil {
					return nil, err
				}
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				if err := some(); err != nil {
					return nil, err
				}
				runtime.ReadMemStats(&after)
				own, err := allocationsOf(ownCode, some)
				return sample{float64(commands) / n, float64(after.Mallocs-before.Mallocs) / n, float64(own) / n,
					float64(after.TotalAlloc-before.TotalAlloc) / n}, err
			})
		},
		targets: []target{
			{"at most 2 commands", func(r result) float64 { return r.of("onelane", "commands") }, 0, 2},
			{"at most 12 allocations of its own, but for what the calls to Redis take", func(r result) float64 { return r.of("onelane, without a Redis", "its own") }, 0, 12},
		},
	}
}

// ownCode are the packages that count as a lock library's own.
var ownCode = []string{"github.com/onelane/onelane/core.", "github.com/onelane/onelane/core/redisbackend.", "github.com/go-redsync/redsync/v4.", "github.com/bsm/redislock.", "github.com/redis/rueidis/rueidislock."}

// allocationsOf counts the allocations that fn makes in the code of some packages, and in the
// standard library on its behalf.
func allocationsOf(packages []string, fn func() error) (int64, error) {
	rate := runtime.MemProfileRate
	runtime.MemProfileRate = 1
	defer func() { runtime.MemProfileRate = rate }()
	before := allocated(packages)
	err := fn()
	return allocated(packages) - before, err
}

func allocated(packages []string) int64 {
	runtime.GC() // twice: the profile is that of the cycle before the last
	runtime.GC()
	records := make([]runtime.MemProfileRecord, 4096)
	n, ok := runtime.MemProfile(records, true)
	for !ok {
		records = make([]runtime.MemProfileRecord, n+1024)
		n, ok = runtime.MemProfile(records, true)
	}
	total := int64(0)
	for _, r := range records[:n] {
		if owner := responsible(r.Stack()); owner != "" && hasPrefix(owner, packages) {
			total += r.AllocObjects
		}
	}
	return total
}

// responsible is the function outside the standard library that an allocation was made in or for.
func responsible(stack []uintptr) string {
	frames := runtime.CallersFrames(stack)
	for {
		f, more := frames.Next()
		if first, _, _ := strings.Cut(f.Function, "/"); strings.Contains(first, ".") && strings.Contains(f.Function, "/") {
			return f.Function
		}
		if !more {
			return ""
		}
	}
}

func hasPrefix(s string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

// held: many locks held at once, each renewed.
func held(n int) scenario {
	return scenario{
		name:    fmt.Sprintf("held-%d", n),
		about:   fmt.Sprintf("%d locks held and renewed by one process, with a TTL of 10 s and so a renewal every 3.3 s.", n),
		columns: []column{{"% of a core", true}, {"% of a core, Redis", true}, {"goroutines per lock", true}, {"bytes per lock", true}, {"lost", true}},
		open: func(b *bench) ([]contender, error) {
			addr, err := b.redis()
			if err != nil {
				return nil, err
			}
			return []contender{{name: "onelane", kind: ours, once: true, run: func(ctx context.Context, d time.Duration) (sample, error) {
				return holdMany(ctx, addr, n, b.short)
			}}}, nil
		},
		targets: []target{
			{"less than 20 % of a core for 10,000 locks", func(r result) float64 { return r.of("onelane", "% of a core") * 10_000 / float64(n) }, 0, 20},
			{"no goroutine per lock", func(r result) float64 { return r.of("onelane", "goroutines per lock") }, 0, 0.01},
			{"at most 1 KB per lock", func(r result) float64 { return r.of("onelane", "bytes per lock") }, 0, 1024},
			{"none lost", func(r result) float64 { return r.of("onelane", "lost") }, 0, 0},
		},
	}
}

func holdMany(ctx context.Context, addr string, n int, short bool) (sample, error) {
	const workers = 16
	watch := 10 * time.Second // three renewals of each
	if short {
		n, watch = n/100, time.Second
	}
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	l, err := newLocker([]redis.UniversalClient{client})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	if _, err := cycle(ctx, onelane{l}, "warm-up", nil); err != nil {
		return nil, err
	}
	locks := make([]*core.Lock, n)
	bytes, goroutines := inUse()
	if err := each(workers, n, func(i int) (err error) {
		for try := 0; try < 10; try++ { // renewals have begun, and may keep the machine busy
			if locks[i], err = l.Acquire(ctx, "held:"+strconv.Itoa(i)); err == nil {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		return err
	}); err != nil {
		return nil, err
	}
	bytes2, goroutines2 := inUse()
	server, err := redisCPU(ctx, client)
	if err != nil {
		return nil, err
	}
	cpu, began := processCPU(), time.Now()
	time.Sleep(watch)
	took := time.Since(began).Seconds()
	cpu = processCPU() - cpu
	server2, err := redisCPU(ctx, client)
	if err != nil {
		return nil, err
	}
	lost := 0
	for _, k := range locks {
		if k.Err() != nil {
			lost++
		}
	}
	_ = each(workers, n, func(i int) error { _ = locks[i].Release(ctx); return nil })
	return sample{100 * cpu / took, 100 * (server2 - server) / took, float64(goroutines2-goroutines) / float64(n),
		float64(bytes2-bytes) / float64(n), float64(lost)}, nil
}

// each runs fn for 0 to n-1 in some goroutines.
func each(workers, n int, fn func(i int) error) error {
	errs := make(chan error, workers)
	for w := range workers {
		go func() {
			for i := w; i < n; i += workers {
				if err := fn(i); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	var failed error
	for range workers {
		if err := <-errs; err != nil {
			failed = err
		}
	}
	return failed
}

func inUse() (bytes int64, goroutines int) {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what was in a sync.Pool
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc), runtime.NumGoroutine()
}

// redisCPU is the CPU time of the Redis in s.
func redisCPU(ctx context.Context, client *redis.Client) (float64, error) {
	info, err := client.InfoMap(ctx, "cpu").Result()
	if err != nil {
		return 0, err
	}
	user, err1 := strconv.ParseFloat(info["CPU"]["used_cpu_user"], 64)
	sys, err2 := strconv.ParseFloat(info["CPU"]["used_cpu_sys"], 64)
	if err1 != nil || err2 != nil {
		return 0, fmt.Errorf("INFO cpu says %v", info)
	}
	return user + sys, nil
}
