package rueidisdriver_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/core/redisbackend/rueidisdriver"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

func TestBackend_Redis(t *testing.T) {
	t.Parallel()
	c := single(t, testutil.Redis(t).Addr())
	backendtest.TestSealer(t, func(t *testing.T) core.Backend { return open(t, patient(c)) })
}

// Options of rueidis that change how commands travel.
func TestBackend_Options(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]rueidis.ClientOption{
		"RESP2":                 {AlwaysRESP2: true, DisableCache: true},
		"DisableAutoPipelining": {DisableAutoPipelining: true},
		"AlwaysPipelining":      {AlwaysPipelining: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.InitAddress = []string{testutil.Redis(t).Addr()}
			c := client(t, o)
			backendtest.TestSealer(t, func(t *testing.T) core.Backend { return open(t, patient(c)) })
		})
	}
}

func TestBackend_RedisCluster(t *testing.T) {
	t.Parallel()
	c := clustered(t, testutil.RedisCluster(t, 3))
	backendtest.TestSealer(t, func(t *testing.T) core.Backend { return open(t, patient(c)) })
}

func TestBackend_Sentinel(t *testing.T) {
	t.Parallel()
	c := watched(t, testutil.Sentinel(t))
	backendtest.TestSealer(t, func(t *testing.T) core.Backend { return open(t, patient(c)) })
}

func TestBackend_Quorum(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 5} {
		nodes := testutil.Cluster(t, n)
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			backendtest.TestBackend(t, func(t *testing.T) core.Backend { return open(t, quorum(t, nodes)) })
		})
	}
}

// clustered returns a client of a Redis Cluster.
func clustered(t testing.TB, c *testutil.Sharded) rueidis.Client {
	return client(t, rueidis.ClientOption{InitAddress: []string{c.Nodes[0].Addr()}, DisableCache: true})
}

// watched returns a client that asks Sentinel for its master.
func watched(t testing.TB, r *testutil.Replicated) rueidis.Client {
	o := r.Options()
	return client(t, rueidis.ClientOption{InitAddress: o.SentinelAddrs, DisableCache: true,
		Sentinel: rueidis.SentinelOption{MasterSet: o.MasterName, TopologyRefreshInterval: time.Second}})
}

// quorum is a quorum whose nodes do not abstain and have time on a busy machine.
func quorum(t testing.TB, nodes testutil.Nodes) redisbackend.Config {
	var clients []rueidis.Client
	for _, n := range nodes {
		clients = append(clients, single(t, n.Addr()))
	}
	c := rueidisdriver.New(clients...)
	c.NewInstallation, c.NodeTimeout, c.LongestTTL = true, 5*time.Second, time.Minute
	return c
}

// Rueidis does not end the backend's connections after ConnLifetime, because they are dedicated. The package
// documentation says so.
func TestBackend_ConnLifetime(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	admin := node.Client()
	var lockers []*core.Locker
	for range 2 {
		c := client(t, rueidis.ClientOption{InitAddress: []string{node.Addr()}, DisableCache: true, ConnLifetime: 50 * time.Millisecond})
		lockers = append(lockers, locker(t, patient(c), core.WithOutageWait(0)))
	}
	before := connections(t, admin)
	var all sync.WaitGroup
	for i := range 4 { // the Lockers wait for each other, too
		all.Go(func() {
			for range 100 {
				k, err := lockers[i/2].Acquire(t.Context(), fmt.Sprint("k", i%2))
				if err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				time.Sleep(5 * time.Millisecond)
				ok(t, "Release", k.Release(t.Context()))
			}
		})
	}
	all.Wait()
	if made := connections(t, admin) - before; made > 8 { // four each
		t.Errorf("%d connections were made, want 8 at most", made)
	}
}

// connections returns how many connections a server has had so far.
func connections(t testing.TB, admin *redis.Client) int {
	t.Helper()
	_, count, _ := strings.Cut(admin.Info(t.Context(), "stats").Val(), "total_connections_received:")
	count, _, _ = strings.Cut(count, "\r")
	n, err := strconv.Atoi(count)
	ok(t, "total_connections_received", err)
	return n
}

// A Config makes more than one backend. The end of one does not touch the connections of another.
func TestBackend_ConfigUsedTwice(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	b := patient(single(t, node.Addr()))
	first, second := locker(t, b), locker(t, b)
	ok(t, "Release", acquire(t, first, "k").Release(t.Context()))
	ok(t, "Release", acquire(t, second, "k").Release(t.Context()))
	ok(t, "Close", first.Close())
	admin := node.Client()
	before := connections(t, admin)
	for range 10 {
		ok(t, "Release", acquire(t, second, "k").Release(t.Context()))
	}
	if made := connections(t, admin) - before; made > 2 { // another line may be new
		t.Errorf("%d connections were made for ten locks", made)
	}
}
