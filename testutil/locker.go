package testutil

import (
	"testing"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
)

// Locker returns a Locker on a private Redis (see [Redis]), closed when the test ends.
//
//	locker := testutil.Locker(t, core.WithTTL(time.Second))
//	lock, err := locker.Acquire(t.Context(), "stock:42")
//	if err != nil {
//		t.Fatal(err)
//	}
//	if err := lock.Release(t.Context()); err != nil {
//		t.Error(err)
//	}
func Locker(t testing.TB, opts ...core.Option) *core.Locker {
	t.Helper()
	l, err := core.New(redisbackend.New(Redis(t).Client()), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}
