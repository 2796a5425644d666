package core_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A lock that is held for long does not remember the handles that came and went meanwhile.
func TestReentrance_ReleasedHandlesAreForgotten(t *testing.T) { // not parallel: it measures memory
	l := locker(t, backendtest.Memory())
	ok(t, "Do", l.Do(t.Context(), "k", func(ctx context.Context) error {
		before := inUse()
		for range 100_000 {
			ok(t, "Do again", l.Do(ctx, "k", func(context.Context) error { return nil }))
		}
		if grew := inUse() - before; grew > 4<<20 {
			t.Errorf("100,000 handles that were released take %d bytes", grew)
		}
		return nil
	}))
}

// slowExtend answers after the lease has ended.
type slowExtend struct{ core.Sealer }

func (b slowExtend) Extend(ctx context.Context, g core.Grant, ttl time.Duration) (core.Grant, error) {
	g, err := b.Sealer.Extend(ctx, g, ttl)
	time.Sleep(2 * time.Second)
	return g, err
}

func TestExtend_OfALockThatWasLostMeanwhileIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, slowExtend{backendtest.Memory()})
		k := acquire(t, l, "k", core.WithMaxHold(0), core.WithTTL(time.Second))
		ctx := k.Context()
		err := k.Extend(t.Context(), time.Minute)
		want(t, "cause", context.Cause(ctx), core.ErrLost)
		want(t, "Extend", err, core.ErrLost)
		want(t, "Release", k.Release(t.Context()), core.ErrLost)
	})
}

// A taken key is not unavailable: a caller that runs unprotected when Redis is down would run beside the holder.
func TestAcquireAll_TakenDoesNotMatchUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		k := acquire(t, locker(t, s.Sealer), "b")
		s.on("release", func(context.Context) error { return unavailable("a") })
		_, err := l.AcquireAll(t.Context(), []string{"a", "b"}, core.WithWait(time.Second))
		want(t, "AcquireAll", err, core.ErrTaken)
		if errors.Is(err, core.ErrUnavailable) {
			t.Errorf("%v matches both ErrTaken and ErrUnavailable", err)
		}
		ok(t, "Release", k.Release(t.Context()))
	})
}

// slowValue is a context that takes its time.
type slowValue struct{ context.Context }

func (c slowValue) Value(key any) any {
	time.Sleep(time.Second)
	return c.Context.Value(key)
}

func TestAcquireAll_AWaitThatIsOverBetweenTwoKeysIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, backendtest.Memory())
		_, err := l.AcquireAll(slowValue{t.Context()}, []string{"a", "b"}, core.WithWait(time.Millisecond))
		want(t, "AcquireAll", err, core.ErrTaken)
	})
}

func TestRelease_OfAnInnerHandleTellsOfTheLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, backendtest.Memory())
		k := acquire(t, l, "k", core.WithMaxHold(0), core.WithTTL(time.Second))
		inner, err := l.Acquire(core.WithLock(t.Context(), k), "k")
		ok(t, "Acquire", err)
		time.Sleep(2 * time.Second)
		want(t, "Release of the inner handle", inner.Release(t.Context()), core.ErrLost)
		want(t, "Release", k.Release(t.Context()), core.ErrLost)
	})
}
