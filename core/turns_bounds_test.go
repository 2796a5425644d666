package core_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// overTurn returns two waiters of a process whose turn is over when k is released, with so many
// waiters elsewhere.
func overTurn(t *testing.T, l *core.Locker, s *spy, others int, opts ...core.AcquireOption) (k *core.Lock, first <-chan error) {
	k = acquire(t, l, "k")
	got := make(chan error, 1)
	go func() {
		lock, err := l.Acquire(context.Background(), "k", opts...)
		if lock != nil {
			_ = lock.Release(context.Background())
		}
		got <- err
	}()
	synctest.Wait()
	time.Sleep(200 * time.Millisecond)
	s.others = others
	return k, got
}

// A short wait has time for one question, even if other processes take their turns meanwhile.
func TestTurns_ShortWaitAsksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l, other := locker(t, s), locker(t, s.Sealer)
		k, got := overTurn(t, l, s, 3, core.WithWait(260*time.Millisecond))
		ok(t, "Release", k.Release(t.Context())) // 60 ms are left
		theirs := acquire(t, other, "k")
		time.Sleep(15 * time.Millisecond)
		ok(t, "Release", theirs.Release(t.Context())) // free for 45 ms, until the wait ends
		if err := <-got; err != nil {
			t.Errorf("the key was free for 45 ms before the wait ended: %v", err)
		}
	})
}

// Waiters that are gone, and one process that is there, do not keep the next caller from the key for
// long.
func TestTurns_ManyWaitersThatAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l, other := locker(t, s), locker(t, s.Sealer)
		k, got := overTurn(t, l, s, 100) // 100 callers elsewhere gave up in these 200 ms
		ok(t, "Release", k.Release(t.Context()))
		start, turns := time.Now(), 0
		for len(got) == 0 && turns < 200 {
			theirs, err := other.TryAcquire(t.Context(), "k")
			if err != nil {
				time.Sleep(time.Millisecond)
				continue
			}
			turns++
			time.Sleep(40 * time.Millisecond)
			ok(t, "Release", theirs.Release(t.Context()))
			time.Sleep(5 * time.Millisecond) // the key is free
		}
		ok(t, "Acquire", <-got)
		if turns > 9 {
			t.Errorf("one process had %d turns in a row, for %v, while a caller stood back for waiters that are gone", turns, time.Since(start))
		}
	})
}

// An operator unseals the record: the job begins anew, with a slot that begins within a minute.
func TestEvery_UnsealBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, backendtest.Memory())
		ctx, cancel := context.WithCancel(t.Context())
		var runs atomic.Int64
		over := make(chan error, 1)
		go func() {
			over <- core.Every(ctx, l, "report", 24*time.Hour, func(context.Context) error { runs.Add(1); return nil })
		}()
		time.Sleep(time.Minute)
		ok(t, "Unseal", l.Unseal(ctx, core.Join("every", "report", "last")))
		time.Sleep(time.Hour)
		if n := runs.Load(); n != 2 {
			t.Errorf("%d runs an hour after Unseal, want 2", n)
		}
		cancel()
		<-over
	})
}

// observing is a backend and an Opener in one type. Open returns a pointer.
type observing struct {
	core.Backend
	of core.Opener
}

func (o observing) Open(env core.Environment) (core.Backend, error) {
	b, err := o.of.Open(env)
	return &observing{Backend: b}, err
}

// New uses what Open returned, if the Opener itself is no backend that works.
func TestNew_OpenerReturnsItsPointer(t *testing.T) {
	defer func() {
		if what := recover(); what != nil {
			t.Errorf("Acquire panics: %v", what)
		}
	}()
	l, err := core.New(observing{of: backendtest.Memory()})
	if err != nil {
		return // refused is right, too
	}
	k, err := l.Acquire(t.Context(), "k")
	ok(t, "Acquire", err)
	ok(t, "Release", k.Release(t.Context()))
}

// A slot that ran, and whose record is refused, does not run again and again.
func TestEvery_RecordRefused(t *testing.T) {
	for _, verb := range []string{"seal"} {
		synctest.Test(t, func(t *testing.T) {
			s := memorySpy()
			l := locker(t, s)
			ctx, cancel := context.WithCancel(t.Context())
			var runs atomic.Int64
			over := make(chan error, 1)
			go func() {
				over <- core.Every(ctx, l, "report", time.Hour, func(context.Context) error { runs.Add(1); return nil })
			}()
			time.Sleep(30 * time.Minute)
			s.on(verb, func(context.Context) error {
				return &core.UnavailableError{Key: "k", Permanent: true, Nodes: []error{errors.New("NOPERM")}}
			})
			time.Sleep(35 * time.Minute)
			if n := runs.Load(); n > 3 {
				t.Errorf("%s is refused for 5 minutes after the second slot: the function ran %d times", verb, n-1)
			}
			cancel()
			<-over
		})
	}
}

// slowWatch is a backend whose subscriptions take a while.
type slowWatch struct{ *backendtest.MemoryBackend }

func (b slowWatch) Open(core.Environment) (core.Backend, error) { return b, nil }

func (b slowWatch) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	select {
	case <-time.After(250 * time.Millisecond):
		return b.MemoryBackend.Watch(ctx, key)
	case <-ctx.Done():
		return nil, nil, unavailable(key)
	}
}

// A slow subscription does not make a stand-back longer, nor does it end the wait for signals.
func TestTurns_SlowSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := slowWatch{backendtest.Memory()}
		l := locker(t, b)
		k := acquire(t, l, "k")
		_, err := b.Acquire(t.Context(), core.Request{Key: "onelane:{k}", Owner: "gone/1", TTL: time.Minute, Waiter: "gone", Needs: 3 * time.Millisecond})
		want(t, "Acquire of a taken key", err, core.ErrTaken)
		ok(t, "Release", k.Release(t.Context()))
		start := time.Now()
		k = acquire(t, l, "k")
		if took := time.Since(start); took > 3*time.Millisecond {
			t.Errorf("a free key was left alone for %v, and one stand-back is 3 ms", took)
		}
		got := acquiring(t, locker(t, b))
		time.Sleep(time.Second)
		start = time.Now()
		ok(t, "Release", k.Release(t.Context()))
		ok(t, "Release", (<-got).Release(t.Context()))
		if took := time.Since(start); took > 3*time.Millisecond {
			t.Errorf("a waiter that listens got the key after %v", took)
		}
	})
}

// AcquireAny of free keys with a short wait gets one, even after waiters elsewhere left.
func TestTurns_ShortWaitForAnyKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		s.others = 1
		for _, key := range slots(2) {
			ok(t, "Release", acquire(t, l, key).Release(t.Context()))
		}
		k, err := l.AcquireAny(t.Context(), slots(2), core.WithWait(20*time.Millisecond))
		ok(t, "AcquireAny of free keys", err)
		ok(t, "Release", k.Release(t.Context()))
	})
}
