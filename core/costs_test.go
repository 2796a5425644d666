package core_test

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

// granting is a Backend that grants everything and remembers nothing, so that what is measured is core's alone.
type granting struct{ core.Backend }

func (granting) Acquire(_ context.Context, key, owner string, ttl time.Duration) (core.Grant, error) {
	return core.Grant{Key: key, Owner: owner, Token: 1, Tokens: 1, Deadline: time.Now().Add(ttl)}, nil
}

func (granting) Release(context.Context, core.Grant) error { return nil }

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what the first one has finalized
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// The tests here are not parallel: they measure the whole process.

func TestCosts_Allocations(t *testing.T) {
	ctx, l := context.Background(), locker(t, granting{})
	n := testing.AllocsPerRun(1000, func() {
		k, err := l.Acquire(ctx, "stock:42")
		if err != nil || k.Release(ctx) != nil {
			t.Error("it did not work")
		}
	})
	t.Logf("lock+unlock: %v allocations in core", n)
	if n > 10 && !race {
		t.Errorf("lock+unlock allocates %v times, want at most 10", n)
	}
}

func TestCosts_AHeldLockIsAKilobyteAndNoGoroutine(t *testing.T) {
	const locks = 10_000
	l := locker(t, granting{})
	held := make([]*core.Lock, 0, locks)
	goroutines, before := runtime.NumGoroutine(), heap()
	for i := range locks {
		held = append(held, acquire(t, l, "stock:"+strconv.Itoa(i)))
	}
	each := (heap() - before) / locks
	t.Logf("a held lock: %d bytes", each)
	if each > 1024 && !race {
		t.Errorf("a held lock takes %d bytes, want at most 1024", each)
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		t.Errorf("%d goroutines with %d held locks, %d without", n, locks, goroutines)
	}
	for _, k := range held {
		ok(t, "Release", k.Release(t.Context()))
	}
	if n := l.Lines(); n != 0 {
		t.Errorf("%d keys are remembered after their release", n)
	}
}

func TestCosts_AMillionKeysLeaveNothingBehind(t *testing.T) {
	keys := 1_000_000
	if race {
		keys /= 20
	}
	for name, b := range map[string]struct {
		core.Backend
		keys int
	}{
		"memory": {testutil.Memory(), keys},
		"redis":  {core.Clients(testutil.Redis(t).Client()), keys / 100},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, l := context.Background(), locker(t, b.Backend)
			use := func(from, to int) {
				for i := from; i < to; i++ {
					k, err := l.Acquire(ctx, "order:"+strconv.Itoa(i))
					if err != nil {
						t.Fatal(err)
					}
					waited := make(chan error, 1)
					if i%1000 == 0 { // somebody gives up, and somebody waits
						_, err := l.TryAcquire(ctx, k.Key())
						want(t, "TryAcquire", err, core.ErrTaken)
						go func() { waited <- l.Do(ctx, k.Key(), func(context.Context) error { return nil }) }()
					} else {
						waited <- nil
					}
					if err := errors.Join(k.Release(ctx), <-waited); err != nil {
						t.Fatal(err)
					}
				}
			}
			use(0, b.keys/10)
			before, goroutines := heap(), runtime.NumGoroutine()
			use(b.keys/10, b.keys)
			grown := heap() - before
			t.Logf("%d keys: the heap has grown by %d bytes", b.keys, grown)
			if grown > 1<<20 {
				t.Errorf("the heap has grown by %d bytes with %d keys", grown, b.keys)
			}
			eventually(t, "no goroutine stays", func() bool { return runtime.NumGoroutine() <= goroutines })
			if n := l.Lines(); n != 0 {
				t.Errorf("%d keys are remembered", n)
			}
		})
	}
}

// cpu is what this process has used.
func cpu(t testing.TB) time.Duration {
	var u syscall.Rusage
	ok(t, "getrusage", syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// renewing holds n locks and measures what renewing them costs, in a third of the TTL.
func renewing(t testing.TB, n int, opts ...core.Option) {
	const ttl = 10 * time.Second
	l := locker(t, core.Clients(testutil.Redis(t).Client()), append(opts, core.WithTTL(ttl), core.WithNodeTimeout(3*time.Second))...)
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
		held[i], err = l.Acquire(t.Context(), "order:"+strconv.Itoa(i))
		return err
	})
	goroutines, used, start := runtime.NumGoroutine(), cpu(t), time.Now()
	time.Sleep(ttl / 3)
	share := float64(cpu(t)-used) / float64(time.Since(start))
	t.Logf("%d held locks: %.1f %% of a core to renew them, %d goroutines", n, 100*share, goroutines)
	var late atomic.Int64
	each(func(i int) error {
		if time.Until(held[i].Deadline()) < ttl/5 {
			late.Add(1)
		}
		if err := held[i].Release(context.Background()); !errors.Is(err, core.ErrLost) {
			return err
		}
		return nil
	})
	if b, isBench := t.(*testing.B); isBench { // a busy machine may be too slow for 100,000
		b.ReportMetric(100*share, "%core")
		b.ReportMetric(float64(late.Load()), "late")
		return
	}
	if share > 0.2 && !race {
		t.Errorf("renewing %d locks takes %.0f %% of a core, want less than 20 %%", n, 100*share)
	}
	if late.Load() > 0 {
		t.Errorf("%d of %d locks were not renewed in time", late.Load(), n)
	}
}

func TestCosts_TenThousandLocksRenew(t *testing.T) {
	locks := 10_000
	if race {
		locks = 1000
	}
	renewing(t, locks)
}

func BenchmarkRenewing(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		for name, opts := range map[string][]core.Option{"": nil, "/pipelined": {core.Pipelined()}} {
			b.Run(fmt.Sprint(n, name), func(b *testing.B) {
				for b.Loop() {
					renewing(b, n, opts...)
				}
			})
		}
	}
}
