package core_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
)

// losses remembers what OnLoss was called with.
type losses struct {
	mu  sync.Mutex
	all []error
}

func (l *losses) add(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, err)
}

func (l *losses) want(t *testing.T, errs ...error) {
	t.Helper()
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) != len(errs) {
		t.Fatalf("%v, want %v", l.all, errs)
	}
	for i, err := range errs {
		if !errors.Is(l.all[i], err) {
			t.Errorf("%v, want %v", l.all[i], err)
		}
	}
}

func TestLock_OnLoss_calledOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, memorySpy())
		ctx, hangUp := context.WithCancel(t.Context())
		k, err := l.Acquire(ctx, "k", core.WithMaxHold(0), core.WithTTL(time.Second))
		ok(t, "Acquire", err)
		var before, after losses
		k.OnLoss((&losses{}).add)
		k.OnLoss(before.add) // the later one counts
		held := k.Context()
		hangUp()
		before.want(t)
		time.Sleep(time.Second)
		before.want(t, core.ErrLost)
		want(t, "cause of a context that ended before", context.Cause(held), context.Canceled)
		k.OnLoss(after.add) // it is lost already
		after.want(t, core.ErrLost)
		want(t, "Release", k.Release(t.Context()), core.ErrLost)
		ok(t, "Close", l.Close())
		before.want(t, core.ErrLost)
	})
}

func TestLock_OnLoss_closedLocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, memorySpy())
		var lost losses
		acquire(t, l, "k").OnLoss(lost.add)
		ok(t, "Close", l.Close())
		lost.want(t, core.ErrClosed)
	})
}

func TestLock_OnLoss_notAfterRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, memorySpy())
		var lost losses
		released, sealed, lapsed := acquire(t, l, "a"), acquire(t, l, "b"), acquire(t, l, "c", core.WithTTL(time.Second))
		again := acquireWith(t, l, core.WithLock(t.Context(), sealed), "b")
		again.OnLoss(lost.add)
		ok(t, "Release of one of two handles", again.Release(t.Context()))
		for _, k := range []*core.Lock{released, sealed} {
			k.OnLoss(lost.add)
		}
		ok(t, "Release", released.Release(t.Context()))
		ok(t, "Seal", sealed.Seal(t.Context(), []byte("v"), time.Hour))
		released.OnLoss(lost.add)
		sealed.OnLoss(lost.add)
		lost.want(t)
		lapsed.OnLoss(lost.add)
		lapsed.Lapse()
		lost.want(t)
		time.Sleep(time.Second) // its lease ends
		lost.want(t, core.ErrLost)
		ok(t, "Close", l.Close())
		lost.want(t, core.ErrLost)
	})
}

func TestLock_OnLoss_notAfterReleaseOfOneHandle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, memorySpy())
		var lost losses
		again := acquireWith(t, l, core.WithLock(t.Context(), acquire(t, l, "k")), "k")
		again.OnLoss(lost.add)
		ok(t, "Release", again.Release(t.Context()))
		ok(t, "Close", l.Close())
		want(t, "cause", context.Cause(again.Context()), core.ErrClosed) // asked for late
		lost.want(t)
	})
}
