package core_test

import (
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

func TestRevoke(t *testing.T) {
	t.Parallel()
	for name, backend := range map[string]core.Opener{
		"memory": testutil.Memory(), "one Redis": redisbackend.New(testutil.Redis(t).Client()),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := locker(t, backend, core.WithTTL(3*time.Second))
			k := acquire(t, l, "key", core.WithTag("a tag"))
			state, err := l.Inspect(t.Context(), "key")
			ok(t, "Inspect", err)

			want(t, "another owner", l.Revoke(t.Context(), "key", state.Owner+"x"), core.ErrLost)
			for _, owner := range []string{"", "\x001:x"} {
				if l.Revoke(t.Context(), "key", owner) == nil {
					t.Errorf("Revoke took %q for an owner", owner)
				}
			}
			ok(t, "still held", k.Err())
			ok(t, "Revoke", l.Revoke(t.Context(), "key", state.Owner))
			select {
			case <-k.Context().Done():
				want(t, "the holder", k.Err(), core.ErrLost)
			case <-time.After(3 * time.Second):
				t.Error("the holder did not learn that its lock is lost")
			}
			want(t, "a free key", l.Revoke(t.Context(), "key", state.Owner), core.ErrLost)

			sealed := acquire(t, l, "sealed")
			ok(t, "Seal", sealed.Seal(t.Context(), []byte("value"), time.Minute))
			want(t, "a sealed key", l.Revoke(t.Context(), "sealed", sealed.Owner()), core.ErrLost)
			if state, err := l.Inspect(t.Context(), "sealed"); err != nil || state.Status != core.Sealed {
				t.Errorf("%+v, %v: the seal is gone", state, err)
			}
		})
	}
}

// Revoke leaves no orphan, and removes one that is there already.
func TestRevoke_Orphan(t *testing.T) {
	t.Parallel()
	quorum := redisbackend.New(testutil.Cluster(t, 3).Clients()...)
	quorum.NewInstallation = true
	for name, backend := range map[string]core.Opener{
		"memory": testutil.Memory(), "one Redis": redisbackend.New(testutil.Redis(t).Client()), "quorum": quorum,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for before, status := range map[string]core.Status{"held": core.Held, "orphaned": core.Orphaned} {
				l := locker(t, backend, core.WithTTL(3*time.Second))
				k := acquire(t, l, before, core.WithOrphan(time.Hour))
				if status == core.Orphaned {
					k.Lapse()
				}
				check.Eventually(t, "the key is "+before, func() bool {
					state, err := l.Inspect(t.Context(), before)
					return err == nil && state.Status == status
				})
				ok(t, "Revoke", l.Revoke(t.Context(), before, k.Owner()))
				state, err := l.Inspect(t.Context(), before)
				if ok(t, "Inspect", err); state.Status != core.Free {
					t.Errorf("%s: the key is %v after Revoke", before, state.Status)
				}
				ok(t, "Release", acquire(t, l, before).Release(t.Context()))
			}
		})
	}
}
