package rueidisdriver_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/onelane/onelane/testutil"
)

// A process that is not ready gets no requests, and asks for no locks. Ping alone must find the
// replica that was promoted, or the process is never ready again.
func TestPing_MasterGone(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3)
	owner, alive := cluster.Nodes[0], cluster.Nodes[1]
	replica := testutil.Redis(t, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf").Client()
	host, port, _ := strings.Cut(alive.Addr(), ":")
	ok(t, "CLUSTER MEET", replica.ClusterMeet(t.Context(), host, port).Err())
	id, err := owner.Client().Do(t.Context(), "CLUSTER", "MYID").Text()
	ok(t, "CLUSTER MYID", err)
	eventually(t, "the replica knows its master", func() bool { return replica.ClusterReplicate(t.Context(), id).Err() == nil })
	eventually(t, "the replica is in sync", func() bool {
		return strings.Contains(replica.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	eventually(t, "the others know the replica", func() bool {
		return strings.Contains(fmt.Sprint(alive.Client().ClusterSlots(t.Context()).Val()), replica.Options().Addr)
	})
	l := locker(t, patient(client(t, rueidis.ClientOption{InitAddress: []string{alive.Addr()}, DisableCache: true})))
	ok(t, "Ping", l.Ping(t.Context()))
	owner.Kill()
	ok(t, "CLUSTER FAILOVER", replica.Do(t.Context(), "CLUSTER", "FAILOVER", "TAKEOVER").Err())
	eventually(t, "Ping asks the promoted replica", func() bool { return l.Ping(t.Context()) == nil })
}
