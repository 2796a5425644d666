package core_test

import (
	"context"
	"math"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// A renewal without an answer, or two in a row, do not lose a lock, however short its TTL.
func TestRenewal_LostPacketsLoseNoLock(t *testing.T) {
	for _, ttl := range []time.Duration{100 * time.Millisecond, time.Second, 1500 * time.Millisecond, 10 * time.Second} {
		for _, packets := range []int{1, 2} {
			synctest.Test(t, func(t *testing.T) {
				s := memorySpy()
				l := locker(t, s, core.WithTTL(ttl))
				k := acquire(t, l, "k")
				lost := 0
				s.on("extend", func(ctx context.Context) error {
					if lost++; lost > packets {
						lost = 0
						return nil
					}
					<-ctx.Done()
					return unavailable("k")
				})
				time.Sleep(50 * ttl)
				if err := k.Err(); err != nil {
					t.Errorf("TTL %v, %d lost packets in a row: %v", ttl, packets, err)
				}
				_ = k.Release(t.Context())
			})
		}
	}
}

// suspending is a backend that grants at once. Its answer comes when a suspended machine goes on.
type suspending struct {
	core.Sealer
	woke *atomic.Int64
}

func (s suspending) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	g, err := s.Sealer.Acquire(ctx, r)
	time.Sleep(time.Millisecond)
	s.woke.Store(time.Now().UnixNano())
	return g, err
}

// The machine is suspended for a minute while the answer of Acquire is under way.
func TestLease_SuspendedBeforeTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var woke atomic.Int64
		l := locker(t, opener{suspending{backendtest.Memory(), &woke}}, core.WithClocks(func(began, now time.Time) (wall, monotonic time.Duration) {
			if at := woke.Load(); at > 0 && began.UnixNano() < at && at <= now.UnixNano() {
				wall = time.Minute
			}
			return wall + now.Sub(began), now.Sub(began)
		}))
		k, err := l.Acquire(t.Context(), "k")
		if err == nil {
			err = k.Err()
			_ = k.Release(t.Context())
		}
		want(t, "Acquire or Err", err, core.ErrLost)
	})
}

// Each waiter leaves a queue in constant time: many whose contexts end together do not hold up other
// keys. Leaving is compared with joining, in CPU time: with a search through 100,000 waiters it takes
// hundreds of times as long.
func TestWait_ManyWaitersEndTogether(t *testing.T) { // not parallel: it measures CPU time
	join, quit := locker(t, backendtest.Memory()).JoinAndQuit(100_000)
	best := math.Inf(1)
	for range 3 {
		start := cpuTime(t)
		join()
		joined := cpuTime(t)
		quit()
		best = min(best, float64(cpuTime(t)-joined)/float64(joined-start))
	}
	t.Logf("leaving takes %.2f times the CPU time of joining", best)
	if best > 20 {
		t.Errorf("leaving a queue of 100,000 waiters takes %.0f times the CPU time of joining it", best)
	}
}

// cpuTime returns the CPU time that this process has used.
func cpuTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	ok(t, "getrusage", syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
