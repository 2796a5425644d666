package rueidisdriver_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// The smallest user of package redisbackend, and what a Redis Cluster needs besides.
var (
	commands = []string{"eval", "evalsha", "get", "set", "del", "pttl", "pexpire", "time", "hello", "ping", "publish", "subscribe",
		"unsubscribe", "spublish", "ssubscribe", "sunsubscribe", "sadd", "spop", "lastsave", "info"}
	clusterCommands = []string{"cluster|slots", "cluster|shards", "asking"}
)

// restrict makes a user that may do nothing else.
func restrict(t *testing.T, n *testutil.Node, commands []string) {
	t.Helper()
	rules := []any{"ACL", "SETUSER", "onelane", "on", ">secret", "~onelane:*", "&onelane:*"}
	for _, c := range commands {
		rules = append(rules, "+"+c)
	}
	ok(t, "ACL SETUSER", n.Client().Do(t.Context(), rules...).Err())
}

// The smallest user of package redisbackend works with rueidis, too, and may wait by pub/sub.
func TestACL(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	restrict(t, node, commands)
	c := client(t, rueidis.ClientOption{InitAddress: []string{node.Addr()}, Username: "onelane", Password: "secret", DisableCache: true,
		ForceSingleClient: true})
	l := locker(t, patient(c))
	k := acquire(t, l, "k", core.WithToken())
	ok(t, "Extend", k.Extend(t.Context(), time.Minute))
	changed, stop, err := open(t, patient(c)).Watch(t.Context(), "onelane:{k}")
	ok(t, "Watch", err)
	defer stop()
	ok(t, "Release", k.Release(t.Context()))
	if _, more := <-changed; !more {
		t.Error("the subscription ended")
	}
}

// A lock that is held while its slot moves needs ASKING.
func TestACL_RedisCluster(t *testing.T) {
	t.Parallel()
	cluster := restrictedCluster(t, slices.Concat(commands, clusterCommands))
	l, other := locker(t, patient(userOf(t, cluster))), locker(t, patient(userOf(t, cluster)))
	ok(t, "Ping", l.Ping(t.Context()))
	k := acquire(t, l, "k", core.WithTTL(time.Minute))
	move := cluster.BeginMove("k", 1-cluster.Owner("k"))
	move.MoveKey("onelane:{k}")
	ok(t, "Extend while the slot moves", k.Extend(t.Context(), time.Hour))
	_, err := other.TryAcquire(t.Context(), "k")
	want(t, "TryAcquire while the slot moves", err, core.ErrTaken)
	move.EndMove()
	ok(t, "Release", k.Release(t.Context()))
}

// Without it, Ping says so before a slot moves.
func TestACL_AskingForbidden(t *testing.T) {
	t.Parallel()
	cluster := restrictedCluster(t, slices.Concat(commands, clusterCommands[:2]))
	err := locker(t, patient(userOf(t, cluster))).Ping(t.Context())
	if want(t, "Ping", err, core.ErrUnavailable); !strings.Contains(err.Error(), "asking") {
		t.Errorf("Ping does not name the command: %v", err)
	}
}

func restrictedCluster(t *testing.T, commands []string) *testutil.Sharded {
	t.Helper()
	cluster := testutil.RedisCluster(t, 2)
	for _, n := range cluster.Nodes {
		restrict(t, n, commands)
	}
	return cluster
}

// userOf returns a client of the restricted user.
func userOf(t *testing.T, cluster *testutil.Sharded) rueidis.Client {
	t.Helper()
	return client(t, rueidis.ClientOption{InitAddress: []string{cluster.Nodes[0].Addr()}, Username: "onelane", Password: "secret", DisableCache: true})
}
