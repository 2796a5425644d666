package redisbackend_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// A master of a Redis Cluster is gone and sends no MOVED. Its replica is promoted. Locks of the shard
// go on within a lease's time.
func TestRedisCluster_MasterGone(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3)
	const name = "onelane:{k}"
	owner := cluster.Nodes[cluster.Owner(name)]
	alive := cluster.Nodes[(cluster.Owner(name)+1)%3]
	replica := testutil.Redis(t, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf").Client()
	host, port, _ := strings.Cut(alive.Addr(), ":")
	ok(t, "CLUSTER MEET", replica.ClusterMeet(t.Context(), host, port).Err())
	id, err := owner.Client().Do(t.Context(), "CLUSTER", "MYID").Text()
	ok(t, "CLUSTER MYID", err)
	eventually(t, "the replica knows its master", func() bool { return replica.ClusterReplicate(t.Context(), id).Err() == nil })
	eventually(t, "the replica is in sync", func() bool {
		return strings.Contains(replica.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	eventually(t, "all know the replica", func() bool {
		return strings.Contains(alive.Client().ClusterNodes(t.Context()).Val(), replica.Options().Addr)
	})
	l := locker(t, one(cluster.Client()), core.WithOutageWait(0))
	k := acquire(t, l, "k", core.WithTTL(time.Minute), core.WithMaxHold(0))
	eventually(t, "the lock is replicated", func() bool {
		return strings.Contains(replica.Info(t.Context(), "keyspace").Val(), "keys=1")
	})
	owner.Kill()
	ok(t, "CLUSTER FAILOVER", replica.Do(t.Context(), "CLUSTER", "FAILOVER", "TAKEOVER").Err())
	eventually(t, "another master knows the new one", func() bool {
		for line := range strings.Lines(alive.Client().ClusterNodes(t.Context()).Val()) {
			if strings.Contains(line, replica.Options().Addr) && strings.Contains(line, "master") {
				return true
			}
		}
		return false
	})
	end := time.Now().Add(20 * time.Second)
	for {
		err := k.Extend(t.Context(), time.Minute)
		if err == nil {
			break
		}
		if errors.Is(err, core.ErrLost) || time.Now().After(end) {
			t.Fatalf("the lock is renewed on the promoted replica: 20s were not enough: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	ok(t, "Release", k.Release(t.Context()))
}
