package core_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
)

func TestLapse_KeepsTheKeyUntilTheLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		k := acquire(t, l, "k", core.WithTTL(9*time.Second))
		ctx := k.Context()
		again := acquireWith(t, l, core.WithLock(t.Context(), k), "k")
		time.Sleep(4 * time.Second) // renewed once, 3 s after the start
		k.Lapse()
		k.Lapse()
		want(t, "Release", k.Release(t.Context()), core.ErrReleased)
		ok(t, "Release of another handle", again.Release(t.Context()))
		want(t, "TryAcquire", tryError(l, "k"), core.ErrTaken)
		_, err := l.TryAcquire(core.WithLock(t.Context(), k), "k")
		want(t, "TryAcquire with a context that carries it", err, core.ErrTaken)
		time.Sleep(8*time.Second - time.Millisecond)
		if s.count("extend") != 1 || s.count("release") != 0 || status(t, l, "k") != core.Held {
			t.Fatalf("before the lease ends: %v, key %v", s.log(), status(t, l, "k"))
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		want(t, "cause", context.Cause(ctx), core.ErrLost)
		ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
	})
}

func TestLapse_DoesNothingToALockThatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		k := acquire(t, l, "k")
		ok(t, "Release", k.Release(t.Context()))
		next := acquire(t, l, "k")
		k.Lapse()
		time.Sleep(time.Minute)
		ok(t, "Err of the next holder", next.Err())
		ok(t, "Release", next.Release(t.Context()))
	})
}

func acquireWith(t testing.TB, l *core.Locker, ctx context.Context, key string) *core.Lock {
	t.Helper()
	k, err := l.Acquire(ctx, key)
	ok(t, "Acquire", err)
	return k
}

func tryError(l *core.Locker, key string) error {
	_, err := l.TryAcquire(context.Background(), key)
	return err
}
