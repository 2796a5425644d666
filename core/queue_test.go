package core_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

func TestAcquire_IsFirstComeFirstServedInAProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		k := acquire(t, l, "k")
		var mu sync.Mutex
		var order []int
		var last uint64
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				k, err := l.Acquire(t.Context(), "k")
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
				if token(t, k) <= last {
					t.Errorf("token %d after %d", token(t, k), last)
				}
				last = token(t, k)
				if err := k.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		ok(t, "Release", k.Release(t.Context()))
		wg.Wait()
		for i, who := range order {
			if i != who {
				t.Fatalf("order %v", order)
			}
		}
		if a, r := s.count("acquire"), s.count("release"); a != 1 || r != 1 {
			t.Errorf("%d acquires and %d releases for 21 holders, want one lease handed over", a, r)
		}
	})
}

func TestHandOver_GivesALockWithTheWaitersOwnTagAndTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backendtest.Memory()
		l, other := locker(t, b), locker(t, b)
		k := acquire(t, l, "k", core.WithTag("a"))
		got := make(chan *core.Lock)
		go func() {
			k, err := l.Acquire(t.Context(), "k", core.WithTag("b"), core.WithTTL(time.Minute))
			if err != nil {
				t.Error(err)
			}
			got <- k
		}()
		synctest.Wait()
		ok(t, "Release", k.Release(t.Context()))
		next := <-got
		_, err := other.TryAcquire(t.Context(), "k")
		var taken *core.TakenError
		if !errors.As(err, &taken) || taken.Tag != "b" || taken.RetryAfter != time.Minute {
			t.Errorf("got %+v", taken)
		}
		ok(t, "Release", next.Release(t.Context()))
	})
}

func TestHandOver_NeverPassesOnALostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		k := acquire(t, l, "k", core.WithTTL(time.Second), core.WithMaxHold(0), core.WithToken())
		got := make(chan *core.Lock)
		go func() {
			k, err := l.Acquire(t.Context(), "k", core.WithTTL(time.Second), core.WithMaxHold(0), core.WithToken())
			if err != nil {
				t.Error(err)
			}
			got <- k
		}()
		next := <-got // while the first has not released: its lease ran out
		want(t, "Release of the lost lock", k.Release(t.Context()), core.ErrLost)
		ok(t, "Err of the next holder", next.Err())
		if token(t, next) <= token(t, k) || s.count("acquire") != 2 {
			t.Errorf("tokens %d, %d; %d acquires", token(t, k), token(t, next), s.count("acquire"))
		}
		ok(t, "Release", next.Release(t.Context()))
	})
}

func TestWait_EndsWithTheContextOrWithWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backendtest.Memory()
		holder, l := locker(t, b), locker(t, b)
		k := acquire(t, holder, "k")
		for _, who := range []*core.Locker{holder, l} { // behind a local holder, and another process's
			start := time.Now()
			_, err := who.Acquire(t.Context(), "k", core.WithWait(3*time.Second))
			want(t, "WithWait", err, core.ErrTaken)
			if errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 3*time.Second {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			start = time.Now()
			_, err = who.Acquire(ctx, "k", core.WithWait(3*time.Second))
			cancel()
			want(t, "context", err, core.ErrTaken)
			want(t, "context", err, context.DeadlineExceeded)
			if time.Since(start) != time.Second {
				t.Errorf("after %v", time.Since(start))
			}
			var taken *core.TakenError
			if errors.As(err, &taken); taken.Holder == "" || taken.Key != "k" {
				t.Errorf("%+v does not say who holds the key", taken)
			}
		}
		ok(t, "Release", k.Release(t.Context()))
	})
}

func TestWait_ADepartedWaiterIsSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, backendtest.Memory())
		k := acquire(t, l, "k")
		ctx, cancel := context.WithCancel(t.Context())
		gone, got := make(chan error), make(chan *core.Lock)
		go func() { _, err := l.Acquire(ctx, "k"); gone <- err }()
		synctest.Wait()
		go func() { k, err := l.Acquire(t.Context(), "k"); ok(t, "Acquire", err); got <- k }()
		synctest.Wait()
		cancel()
		want(t, "the one who left", <-gone, context.Canceled)
		ok(t, "Release", k.Release(t.Context()))
		ok(t, "Release", (<-got).Release(t.Context()))
	})
}

func TestWait_ASealAnswersAllWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		k := acquire(t, l, "k")
		answers := make(chan error, 50)
		for range 50 {
			go func() { _, err := l.Acquire(t.Context(), "k"); answers <- err }()
		}
		synctest.Wait()
		ok(t, "Seal", k.Seal(t.Context(), []byte("v"), time.Minute))
		for range 50 {
			want(t, "a waiter", <-answers, core.ErrSealed)
		}
		if n := s.count("acquire"); n != 2 {
			t.Errorf("%d acquires, want one for all waiters", n)
		}
	})
}

