package core_test

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// Many leases that are due at the same time are renewed together: what Redis reads from the wire is fewer than the renewals.
func TestRenewals_ShareRoundTrips(t *testing.T) {
	t.Parallel()
	const n = 1000
	node := testutil.Redis(t)
	l := locker(t, core.Clients(node.Client()), core.WithTTL(9*time.Second))
	info := node.Client()
	locks := make([]*core.Lock, n)
	var all sync.WaitGroup
	for w := range 50 {
		all.Go(func() {
			for i := w; i < n; i += 50 {
				locks[i] = acquire(t, l, "k"+strconv.Itoa(i))
			}
		})
	}
	all.Wait()
	reads := readsFromTheWire(t, info)
	var renewed int64
	extended := func() bool {
		deadline := time.Now().Add(7 * time.Second) // a renewal moves it beyond that
		renewed = 0
		for _, k := range locks {
			if k.Deadline().After(deadline) {
				renewed++
			}
		}
		return renewed == n
	}
	time.Sleep(2500 * time.Millisecond) // until none has so much left
	if extended() {
		t.Fatal("the leases have so much left before they are renewed: this test cannot tell")
	}
	eventually(t, "all leases are renewed", extended)
	if reads = readsFromTheWire(t, info) - reads; reads > n*4/5 { // one by one it is more than n, and busy machines spread them
		t.Errorf("%d renewals took %d reads: they were not put together", n, reads)
	}
	for _, k := range locks {
		ok(t, "Release", k.Release(t.Context()))
	}
}

func readsFromTheWire(t *testing.T, c *redis.Client) int {
	t.Helper()
	info, err := c.InfoMap(t.Context(), "stats").Result()
	ok(t, "INFO", err)
	n, err := strconv.Atoi(info["Stats"]["total_reads_processed"])
	ok(t, "total_reads_processed", err)
	return n
}
