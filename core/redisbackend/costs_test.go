package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// The tests in this file are not parallel: they measure the whole process.

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what the first one has finalized
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestCosts_KeysLeaveNothingBehind(t *testing.T) {
	keys, most := 10_000, int64(1<<20)
	switch {
	case race:
		keys /= 10
	case !long:
		keys, most = keys/2, most/2
	}
	ctx, l := context.Background(), locker(t, one(testutil.Redis(t).Client()))
	use := func(from, to int) {
		for i := from; i < to; i++ {
			k, err := l.Acquire(ctx, "order:"+strconv.Itoa(i))
			ok(t, "Acquire", err)
			waited := make(chan error, 1)
			if i%1000 == 0 { // somebody gives up, and somebody waits
				_, err := l.TryAcquire(ctx, k.Key())
				want(t, "TryAcquire", err, core.ErrTaken)
				go func() { waited <- l.Do(ctx, k.Key(), func(context.Context) error { return nil }) }()
			} else {
				waited <- nil
			}
			ok(t, "Release", errors.Join(k.Release(ctx), <-waited))
		}
	}
	use(0, keys/10)
	before, goroutines := heap(), runtime.NumGoroutine()
	use(keys/10, keys)
	if grown := heap() - before; grown > most {
		t.Errorf("the heap has grown by %d bytes with %d keys", grown, keys)
	}
	eventually(t, "no goroutine stays", func() bool { return runtime.NumGoroutine() <= goroutines })
}

// A lock and its release, over the network and without waiters.
func TestCosts_Allocations(t *testing.T) {
	ctx, l := context.Background(), locker(t, one(testutil.Redis(t).Client()))
	n := testing.AllocsPerRun(500, func() {
		k, err := l.Acquire(ctx, "stock:42")
		if err != nil || k.Release(ctx) != nil {
			t.Error("a lock failed")
		}
	})
	t.Logf("lock and release: %v allocations", n)
	if n > 27 && !race { // half of them are those of go-redis
		t.Errorf("lock and release allocate %v times, want at most 27", n)
	}
}

// A caller that finds a large seal gets one copy of it, beside the one that was read.
func TestCosts_LargeSeal(t *testing.T) {
	const size, calls = 8 << 20, 5
	l := locker(t, one(testutil.Redis(t).Client()), core.WithOutageWait(time.Minute))
	ok(t, "Seal", acquire(t, l, "k").Seal(t.Context(), make([]byte, size), time.Hour))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range calls {
		_, err := l.TryAcquire(t.Context(), "k")
		want(t, "TryAcquire", err, core.ErrSealed)
	}
	runtime.ReadMemStats(&after)
	copies := float64(after.TotalAlloc-before.TotalAlloc) / calls / size
	t.Logf("TryAcquire allocates %.2f times the value", copies)
	if copies > 2.2 {
		t.Errorf("TryAcquire allocates %.2f times the value, want 2", copies)
	}
}

// cpu returns what this process has used.
func cpu(t testing.TB) time.Duration {
	var u syscall.Rusage
	ok(t, "getrusage", syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// renewing holds n locks and measures what renewing them costs, in a third of the TTL. Each lock is due
// once in that time, and renewed counts those that were renewed. late locks were not renewed in time, and
// lost ones not at all.
func renewing(t testing.TB, n int, ttl time.Duration) (share float64, renewed, late, lost int64) {
	l := locker(t, one(testutil.Redis(t).Client()), core.WithTTL(ttl))
	held := make([]*core.Lock, n)
	each := func(do func(i int) error) {
		var all sync.WaitGroup
		var next atomic.Int64
		for range 64 {
			all.Go(func() {
				for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
					if err := do(i); err != nil {
						t.Errorf("order:%d: %v", i, err)
						return
					}
				}
			})
		}
		all.Wait()
		if t.Failed() {
			t.FailNow()
		}
	}
	each(func(i int) (err error) {
		held[i], err = l.Acquire(t.Context(), "order:"+strconv.Itoa(i), core.WithOutageWait(5*time.Minute)) // beside the renewals
		return err
	})
	deadlines := make([]time.Time, n)
	for i, k := range held {
		deadlines[i] = k.Deadline()
	}
	used, start := cpu(t), time.Now()
	time.Sleep(ttl / 3)
	share = float64(cpu(t)-used) / float64(time.Since(start))
	for i, k := range held {
		if k.Deadline().After(deadlines[i]) {
			renewed++
		}
	}
	var missed, over atomic.Int64
	each(func(i int) error {
		if time.Until(held[i].Deadline()) < ttl/5 {
			missed.Add(1)
		}
		err := held[i].Release(context.Background())
		switch {
		case errors.Is(err, core.ErrLost):
			over.Add(1)
		case !errors.Is(err, core.ErrUnavailable): // a machine that is too small for so many locks
			return err
		}
		return nil
	})
	return share, renewed, missed.Load(), over.Load()
}

// Ten thousand locks renew in the gate. The share of a core for fewer of them would be noise.
func TestCosts_LocksRenew(t *testing.T) {
	locks := 1000
	if long && !race {
		locks = 10_000
	}
	for range 5 {
		share, renewed, late, _ := renewing(t, locks, 10*time.Second)
		// A machine that is busy with other things renews fewer of them.
		share *= float64(locks) / float64(max(renewed, 1))
		t.Logf("%d held locks: %.1f %% of a core to renew all of them, %d renewed, %d late", locks, 100*share, renewed, late)
		if 2*renewed >= int64(locks) && (locks < 10_000 || share < 0.3) {
			return
		}
	}
	t.Errorf("want half of %d locks renewed in a third of their TTL, at least once, and 10,000 with less than 30 %% of a core", locks)
}

func BenchmarkRenewing(b *testing.B) {
	for _, c := range []struct {
		locks int
		ttl   time.Duration
	}{
		{10_000, 10 * time.Second}, {25_000, 10 * time.Second}, {50_000, 10 * time.Second}, {100_000, 30 * time.Second},
	} {
		b.Run(fmt.Sprint(c.locks, "-", c.ttl), func(b *testing.B) {
			for b.Loop() {
				share, _, late, lost := renewing(b, c.locks, c.ttl)
				b.ReportMetric(100*share, "%core")
				b.ReportMetric(float64(late), "late")
				b.ReportMetric(float64(lost), "lost")
			}
		})
	}
}
