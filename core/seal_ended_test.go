package core_test

import (
	"context"
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
