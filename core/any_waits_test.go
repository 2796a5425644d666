package core_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
)

// A lock that the context carries counts as got.
func TestAcquireAny_Reentrance(t *testing.T) {
	t.Parallel()
	l := locker(t, backendtest.Memory())
	k := acquireAny(t, l, slots(3))
	ctx := core.WithLock(t.Context(), k)
	again, err := l.AcquireAny(ctx, slots(3))
	ok(t, "AcquireAny again", err)
	if again.Key() != k.Key() || again.Owner() != k.Owner() {
		t.Errorf("got another lock: %q and %q", again.Key(), k.Key())
	}
	other, err := l.AcquireAny(core.WithLock(ctx, nil), slots(3))
	ok(t, "AcquireAny without the lock", err)
	if other.Key() == k.Key() {
		t.Errorf("got %q twice", k.Key())
	}
	for _, k := range []*core.Lock{other, k, again} {
		if status(t, l, k.Key()) != core.Held {
			t.Errorf("%q is not held", k.Key())
		}
		ok(t, "Release", k.Release(t.Context()))
	}
	for _, key := range slots(3) {
		if got := status(t, l, key); got != core.Free {
			t.Errorf("%q is %v", key, got)
		}
	}
}

// The lock's context is the caller's child, and not that of the wait.
func TestAcquireAny_LockOutlivesTheWait(t *testing.T) {
	t.Parallel()
	for _, waits := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := locker(t, backendtest.Memory())
			var held []*core.Lock
			for _, key := range slots(2) {
				if waits {
					held = append(held, acquire(t, l, key))
				}
			}
			type name struct{}
			ctx, cancel := context.WithCancel(context.WithValue(t.Context(), name{}, "caller"))
			locks, _ := awaitAny(ctx, l, slots(2), core.WithWait(time.Second))
			synctest.Wait()
			for _, k := range held {
				ok(t, "Release", k.Release(t.Context()))
			}
			k := <-locks
			time.Sleep(time.Minute)
			if err := k.Context().Err(); err != nil || k.Context().Value(name{}) != "caller" {
				t.Errorf("the lock's context: %v", err)
			}
			cancel()
			if k.Context().Err() == nil {
				t.Error("the lock's context outlives the caller's")
			}
			ok(t, "Release", k.Release(t.Context()))
		})
	}
}

// A wait ends with the context, WithWait or Close, at once, and nothing of it stays.
func TestAcquireAny_WaitEnds(t *testing.T) {
	t.Parallel()
	for name, elsewhere := range map[string]bool{"held here": false, "held elsewhere": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := backendtest.Memory()
				l := locker(t, b)
				holder := l
				if elsewhere {
					holder = locker(t, b)
				}
				for _, key := range slots(5) {
					acquire(t, holder, key, core.WithMaxHold(time.Hour))
				}
				keys := l.Keys()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				start := time.Now()
				_, err := l.AcquireAny(ctx, slots(5))
				want(t, "the context ends", err, core.ErrTaken)
				wantEnded(t, "the context ends", err, context.DeadlineExceeded)
				_, err = l.AcquireAny(t.Context(), slots(5), core.WithWait(time.Second))
				want(t, "the wait ends", err, core.ErrTaken)
				if taken, found := errors.AsType[*core.TakenError](err); !found || taken.Cause != nil {
					t.Errorf("the wait ends: %v", err)
				} else if elsewhere && taken.Holder == "" {
					t.Errorf("%v does not name a holder", err)
				}
				if took := time.Since(start); took != 2*time.Second {
					t.Errorf("two waits of 1 s took %v", took)
				}
				synctest.Wait()
				if n := l.Keys(); n != keys {
					t.Errorf("%d keys are remembered, before %d", n, keys)
				}
				_, errs := awaitAny(t.Context(), l, slots(5))
				synctest.Wait()
				ok(t, "Close", l.Close())
				want(t, "Close", <-errs, core.ErrClosed)
				_, err = l.AcquireAny(t.Context(), slots(5))
				want(t, "after Close", err, core.ErrClosed)
				_, err = l.AcquireAny(t.Context(), slots(5), core.WithWait(0))
				want(t, "after Close", err, core.ErrClosed)
			})
		})
	}
}

