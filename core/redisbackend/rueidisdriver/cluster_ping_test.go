package rueidisdriver_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/onelane/onelane/testutil"
)

// A process that is not ready gets no requests, and asks for no locks. Ping alone must find the
// replica that was promoted, or the process is never ready again.
func TestPing_MasterGone(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3)
	owner, alive := cluster.Nodes[0], cluster.Nodes[1]
	replica := joined(t, alive, owner)
	eventually(t, "the others know the replica", func() bool {
		return strings.Contains(fmt.Sprint(alive.Client().Do(t.Context(), "CLUSTER", "SLOTS").Val()), strings.Replace(replica.Options().Addr, ":", " ", 1))
	})
	l := locker(t, patient(client(t, rueidis.ClientOption{InitAddress: []string{alive.Addr()}, DisableCache: true})))
	eventually(t, "Ping", func() bool { return l.Ping(t.Context()) == nil }) // a busy machine may need more than mapWait
	owner.Kill()
	ok(t, "CLUSTER FAILOVER", replica.Do(t.Context(), "CLUSTER", "FAILOVER", "TAKEOVER").Err())
	eventually(t, "Ping asks the promoted replica", func() bool { return l.Ping(t.Context()) == nil })
}

// The replica joined after the client had asked for the nodes, and a planned fail-over promotes it.
// The old master goes on to answer, so no connection breaks and rueidis asks nobody.
func TestPing_MasterThatTheClientDoesNotKnow(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3)
	owner, alive := cluster.Nodes[0], cluster.Nodes[1]
	c := client(t, rueidis.ClientOption{InitAddress: []string{alive.Addr()}, DisableCache: true})
	l := locker(t, patient(c))
	eventually(t, "Ping", func() bool { return l.Ping(t.Context()) == nil })
	replica := joined(t, alive, owner)
	eventually(t, "the replica is promoted", func() bool {
		_ = replica.Do(t.Context(), "CLUSTER", "FAILOVER").Err()
		return strings.Contains(replica.Info(t.Context(), "replication").Val(), "role:master")
	})
	eventually(t, "the client knows the new master, and Ping asks it", func() bool {
		err := l.Ping(t.Context())
		return err == nil && c.Nodes()[replica.Options().Addr] != nil
	})
}

// joined returns a new replica of owner, which joins through alive.
func joined(t testing.TB, alive, owner *testutil.Node) *redis.Client {
	t.Helper()
	replica := testutil.Redis(t, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf").Client()
	host, port, _ := strings.Cut(alive.Addr(), ":")
	ok(t, "CLUSTER MEET", replica.ClusterMeet(t.Context(), host, port).Err())
	id, err := owner.Client().Do(t.Context(), "CLUSTER", "MYID").Text()
	ok(t, "CLUSTER MYID", err)
	eventually(t, "the replica knows its master", func() bool { return replica.ClusterReplicate(t.Context(), id).Err() == nil })
	eventually(t, "the replica is in sync", func() bool {
		return strings.Contains(replica.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	return replica
}
