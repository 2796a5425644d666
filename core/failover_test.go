package core_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
	"github.com/redis/go-redis/v9"
)

// A fail-over by Sentinel: calls fail loudly or work, they work again when there is a master, and tokens strictly increase.
func TestSentinel_FailOver(t *testing.T) {
	t.Parallel()
	s := testutil.Sentinel(t)
	l := locker(t, core.Clients(s.Client()), core.WithTTL(time.Second))
	var last uint64
	use := func() error {
		k, err := l.Acquire(t.Context(), "k", core.WithWait(2*time.Second))
		if err != nil {
			if !errors.Is(err, core.ErrUnavailable) && !errors.Is(err, core.ErrTaken) {
				t.Fatalf("Acquire during the fail-over: %v", err)
			}
			return err
		}
		if k.Token() <= last {
			t.Errorf("token %d after %d", k.Token(), last)
		}
		last = k.Token()
		return k.Release(t.Context())
	}
	for range 10 {
		ok(t, "before the fail-over", use())
	}
	held := acquire(t, l, "held")
	s.Master.Kill()
	failed := 0
	eventually(t, "locks are granted again", func() bool {
		if use() != nil {
			failed++
			return false
		}
		return true
	})
	if failed == 0 {
		t.Error("there was no fail-over: nothing failed")
	}
	for range 10 {
		ok(t, "after the fail-over", use())
	}
	select { // it outlived the fail-over, or its holder was told
	case <-held.Context().Done():
		want(t, "cause", context.Cause(held.Context()), core.ErrLost)
	default:
		ok(t, "Release of a lock from before", held.Release(t.Context()))
	}
}

// The replica is promoted before the lock was replicated to it. On one Redis the lock is lost, as the docs say, and then the token
// tells; a quorum does not lose it.
func TestFailOver_BeforeTheLockWasReplicated(t *testing.T) {
	t.Parallel()
	for name, masters := range map[string]int{"one Redis": 0, "quorum": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testutil.Sentinel(t)
			others := testutil.Cluster(t, masters)
			open := func() *core.Locker {
				clients := append([]redis.UniversalClient{s.Client()}, others.Clients()...)
				return locker(t, core.Clients(clients...), core.WithTTL(time.Minute), core.WithoutRenewal(), patient)
			}
			first, second := open(), open()
			for _, l := range []*core.Locker{first, second} {
				ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
			}
			eventually(t, "the last Release is everywhere", func() bool { // a quorum's does not wait for all
				return s.Master.Client().Exists(t.Context(), "onelane:{k}").Val()+s.Replica.Client().Exists(t.Context(), "onelane:{k}").Val() == 0
			})
			s.Lag()
			k := acquire(t, first, "k")
			s.Master.Kill()
			s.Promoted()
			if n := s.Replica.Client().Exists(t.Context(), "onelane:{k}").Val(); n != 0 {
				t.Fatal("the lock was replicated: this test tests nothing")
			}
			if masters > 0 {
				for range 5 {
					_, err := second.TryAcquire(t.Context(), "k")
					want(t, "TryAcquire", err, core.ErrTaken)
				}
				ok(t, "Extend of the lock", k.Extend(t.Context(), 2*time.Minute))
				ok(t, "Release of the lock", k.Release(t.Context()))
				next := acquire(t, second, "k")
				if next.Token() <= k.Token() {
					t.Errorf("token %d after %d", next.Token(), k.Token())
				}
				return
			}
			var next *core.Lock
			eventually(t, "the second gets the key", func() (done bool) {
				got, err := second.TryAcquire(context.Background(), "k")
				next = got
				return err == nil
			})
			if next.Token() <= k.Token() {
				t.Errorf("token %d after %d: a resource could not tell the two apart", next.Token(), k.Token())
			}
			want(t, "Extend of the lost lock", k.Extend(t.Context(), time.Minute), core.ErrLost)
		})
	}
}
