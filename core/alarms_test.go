package core_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
)

// Many leases share a timer. Each of them is renewed in time, whatever becomes of the others.
func TestAlarms_ManyLeases(t *testing.T) {
	seeds := uint64(2)
	if long {
		seeds = 10
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			l := locker(t, backendtest.Memory())
			ttl := func() time.Duration {
				return 100*time.Millisecond + time.Duration(random.Int64N(int64(10*time.Second)))
			}
			var held []*core.Lock
			for i := range 1000 {
				time.Sleep(time.Duration(random.Int64N(int64(200 * time.Millisecond))))
				switch {
				case len(held) < 20 || random.IntN(3) > 0 && len(held) < 50:
					held = append(held, acquire(t, l, "k"+strconv.Itoa(i), core.WithTTL(ttl()), core.WithMaxHold(24*time.Hour)))
				case random.IntN(2) == 0:
					ok(t, "Extend", held[random.IntN(len(held))].Extend(t.Context(), ttl()))
				default:
					at := random.IntN(len(held))
					ok(t, "Release", held[at].Release(t.Context()))
					held = slices.Delete(held, at, at+1)
				}
			}
			for _, k := range held {
				if err := k.Err(); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
			if n := l.Alarms(); n != len(held) {
				t.Errorf("seed %d: %d locks are held, and %d alarms are set", seed, len(held), n)
			}
			for _, k := range held {
				ok(t, "Release", k.Release(t.Context()))
			}
			if n := l.Alarms(); n != 0 {
				t.Errorf("seed %d: %d alarms are set after all locks were released", seed, n)
			}
		})
	}
}

// longAgo is a Backend that grants some leases without a deadline.
type longAgo struct{ core.Sealer }

func (b longAgo) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	g, err := b.Sealer.Acquire(ctx, r)
	if strings.Contains(r.Key, "long ago") {
		g.Deadline = time.Time{}
	}
	return g, err
}

// A lease that ended long ago is lost, and the others are renewed.
func TestAlarms_LeaseThatEndedLongAgo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, longAgo{backendtest.Memory()})
		time.Sleep(time.Millisecond)
		var others []*core.Lock
		for i := range 40 { // with each alarm
			want(t, "the lock", acquire(t, l, strconv.Itoa(i)+" long ago").Err(), core.ErrLost)
		}
		for i := range 40 {
			others = append(others, acquire(t, l, strconv.Itoa(i)))
		}
		time.Sleep(time.Minute)
		for _, k := range others {
			ok(t, "another lock", k.Err())
		}
		if n := l.Alarms(); n != len(others) {
			t.Errorf("%d alarms are set for %d locks", n, len(others))
		}
	})
}

// A Locker that is closed, and has no locks, is not kept until they would have been renewed.
func TestAlarms_ClosedLockerIsGarbage(t *testing.T) {
	closed := func() weak.Pointer[core.Locker] {
		l, err := core.New(opener{backendtest.Memory()}, core.WithTTL(24*time.Hour))
		ok(t, "New", err)
		k, err := l.Acquire(t.Context(), "k")
		ok(t, "Acquire", err)
		ok(t, "Release", k.Release(t.Context()))
		ok(t, "Close", l.Close())
		return weak.Make(l)
	}()
	check.Eventually(t, "the Locker is garbage", func() bool {
		runtime.GC()
		return closed.Value() == nil
	})
}
