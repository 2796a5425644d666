package core_test

import (
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// A process that shuts down can still leave the answers of what it has done.
func TestClose_HoldersCanStillSeal(t *testing.T) {
	t.Parallel()
	b := testutil.Memory()
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
