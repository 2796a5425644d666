package core_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
)

// full reports whether err refused a call because the queue is full.
func full(err error) bool {
	taken, found := errors.AsType[*core.TakenError](err)
	return found && taken.QueueFull && errors.Is(err, core.ErrTaken)
}

// As many callers wait as the limit says, whoever holds the key, and whichever verb they call. One
// more is refused at once. A caller that leaves makes room.
func TestWithMaxWaiters_CountsExactly(t *testing.T) {
	t.Parallel()
	const most = 5
	one := func(l *core.Locker, ctx context.Context) error { _, err := l.Acquire(ctx, "slot:0"); return err }
	for name, call := range map[string]func(*core.Locker, context.Context) error{
		"Acquire":    one,
		"AcquireAll": func(l *core.Locker, ctx context.Context) error { _, err := l.AcquireAll(ctx, slots(2)); return err },
		"AcquireAny": func(l *core.Locker, ctx context.Context) error { _, err := l.AcquireAny(ctx, slots(2)); return err },
		"Do":         func(l *core.Locker, ctx context.Context) error { return l.Do(ctx, "slot:0", nothing) },
		"DoOnce": func(l *core.Locker, ctx context.Context) error {
			_, err := l.DoOnce(ctx, "slot:0", time.Hour, nothing)
			return err
		},
	} {
		for _, elsewhere := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				b := backendtest.Memory()
				l := locker(t, b, core.WithMaxWaiters(most))
				holder := l
				if elsewhere {
					holder = locker(t, b)
				}
				held, err := holder.AcquireAll(t.Context(), slots(2))
				ok(t, "AcquireAll", err)
				ctx, cancel := context.WithCancel(t.Context())
				errs := make(chan error, 4*most)
				for range 4 * most {
					go func() { errs <- call(l, ctx) }()
				}
				synctest.Wait()
				if len(errs) != 3*most {
					t.Errorf("%s, elsewhere %v: %d of %d callers were refused", name, elsewhere, len(errs), 4*most)
					cancel()
					_ = l.Close()
					return
				}
				for range 3 * most {
					if err := <-errs; !full(err) || !strings.Contains(err.Error(), "WithMaxWaiters") || !strings.Contains(err.Error(), `"slot:0"`) {
						t.Fatalf("%s, elsewhere %v: %v", name, elsewhere, err)
					}
				}
				cancel()
				for range most {
					if err := <-errs; full(err) {
						t.Fatalf("%s, elsewhere %v: a caller that waits got %v", name, elsewhere, err)
					}
				}
				synctest.Wait()
				for range most + 1 {
					go func() { errs <- call(l, t.Context()) }()
				}
				synctest.Wait()
				if len(errs) != 1 || !full(<-errs) {
					t.Fatalf("%s, elsewhere %v: no room after callers left", name, elsewhere)
				}
				ok(t, "Close", l.Close())
				for range most {
					want(t, name, <-errs, core.ErrClosed)
				}
				if elsewhere {
					ok(t, "Release", held.Release(t.Context()))
				}
			})
		}
	}
}

// The limit never refuses calls that do not wait.
func TestWithMaxWaiters_NotWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, backendtest.Memory(), core.WithMaxWaiters(1))
		k := acquire(t, l, "k")
		got := acquiring(t, l)
		_, err := l.TryAcquire(t.Context(), "k")
		if want(t, "TryAcquire", err, core.ErrTaken); full(err) {
			t.Error(err)
		}
		again, err := l.Acquire(core.WithLock(t.Context(), k), "k")
		ok(t, "Acquire again", err)
		if _, err = l.Acquire(t.Context(), "k"); !full(err) {
			t.Errorf("the second waiter: %v", err)
		}
		ok(t, "Release", again.Release(t.Context()))
		ok(t, "Release", k.Release(t.Context()))
		ok(t, "Release", (<-got).Release(t.Context()))
		for range 3 { // one after the other
			ok(t, "Do", l.Do(t.Context(), "k", nothing))
		}
	})
	for _, n := range []int{0, -1} {
		if _, err := core.New(backendtest.Memory(), core.WithMaxWaiters(n)); err == nil || !strings.Contains(err.Error(), "WithMaxWaiters") {
			t.Errorf("WithMaxWaiters(%d): %v", n, err)
		}
	}
}