func TestWait_AnUnavailableBackendAnswersAllWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		k := acquire(t, l, "k")
		answers := make(chan error, 50)
		for range 50 {
			go func() { _, err := l.Acquire(t.Context(), "k"); answers <- err }()
		}
		synctest.Wait()
		s.on("acquire", func(context.Context) error { time.Sleep(time.Second); return unavailable("k") })
		s.on("extend", func(context.Context) error { return core.ErrLost }) // so that the waiters ask the backend
		<-k.Context().Done()
		start := time.Now()
		for range 50 {
			want(t, "a waiter", <-answers, core.ErrUnavailable)
		}
		if took := time.Since(start); took < 10*time.Second || took > 13*time.Second {
			t.Errorf("the last waiter was answered after %v, want about the 10 s of WithOutageWait", took)
		}
		want(t, "Release", k.Release(t.Context()), core.ErrLost)
	})
}

// unsignaled is a Backend whose waiters wait for signals that do not come.
type unsignaled struct{ core.Sealer }

func (unsignaled) Watch(context.Context, string) (<-chan struct{}, func(), error) {
	return make(chan struct{}), func() {}, nil
}

// redsync signals no release, so a waiter must look for it.
func TestWait_AnotherLibrarysRelease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := backendtest.Memory()
		l := locker(t, unsignaled{memory}, core.WithPrefix(""))
		for range 5 {
			g, err := memory.Acquire(t.Context(), core.Request{Key: "stock:42", Owner: "bm90IG91cnM=", TTL: time.Minute})
			ok(t, "another library's lock", err)
			released := make(chan error, 1)
			time.AfterFunc(2*time.Second, func() {
				_, err := memory.Release(t.Context(), g)
				released <- err
			})
			began := time.Now()
			k := acquire(t, l, "stock:42")
			ok(t, "another library's release", <-released)
			if d := time.Since(began) - 2*time.Second; d < 0 || d > 200*time.Millisecond {
				t.Errorf("the waiter looked %v after the release, want at most 200ms", d)
			}
			ok(t, "Release", k.Release(t.Context()))
		}
	})
}

func TestTryAcquire_DoesNotPushIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backendtest.Memory()
		l, other := locker(t, polling{b}), locker(t, polling{b})
		k := acquire(t, other, "k", core.WithTag("theirs"))
		got := make(chan *core.Lock)
		go func() { k, err := l.Acquire(t.Context(), "k"); ok(t, "Acquire", err); got <- k }()
		synctest.Wait()
		_, err := l.TryAcquire(t.Context(), "k")
		var taken *core.TakenError
		if !errors.As(err, &taken) || taken.Tag != "theirs" {
			t.Errorf("behind a local waiter: %v", err)
		}
		ok(t, "Release", k.Release(t.Context()))
		_, err = l.TryAcquire(t.Context(), "k") // free, but somebody stands in line
		want(t, "TryAcquire", err, core.ErrTaken)
		ok(t, "Release", (<-got).Release(t.Context()))
	})
}

// afterAcquire does something between the grant and its return.
type afterAcquire struct {
	core.Sealer
	do func()
}

func (b afterAcquire) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	g, err := b.Sealer.Acquire(ctx, r)
	b.do()
	return g, err
}

func TestAcquire_ADoneContextNeverGetsALock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // so that the 100 ms of a release are not over on a busy machine
		ctx, cancel := context.WithCancel(t.Context())
		l := locker(t, afterAcquire{backendtest.Memory(), cancel})
		for _, acquire := range []func(context.Context, string, ...core.AcquireOption) (*core.Lock, error){l.Acquire, l.TryAcquire} {
			if k, err := acquire(ctx, "k"); k != nil || !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, %v", k, err)
			}
			if got := status(t, l, "k"); got != core.Free {
				t.Errorf("key is %v", got)
			}
		}
	})
}

func TestManyGoroutines_OneAtATime(t *testing.T) {
	t.Parallel()
	b := redisbackend.New(testutil.Redis(t).Client())
	b.NodeTimeout = time.Minute // a busy machine may answer late
	lockers := []*core.Locker{locker(t, b), locker(t, b), locker(t, b)}
	var wg sync.WaitGroup
	n, rounds := 0, 40
	var last uint64
	for i := range 24 {
		wg.Go(func() {
			for range rounds {
				k, err := lockers[i%3].Acquire(t.Context(), "hot")
				if err != nil {
					t.Error(err)
					return
				}
				n++ // the race detector and the sum tell when two are inside
				if token(t, k) <= last {
					t.Errorf("token %d after %d", token(t, k), last)
				}
				last = token(t, k)
				if err := k.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n != 24*rounds {
		t.Errorf("counted %d, want %d", n, 24*rounds)
	}
}

// An answer that was on its way when a waiter came may be out of date: the key may have been
// unsealed in between.
func TestAcquire_AnAnswerFromBeforeAWaiterCameIsNotItsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		s.on("acquire", func(context.Context) error {
			time.Sleep(time.Second)
			return &core.SealedError{Key: "k"}
		})
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := l.Acquire(t.Context(), "k")
			want(t, "Acquire of who asked", err, core.ErrSealed)
		})
		time.Sleep(time.Second / 2)
		s.on("acquire", func(context.Context) error { return nil })
		ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
		wg.Wait()
	})
}
