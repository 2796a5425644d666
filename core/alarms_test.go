package core_test

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// One timer serves all leases of a Locker. So each of them must be renewed in time, whatever the others do.
func TestAlarms_ManyLeases(t *testing.T) {
	seeds := uint64(5)
	if long {
		seeds = 50
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