// However callers come and go, the limit is never passed, nobody is refused below it, and a place
// that was left is free again.
func TestWithMaxWaiters_Race(t *testing.T) {
	t.Parallel()
	const most = 3
	b := backendtest.Memory()
	l, other := locker(t, b, core.WithMaxWaiters(most)), locker(t, b)
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			for range 300 {
				ctx, cancel := context.WithTimeout(context.Background(), rand.N(300*time.Microsecond))
				l := []*core.Locker{l, l, l, other}[i%4]
				var k *core.Lock
				var err error
				if i%3 == 0 {
					k, err = l.AcquireAny(ctx, slots(2))
				} else {
					k, err = l.Acquire(ctx, slots(2)[i%2])
				}
				if err == nil {
					_ = k.Release(context.Background())
				} else if ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) && !full(err) {
					t.Errorf("%v", err)
				}
				cancel()
			}
		})
	}
	all.Wait()
	for end := time.Now().Add(check.Patience); l.Keys() > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // scouts end, and the time to stand back
	}
	held := acquire(t, other, "slot:0")
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 2*most)
	for range cap(errs) {
		go func() { _, err := l.Acquire(ctx, "slot:0"); errs <- err }()
	}
	for range most {
		select {
		case err := <-errs:
			if !full(err) {
				t.Errorf("%v", err)
			}
		case <-time.After(check.Patience):
			t.Fatal("more callers wait than the limit says")
		}
	}
	cancel()
	for range most {
		wantEnded(t, "a waiter", <-errs, context.Canceled)
	}
	ok(t, "Release", held.Release(t.Context()))
}

// Callers of AcquireAny have a separate line: waiters of the single keys do not keep them out.
func TestWithMaxWaiters_AnyHasItsOwnLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, backendtest.Memory(), core.WithMaxWaiters(1))
		var all sync.WaitGroup
		held, err := l.AcquireAll(t.Context(), slots(2))
		ok(t, "AcquireAll", err)
		for _, key := range slots(2) {
			all.Go(func() { ok(t, "Do", l.Do(t.Context(), key, nothing)) })
		}
		synctest.Wait()
		locks, _ := awaitAny(t.Context(), l, slots(2))
		synctest.Wait()
		if _, err := l.AcquireAny(t.Context(), slots(2), core.WithWait(time.Minute)); !full(err) {
			t.Errorf("the second caller of AcquireAny: %v", err)
		}
		ok(t, "Release", held.Release(t.Context()))
		ok(t, "Release", (<-locks).Release(t.Context()))
		all.Wait()
	})
}

// A caller that left AcquireAny makes room at once.
func TestWithMaxWaiters_LeftAny(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		other, l := locker(t, s.Sealer), locker(t, s, core.WithMaxWaiters(1))
		held, err := other.AcquireAll(t.Context(), slots(2))
		ok(t, "AcquireAll", err)
		ctx, cancel := context.WithCancel(t.Context())
		_, errs := awaitAny(ctx, l, slots(2))
		time.Sleep(time.Millisecond)
		s.on("acquire", func(context.Context) error { time.Sleep(time.Second); return unavailable("k") })
		time.Sleep(5 * time.Second)
		cancel()
		wantEnded(t, "AcquireAny", <-errs, context.Canceled)
		if _, err := l.Acquire(t.Context(), "slot:0", core.WithWait(10*time.Millisecond)); full(err) {
			t.Errorf("nobody waits, but %v", err)
		}
		if _, err := l.Acquire(t.Context(), "slot:1", core.WithWait(10*time.Millisecond)); full(err) {
			t.Errorf("nobody waits, but %v", err)
		}
		time.Sleep(5 * time.Second)
		ok(t, "Release", held.Release(t.Context()))
	})
}

// A call that does not wait takes no waiter's place.
func TestWithMaxWaiters_BesideATry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s, core.WithMaxWaiters(1))
		s.on("acquire", func(context.Context) error { time.Sleep(time.Second); return nil })
		go func() {
			k, err := l.TryAcquire(t.Context(), "k")
			ok(t, "TryAcquire", err)
			ok(t, "Release", k.Release(t.Context()))
		}()
		synctest.Wait()
		go func() { ok(t, "Do", l.Do(t.Context(), "k", nothing)) }()
		synctest.Wait()
		if _, err := l.Acquire(t.Context(), "k"); !full(err) {
			t.Errorf("the second waiter: %v", err)
		}
		time.Sleep(time.Minute)
	})
}
