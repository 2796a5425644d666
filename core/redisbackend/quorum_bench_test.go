package redisbackend_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// BenchmarkQuorum locks and unlocks keys that nobody else wants, on five masters. The rate with one
// that hangs should be at least 0.9 of the healthy one.
func BenchmarkQuorum(b *testing.B) {
	for hung := range 2 {
		b.Run(fmt.Sprintf("hung=%d", hung), func(b *testing.B) {
			nodes := testutil.Cluster(b, 5)
			backend := openQuorum(b, quorumOf(nodes), time.Minute)
			var n atomic.Int64
			lock := func() {
				i := n.Add(1)
				g, err := backend.Acquire(context.Background(), core.Request{
					Key: fmt.Sprint("k", i), Owner: fmt.Sprint("a/", i), TTL: time.Minute,
				})
				if err != nil {
					b.Error(err)
					return
				}
				if _, err := backend.Release(context.Background(), g); err != nil {
					b.Error(err)
				}
			}
			lock()
			if hung == 1 {
				nodes[4].Stop()
				defer nodes[4].Cont()
			}
			b.SetParallelism(8)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					lock()
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "locks/s")
		})
	}
}
