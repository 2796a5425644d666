package redisbackend_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// 128 callers want one key for 5 ms each, in one process and in four. It costs few commands, every
// process gets its share, and nothing is left behind. Not parallel: it measures.
func TestWatch_ManyWaitersCostLittle(t *testing.T) {
	const waiters, hold = 128, 5 * time.Millisecond
	for _, processes := range []int{1, 4} {
		t.Run(fmt.Sprintf("%d processes", processes), func(t *testing.T) {
			node := testutil.Redis(t)
			lockers := make([]*core.Locker, processes)
			for i := range lockers {
				lockers[i] = locker(t, one(node.Client()))
				ok(t, "Release", acquire(t, lockers[i], "warm").Release(t.Context()))
			}
			before := runtime.NumGoroutine()
			var slept, took time.Duration // what the holds took, and all of it
			counts := node.Commands(t, func() {
				start := time.Now()
				var all sync.WaitGroup
				for i := range waiters {
					all.Go(func() {
						err := lockers[i%processes].Do(t.Context(), "hot", func(context.Context) error {
							start := time.Now()
							time.Sleep(hold)
							slept += time.Since(start) // alone
							return nil
						})
						if err != nil {
							t.Error(err)
						}
					})
				}
				all.Wait()
				took = time.Since(start)
			})
			sent := counts["set"] + counts["evalsha"] + counts["eval"] + counts["subscribe"] + counts["unsubscribe"] + counts["ping"]
			each := float64(sent) / waiters
			t.Logf("took %v, holds %v (%.2f times), %.2f commands per lock", took, slept, float64(took)/float64(slept), each)
			if each > 3 {
				t.Errorf("%.2f commands per lock", each)
			}
			admin := node.Client()
			eventually(t, "no subscription is left", func() bool { return len(admin.PubSubChannels(t.Context(), "*").Val()) == 0 })
			// The pub/sub connections linger: three goroutines each.
			eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before+3*processes+2 })
		})
	}
}
