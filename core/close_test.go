package core_test

import (
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// A process that shuts down can still leave the answers of what it has done.
func TestClose_HoldersCanStillSeal(t *testing.T) {
	t.Parallel()
	b := backendtest.Memory()
	l, err := core.New(b)
	ok(t, "New", err)
	k, released := acquire(t, l, "k"), acquire(t, l, "released")
	ok(t, "Close", l.Close())
	ok(t, "Seal after Close", k.Seal(t.Context(), []byte("v"), time.Minute))
	ok(t, "Release after Seal", k.Release(t.Context()))
	_, err = locker(t, b).TryAcquire(t.Context(), "k")
	want(t, "TryAcquire", err, core.ErrSealed)
	ok(t, "Release after Close", released.Release(t.Context()))
	if released.Seal(t.Context(), []byte("v"), time.Minute) == nil {
		t.Error("a released lock was sealed")
	}
}

// Whichever of several handles comes first, it can be released.
func TestClose_EveryHandleCanBeReleased(t *testing.T) {
	t.Parallel()
	b := backendtest.Memory()
	l, err := core.New(b)
	ok(t, "New", err)
	k := acquire(t, l, "k")
	again := acquireWith(t, l, core.WithLock(t.Context(), k), "k")
	ok(t, "Close", l.Close())
	ok(t, "Release of one of two handles", again.Release(t.Context()))
	want(t, "the second Release", again.Release(t.Context()), core.ErrReleased)
	ok(t, "Release of the last", k.Release(t.Context()))
	if got := status(t, locker(t, b), "k"); got != core.Free {
		t.Errorf("the key is %v", got)
	}
}
