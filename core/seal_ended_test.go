package core_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// The client hung up while the work ran. Its seal gets the time that a Release gets, or the deferred Release would free
// the key of what was done.
func TestSeal_AfterTheCallersContext(t *testing.T) {
	t.Parallel()
	l := locker(t, testutil.Memory())
	ctx, hangUp := context.WithCancel(t.Context())
	k := acquire(t, l, "pay:7")
	hangUp()
	ok(t, "Seal", k.Seal(ctx, []byte("charged"), time.Hour))
	ok(t, "Release", k.Release(ctx))
	_, err := l.TryAcquire(t.Context(), "pay:7")
	want(t, "the retry", err, core.ErrSealed)
}

// If the caller's context ends while the backend fails by itself, the error is the backend's.
func TestSeal_ItsContextDidNotEndTheCall(t *testing.T) {
	t.Parallel()
	s := memorySpy()
	k := acquire(t, locker(t, s), "k")
	ctx, cancel := context.WithCancel(t.Context())
	s.on("seal", func(context.Context) error { cancel(); return unavailable("k") })
	err := k.Seal(ctx, []byte("v"), time.Minute)
	if want(t, "Seal", err, core.ErrUnavailable); errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
