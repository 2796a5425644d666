package rueidisdriver_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil"
)

// Services on rueidis and on go-redis exclude each other, and wake each other's waiters.
func TestInterop(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) (ours, other redisbackend.Config, nodes testutil.Nodes){
		"one Redis": func(t *testing.T) (ours, other redisbackend.Config, nodes testutil.Nodes) {
			n := testutil.Redis(t)
			other = redisbackend.New(n.Client())
			other.NodeTimeout = 5 * time.Second
			return patient(single(t, n.Addr())), other, testutil.Nodes{n}
		},
		"Redis Cluster": func(t *testing.T) (ours, other redisbackend.Config, nodes testutil.Nodes) {
			c := testutil.RedisCluster(t, 3)
			other = redisbackend.New(c.Client())
			other.NodeTimeout = 5 * time.Second
			return patient(clustered(t, c)), other, c.Nodes
		},
		"quorum": func(t *testing.T) (ours, other redisbackend.Config, nodes testutil.Nodes) {
			nodes = testutil.Cluster(t, 3)
			other = redisbackend.New(nodes.Clients()...)
			other.NewInstallation, other.NodeTimeout, other.LongestTTL = true, 5*time.Second, time.Minute
			return quorum(t, nodes), other, nodes
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours, other, nodes := open(t)
			a, b := locker(t, ours), locker(t, other)
			for range 2 { // both ways
				// Only a message wakes b in time: its next look would be at the end of the lease.
				k := acquire(t, a, "k", core.WithTTL(time.Minute), core.WithMaxHold(0))
				_, err := b.TryAcquire(t.Context(), "k")
				want(t, "TryAcquire", err, core.ErrTaken)
				next := make(chan error, 1)
				go func() {
					k, err := b.Acquire(t.Context(), "k", core.WithTTL(time.Minute))
					if err == nil {
						err = k.Release(t.Context())
					}
					next <- err
				}()
				eventually(t, "the other one listens", func() bool { return listeners(t, nodes) > 0 })
				ok(t, "Release", k.Release(t.Context()))
				ok(t, "the waiter", <-next)
				eventually(t, "the channel is left", func() bool { return listeners(t, nodes) == 0 })
				a, b = b, a
			}
		})
	}
}

// listeners returns how many connections listen for the release of the key k.
func listeners(t testing.TB, nodes testutil.Nodes) (n int64) {
	t.Helper()
	for _, node := range nodes {
		admin := redis.NewClient(&redis.Options{Addr: node.Addr()})
		n += admin.PubSubNumSub(t.Context(), "onelane:{k}:free").Val()["onelane:{k}:free"]
		n += admin.PubSubShardNumSub(t.Context(), "onelane:{k}:free:s").Val()["onelane:{k}:free:s"]
		_ = admin.Close()
	}
	return n
}