// However many keys a caller waits for, it asks for them seldom.
func TestAcquireAny_AsksSeldom(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		keys  int
		polls bool
		most  int // requests in a minute, after those at the beginning
	}{
		"2 keys, signaled":    {2, false, 200},
		"8 keys, signaled":    {8, false, 800},
		"1000 keys, signaled": {1000, false, 8000}, // each when its lease would end
		"8 keys, polling":     {8, true, 15000},
		"1000 keys, polling":  {1000, true, 20000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, memory := memorySpy(), backendtest.Memory()
				s.Sealer = memory
				var b core.Backend = s
				if c.polls {
					b = polling{s}
				}
				l, other := locker(t, b), locker(t, memory)
				for _, key := range slots(c.keys) {
					acquire(t, other, key)
				}
				ctx, cancel := context.WithCancel(t.Context())
				_, errs := awaitAny(ctx, l, slots(c.keys))
				time.Sleep(5 * time.Second)
				begun := s.count("acquire")
				time.Sleep(time.Minute)
				asked := s.count("acquire") - begun
				t.Logf("%d requests at first, %d in the next minute", begun, asked)
				if asked > c.most || begun > 2*c.keys+c.most/6 {
					t.Errorf("%d requests at first, %d in the next minute; want at most %d", begun, asked, c.most)
				}
				cancel()
				<-errs
			})
		})
	}
}

// Waits that are given up leave no memory, no goroutine and no subscription.
func TestAcquireAny_AbandonedWaits(t *testing.T) {
	const waits, keys = 20_000, 3
	b := &listening{Backend: backendtest.Memory()}
	l, other := locker(t, b), locker(t, b)
	for _, key := range slots(keys) {
		acquire(t, l, key)
	}
	for _, key := range slots(2 * keys)[keys:] {
		acquire(t, other, key)
	}
	abandon := func(n int) {
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for range n / 4 {
					ctx, cancel := context.WithCancel(context.Background())
					time.AfterFunc(rand.N(50*time.Microsecond), cancel)
					if _, err := l.AcquireAny(ctx, slots(2*keys)); err == nil {
						t.Error("got a lock that another holds")
					}
					cancel()
				}
			})
		}
		all.Wait()
	}
	used := func() uint64 {
		for end := time.Now().Add(10 * time.Second); l.Keys() > keys && time.Now().Before(end); {
			time.Sleep(time.Millisecond) // scouts end
		}
		if n := l.Keys(); n > keys {
			t.Errorf("%d keys are remembered", n)
		}
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	abandon(2000)
	before, goroutines := used(), runtime.NumGoroutine()
	abandon(waits)
	if after := used(); after > before+1<<20 {
		t.Errorf("%d waits left %d KB", waits, (after-before)>>10)
	}
	n := runtime.NumGoroutine()
	for end := time.Now().Add(10 * time.Second); n > goroutines+10 && time.Now().Before(end); n = runtime.NumGoroutine() {
		time.Sleep(time.Millisecond) // the last ones end
	}
	if n > goroutines+10 {
		t.Errorf("%d goroutines, before %d", n, goroutines)
	}
	check.Eventually(t, "all subscriptions end", func() bool { return b.listeners.Load() == 0 })
}

// listening is a Backend that counts its subscriptions.
type listening struct {
	core.Backend
	listeners atomic.Int64
}

func (b *listening) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	changed, stop, err := b.Backend.Watch(ctx, key)
	if err != nil {
		return nil, nil, err
	}
	b.listeners.Add(1)
	return changed, func() { b.listeners.Add(-1); stop() }, nil
}

// If several locks are handed to one waiter, it gets one and the others are freed.
func TestAcquireAny_SeveralHandOvers(t *testing.T) {
	t.Parallel()
	const keys = 4
	l := locker(t, backendtest.Memory())
	for range 1000 {
		held, err := l.AcquireAll(t.Context(), slots(keys))
		ok(t, "AcquireAll", err)
		locks, _ := awaitAny(t.Context(), l, slots(keys))
		for l.Keys() == keys { // it does not wait yet
			runtime.Gosched()
		}
		var releases sync.WaitGroup
		for _, k := range held {
			releases.Go(func() { ok(t, "Release", k.Release(context.Background())) })
		}
		releases.Wait()
		ok(t, "Release", (<-locks).Release(t.Context()))
		for end := time.Now().Add(10 * time.Second); l.Keys() > 0; runtime.Gosched() {
			if time.Now().After(end) {
				t.Fatalf("%d keys are remembered", l.Keys())
			}
		}
	}
}

// The error names the key that the holder has.
func TestAcquireAny_TakenNamesTheHoldersKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := backendtest.Memory()
		other := locker(t, b)
		for _, key := range slots(3) {
			acquire(t, other, key, core.WithTag(key))
		}
		_, err := locker(t, b).AcquireAny(t.Context(), slots(3), core.WithWait(time.Second))
		taken, found := errors.AsType[*core.TakenError](err)
		if !found || taken.Tag != taken.Key {
			t.Errorf("%+v", taken)
		}
	})
}
