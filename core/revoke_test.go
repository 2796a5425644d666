package core_test

import (
	"errors"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
	"github.com/redis/go-redis/v9"
)

func TestRevoke(t *testing.T) {
	t.Parallel()
	for name, backend := range map[string]core.Opener{
		"memory": backendtest.Memory(), "one Redis": patient(testutil.Redis(t).Client()),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := locker(t, backend, core.WithTTL(time.Minute))
			// The holder learns of the loss by a renewal, after a third of its TTL. On a busy machine a short
			// lease may end before.
			ttl := 3 * time.Second
			k, owner := revoked(t, l, ttl)
			for k == nil && ttl < time.Minute {
				ttl *= 4
				k, owner = revoked(t, l, ttl)
			}
			if k == nil {
				t.Fatalf("a lease of %v was lost before Revoke", ttl)
			}
			select {
			case <-k.Context().Done():
				want(t, "the holder", k.Err(), core.ErrLost)
			case <-time.After(check.Patience):
				t.Error("the holder did not learn that its lock is lost")
			}
			want(t, "a free key", l.Revoke(t.Context(), "key", owner), core.ErrLost)
			for _, owner := range []string{"", "\x001:x"} {
				if err := l.Revoke(t.Context(), "key", owner); err == nil || errors.Is(err, core.ErrLost) {
					t.Errorf("Revoke took %q for an owner", owner)
				}
			}

			sealed := acquire(t, l, "sealed")
			ok(t, "Seal", sealed.Seal(t.Context(), []byte("value"), time.Minute))
			want(t, "a sealed key", l.Revoke(t.Context(), "sealed", sealed.Owner()), core.ErrLost)
			if state, err := l.Inspect(t.Context(), "sealed"); err != nil || state.Status != core.Sealed {
				t.Errorf("%+v, %v: the seal is gone", state, err)
			}
		})
	}
}

// revoked returns a lock that Revoke ended, and its owner, or nil if its lease ended before.
func revoked(t *testing.T, l *core.Locker, ttl time.Duration) (*core.Lock, string) {
	t.Helper()
	k := acquire(t, l, "key", core.WithTag("a tag"), core.WithTTL(ttl))
	want(t, "another owner", l.Revoke(t.Context(), "key", k.Owner()+"x"), core.ErrLost)
	if state, err := l.Inspect(t.Context(), "key"); err != nil || state.Owner != k.Owner() && k.Err() == nil {
		t.Errorf("%+v, %v: the key is not held any more", state, err)
	}
	if err := l.Revoke(t.Context(), "key", k.Owner()); err != nil {
		want(t, "Revoke", err, core.ErrLost)
		want(t, "the lock, as Revoke says", k.Err(), core.ErrLost)
		return nil, ""
	}
	return k, k.Owner()
}

// patient is the backend on one Redis that a busy machine does not make unavailable.
func patient(client redis.UniversalClient) redisbackend.Config {
	b := redisbackend.New(client)
	b.NodeTimeout = 5 * time.Second
	return b
}

// Revoke leaves no orphan, and removes one that is there already.
func TestRevoke_Orphan(t *testing.T) {
	t.Parallel()
	for name, backend := range map[string]core.Opener{
		"memory": backendtest.Memory(), "one Redis": patient(testutil.Redis(t).Client()),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for before, status := range map[string]core.Status{"held": core.Held, "orphaned": core.Orphaned} {
				l := locker(t, backend, core.WithTTL(time.Minute))
				opts := []core.AcquireOption{core.WithOrphan(time.Hour)}
				if status == core.Orphaned {
					opts = append(opts, core.WithTTL(3*time.Second))
				}
				k := acquire(t, l, before, opts...)
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
				ok(t, "Release", acquire(t, locker(t, backend), before).Release(t.Context()))
			}
		})
	}
}
