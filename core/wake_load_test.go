package core_test

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// 128 callers want one key for 5 ms each, in one process and in four: it takes not much longer than the holds, costs few commands,
// every process gets its share, and nothing is left behind.
func TestWakeUp_ManyWaitersCostLittle(t *testing.T) { // not parallel: it measures
	const waiters, hold = 128, 5 * time.Millisecond
	for _, masters := range []int{1, 3} {
		for _, processes := range []int{1, 4} {
			t.Run(fmt.Sprintf("%d masters, %d processes", masters, processes), func(t *testing.T) {
				nodes := testutil.Cluster(t, masters)
				lockers := make([]*core.Locker, processes)
				for i := range lockers {
					lockers[i] = locker(t, core.Clients(nodes.Clients()...), patient)
					ok(t, "Release", acquire(t, lockers[i], "warm").Release(t.Context()))
				}
				before := runtime.NumGoroutine()
				var slept time.Duration // what the holds took
				var turns []int         // which process held it
				var took time.Duration
				counts := commands(t, nodes, func() {
					start := time.Now()
					var all sync.WaitGroup
					for i := range waiters {
						all.Go(func() {
							if err := lockers[i%processes].Do(t.Context(), "hot", func(context.Context) error {
								start := time.Now()
								time.Sleep(hold)
								slept += time.Since(start) // alone
								turns = append(turns, i%processes)
								return nil
							}); err != nil {
								t.Error(err)
							}
						})
					}
					all.Wait()
					took = time.Since(start)
				})
				each := float64(counts) / waiters
				t.Logf("took %v, holds %v (%.2f times), %.2f commands per lock and node, turns %v", took, slept, float64(took)/float64(slept), each, runs(turns))
				if took > slept*13/10 {
					t.Errorf("took %v, the holds %v", took, slept)
				}
				if each > 3 {
					t.Errorf("%.2f commands per lock and node", each)
				}
				eventually(t, "no subscription is left", func() bool {
					for _, n := range nodes {
						if len(n.Client().PubSubChannels(t.Context(), "*").Val()) > 0 {
							return false
						}
					}
					return true
				})
				eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before+2 })
			})
		}
	}
}

// runs are how many in a row each had.
func runs(turns []int) (lengths []int) {
	for i, who := range turns {
		if i == 0 || who != turns[i-1] {
			lengths = append(lengths, 0)
		}
		lengths[len(lengths)-1]++
	}
	return lengths
}

// commands counts what is sent to the nodes while fn runs, for each node.
func commands(t *testing.T, nodes testutil.Nodes, fn func()) int64 {
	t.Helper()
	if len(nodes) == 0 {
		fn()
		return 0
	}
	var inner int64
	counts := nodes[0].Commands(t, func() { inner = commands(t, nodes[1:], fn) })
	sent := int64(0)
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		switch name {
		case "evalsha", "eval", "subscribe", "unsubscribe", "ssubscribe", "sunsubscribe", "ping", "psubscribe":
			sent += counts[name]
		}
	}
	return max(sent, inner)
}
