package core_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

func TestReentrance_ByContext(t *testing.T) {
	t.Parallel()
	s := memorySpy()
	l := locker(t, s)
	outer := acquire(t, l, "k")
	ctx := core.WithLock(t.Context(), outer)
	inner, err := l.Acquire(ctx, "k")
	ok(t, "Acquire again", err)
	again, err := l.TryAcquire(core.WithLock(ctx, acquire(t, l, "other")), "k") // under a second lock
	ok(t, "TryAcquire again", err)
	if token(t, inner) != token(t, outer) || s.count("acquire") != 2 {
		t.Errorf("token %d and %d, %d acquires", token(t, inner), token(t, outer), s.count("acquire"))
	}
	ok(t, "Release", outer.Release(t.Context())) // in any order
	ok(t, "Release", again.Release(t.Context()))
	if got := status(t, l, "k"); got != core.Held {
		t.Errorf("key is %v while a handle is left", got)
	}
	ok(t, "last Release", inner.Release(t.Context()))
	if got := status(t, l, "k"); got != core.Free {
		t.Errorf("key is %v after the last Release", got)
	}
	fresh, err := l.Acquire(ctx, "k") // the context carries a released lock
	ok(t, "Acquire", err)
	if token(t, fresh) <= token(t, outer) {
		t.Errorf("token %d after %d", token(t, fresh), token(t, outer))
	}
}

func TestReentrance_NotWithoutTheContextOrForAnotherLocker(t *testing.T) {
	t.Parallel()
	b := backendtest.Memory()
	l, other := locker(t, b), locker(t, b)
	k := acquire(t, l, "k")
	ctx := core.WithLock(t.Context(), k)
	for name, try := range map[string]func() (*core.Lock, error){
		"plain context":      func() (*core.Lock, error) { return l.TryAcquire(t.Context(), "k") },
		"the lock's context": func() (*core.Lock, error) { return l.TryAcquire(k.Context(), "k") },
		"WithoutLock":        func() (*core.Lock, error) { return l.TryAcquire(core.WithLock(ctx, nil), "k") },
		"another Locker":     func() (*core.Lock, error) { return other.TryAcquire(ctx, "k") },
		"lock on another key": func() (*core.Lock, error) {
			return l.TryAcquire(core.WithLock(core.WithLock(ctx, nil), acquire(t, l, "x")), "k")
		},
		"another Locker's key": func() (*core.Lock, error) { return other.TryAcquire(core.WithLock(ctx, acquire(t, other, "y")), "k") },
	} {
		if _, err := try(); !errors.Is(err, core.ErrTaken) {
			t.Errorf("%s: got %v, want ErrTaken", name, err)
		}
	}
	if l.Carries(t.Context(), "k") || other.Carries(ctx, "k") || l.Carries(ctx, "x") || l.Carries(core.WithLock(ctx, nil), "k") || l.Carries(ctx, "") {
		t.Error("a lock that is not there is carried")
	}
}

func TestCarries_UntilItIsGivenUp(t *testing.T) {
	t.Parallel()
	l := locker(t, backendtest.Memory())
	end := map[string]func(k *core.Lock) error{
		"Release": func(k *core.Lock) error { return k.Release(t.Context()) },
		"Seal":    func(k *core.Lock) error { return k.Seal(t.Context(), nil, time.Minute) },
		"Lapse":   func(k *core.Lock) error { k.Lapse(); return nil },
	}
	for name, end := range end {
		k := acquire(t, l, name)
		ctx := core.WithLock(t.Context(), k)
		if !l.Carries(ctx, name) {
			t.Errorf("%s: it is not carried before", name)
		}
		ok(t, name, end(k))
		if l.Carries(ctx, name) {
			t.Errorf("%s: it is carried after", name)
		}
	}
}

func TestReentrance_OfALostLockIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, backendtest.Memory())
		k := acquire(t, l, "k", core.WithMaxHold(0))
		time.Sleep(time.Minute)
		_, err := l.Acquire(core.WithLock(t.Context(), k), "k")
		want(t, "Acquire", err, core.ErrLost)
	})
}

func TestDo(t *testing.T) {
	t.Parallel()
	l := locker(t, backendtest.Memory())
	failed := errors.New("failed")
	err := l.Do(t.Context(), "k", func(ctx context.Context) error {
		if status(t, l, "k") != core.Held {
			t.Error("not held inside")
		}
		return l.Do(ctx, "k", func(context.Context) error { return failed })
	})
	want(t, "Do", err, failed)
	func() {
		defer func() {
			if recover() != "boom" {
				t.Error("the panic did not go on")
			}
		}()
		_ = l.Do(t.Context(), "k", func(context.Context) error { panic("boom") })
	}()
	if got := status(t, l, "k"); got != core.Free {
		t.Errorf("key is %v after a panic", got)
	}
}

func TestDo_SaysWhenTheLockWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, backendtest.Memory())
		err := l.Do(t.Context(), "k", func(ctx context.Context) error {
			<-ctx.Done()
			want(t, "cause", context.Cause(ctx), core.ErrLost)
			return nil
		}, core.WithMaxHold(0))
		want(t, "Do", err, core.ErrLost)
		failed := errors.New("failed")
		err = l.Do(t.Context(), "k", func(ctx context.Context) error { <-ctx.Done(); return failed }, core.WithMaxHold(0))
		want(t, "Do", err, core.ErrLost)
		want(t, "Do", err, failed)
	})
}

func TestAcquireAll_AllOrNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backendtest.Memory()
		l, other := locker(t, b), locker(t, b)
		locks, err := l.AcquireAll(t.Context(), []string{"b", "a", "b", "c"})
		ok(t, "AcquireAll", err)
		if len(locks) != 3 || locks[0].Key() != "a" || locks[2].Key() != "c" {
			t.Errorf("%d locks", len(locks))
		}
		ok(t, "Err", locks[0].Context().Err())
		ok(t, "Release", locks.Release(t.Context()))
		k := acquire(t, other, "c")
		start := time.Now()
		_, err = l.AcquireAll(t.Context(), []string{"a", "b", "c"}, core.WithWait(time.Second))
		want(t, "AcquireAll", err, core.ErrTaken)
		if errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		for _, key := range []string{"a", "b"} {
			if got := status(t, l, key); got != core.Free {
				t.Errorf("%s is %v after AcquireAll failed", key, got)
			}
		}
		ok(t, "Release", k.Release(t.Context()))
	})
}
