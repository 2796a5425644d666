package testutil

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/testutil/internal/server"
)

const (
	clusterSlots = 16384
	formTimeout  = 90 * time.Second // of a Redis Cluster or a Sentinel that does not come together
)

// Sharded is a Redis Cluster of masters without replicas. Its methods fail the test it was made
// for.
type Sharded struct {
	Nodes
	t   testing.TB
	ids []string
}

// RedisCluster starts a Redis Cluster of n masters and ends it with the test. Each is a separate
// process with its share of the slots. The args are added to their command lines. It needs
// redis-server 7.0. If it is not installed the test fails.
//
//	cluster := testutil.RedisCluster(t, 3)
//	locker, err := core.New(redisbackend.New(cluster.Client()))
//	if err != nil {
//		t.Fatal(err)
//	}
//	defer locker.Close()
//	lock, err := locker.Acquire(t.Context(), "stock:42")
//	if err != nil {
//		t.Fatal(err)
//	}
//	move := cluster.BeginMove("stock:42", (cluster.Owner("stock:42")+1)%3)
//	move.EndMove()
//	if err := lock.Release(t.Context()); err != nil { // the client learns where the key has gone
//		t.Error(err)
//	}
func RedisCluster(t testing.TB, n int, args ...string) *Sharded {
	t.Helper()
	c := &Sharded{t: t}
	args = append([]string{"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "2000"}, args...)
	for len(c.Nodes) < n {
		c.Nodes = append(c.Nodes, realNode(t, "a Redis Cluster", args...))
	}
	for i, node := range c.Nodes {
		client := node.Client()
		id, err := client.Do(context.Background(), "CLUSTER", "MYID").Text()
		c.must(err)
		c.ids = append(c.ids, id)
		c.must(client.Do(context.Background(), "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err())
		c.must(client.ClusterAddSlotsRange(context.Background(), i*clusterSlots/n, (i+1)*clusterSlots/n-1).Err())
		host, port, _ := strings.Cut(c.Nodes[0].Addr(), ":")
		c.must(client.ClusterMeet(context.Background(), host, port).Err())
	}
	eventually(t, "the cluster forms", func() bool {
		for _, node := range c.Nodes {
			info, err := node.Client().ClusterInfo(context.Background()).Result()
			if err != nil {
				return false
			}
			// Without full coverage the state is ok before the node knows all slots.
			for _, line := range []string{"cluster_state:ok", fmt.Sprintf("cluster_slots_ok:%d", clusterSlots), fmt.Sprintf("cluster_known_nodes:%d", n)} {
				if !strings.Contains(info, line) {
					return false
				}
			}
		}
		return true
	})
	return c
}

// Client returns a new cluster client with go-redis's defaults, closed at the end of the test.
func (c *Sharded) Client() *redis.ClusterClient {
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{c.Nodes[0].Addr()}})
	c.t.Cleanup(func() { _ = client.Close() })
	return client
}

// Owner is the index of the master that has the slot of key.
func (c *Sharded) Owner(key string) int {
	c.t.Helper()
	slot := c.slot(key)
	i := slices.Index(c.ids, c.ownerID(c.Nodes[0], slot))
	if i < 0 {
		c.t.Fatalf("testutil: nobody has slot %d", slot)
	}
	return i
}

// ownerID is who has a slot, as node sees it.
func (c *Sharded) ownerID(node *Node, slot int) string {
	shards, err := node.Client().ClusterShards(context.Background()).Result()
	c.must(err)
	for _, shard := range shards {
		for _, s := range shard.Slots {
			if s.Start <= int64(slot) && int64(slot) <= s.End && len(shard.Nodes) > 0 {
				return shard.Nodes[0].ID
			}
		}
	}
	return ""
}

func (c *Sharded) slot(key string) int {
	c.t.Helper()
	slot, err := c.Nodes[0].Client().ClusterKeySlot(context.Background(), key).Result()
	c.must(err)
	return int(slot)
}

// BeginMove begins to move the slot of key to another master, as redis-cli --cluster reshard does.
// MoveKey moves one key of the slot, and its old master then answers ASK for this key. EndMove
// moves the keys that are left, and the old master then answers MOVED.
func (c *Sharded) BeginMove(key string, to int) (m *Move) {
	c.t.Helper()
	m = &Move{c: c, slot: c.slot(key), from: c.Owner(key), to: to}
	c.must(c.Nodes[to].Client().Do(context.Background(), "CLUSTER", "SETSLOT", m.slot, "IMPORTING", c.ids[m.from]).Err())
	c.must(c.Nodes[m.from].Client().Do(context.Background(), "CLUSTER", "SETSLOT", m.slot, "MIGRATING", c.ids[to]).Err())
	return m
}

// Move is a slot on its way from one master to another.
type Move struct {
	c              *Sharded
	slot, from, to int
}

// MoveKey moves one key of the slot.
func (m *Move) MoveKey(key string) {
	m.c.t.Helper()
	host, port, _ := strings.Cut(m.c.Nodes[m.to].Addr(), ":")
	m.c.must(m.c.Nodes[m.from].Client().Do(context.Background(), "MIGRATE", host, port, key, 0, 5000).Err())
}

// EndMove moves the keys that are left in the slot, and gives it to its new master.
func (m *Move) EndMove() {
	m.c.t.Helper()
	keys, err := m.c.Nodes[m.from].Client().ClusterGetKeysInSlot(context.Background(), m.slot, 1000).Result()
	m.c.must(err)
	for _, key := range keys {
		m.MoveKey(key)
	}
	for _, i := range []int{m.to, m.from} {
		m.c.must(m.c.Nodes[i].Client().Do(context.Background(), "CLUSTER", "SETSLOT", m.slot, "NODE", m.c.ids[m.to]).Err())
	}
	eventually(m.c.t, "all know the slot's new master", func() bool {
		for _, node := range m.c.Nodes {
			if m.c.ownerID(node, m.slot) != m.c.ids[m.to] {
				return false
			}
		}
		return true
	})
}

func (c *Sharded) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatalf("testutil: the cluster: %v", err)
	}
}

// realNode is a redis-server process for what a miniredis cannot do.
func realNode(t testing.TB, what string, args ...string) *Node {
	t.Helper()
	node, err := newNode(t, args...)
	if err == nil && !node.Real() {
		err = fmt.Errorf("testutil: %s needs redis-server processes; %s", what, server.Advice)
	}
	if err != nil {
		t.Fatal(err)
	}
	return node
}

// eventually polls for what several processes must agree on.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(formTimeout); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("testutil: %s: it did not happen within %v", what, formTimeout)
		}
	}
}
