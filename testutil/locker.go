package testutil

import (
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
)

// Locker returns a Locker on a private Redis (see [Redis]), closed when the test ends. It waits up
// to 10 s for an answer, so that a busy machine does not make locks unavailable.
//
//	locker := testutil.Locker(t, core.WithTTL(time.Minute))
//	lock, err := locker.Acquire(t.Context(), "stock:42")
//	if err != nil {
//		t.Fatal(err)
//	}
//	if err := lock.Release(t.Context()); err != nil {
//		t.Error(err)
//	}
func Locker(t testing.TB, opts ...core.Option) *core.Locker {
	t.Helper()
	b := redisbackend.New(Redis(t).Client())
	b.NodeTimeout = 10 * time.Second
	l, err := core.New(b, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}
