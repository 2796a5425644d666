package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil"
)

// All keys of a call share a slot, whatever the key is.
func TestRedisCluster_NoCrossSlot(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3)
	l, bare := locker(t, one(cluster.Client())), locker(t, one(cluster.Client()), core.WithPrefix(""))
	for _, key := range []string{"a", "{a}", "{", "}", "}{", "a{b}c", "{}", "{}{a}", "a}b{c", "{{a}}", "%7Ba%7D", "订单:42", "a b"} {
		for _, l := range []*core.Locker{l, bare} {
			k, err := l.Acquire(t.Context(), key, core.WithToken())
			if l == bare && errors.Is(err, core.ErrInvalidKey) {
				continue
			}
			ok(t, "Acquire of "+key, err)
			ok(t, "Extend of "+key, k.Extend(t.Context(), time.Minute))
			ok(t, "Seal of "+key, k.Seal(t.Context(), []byte("v"), time.Minute))
			ok(t, "Unseal of "+key, l.Unseal(t.Context(), key))
			ok(t, "Release of "+key, acquire(t, l, key).Release(t.Context()))
		}
	}
	locks, err := l.AcquireAll(t.Context(), []string{"a", "b", "c", "d", "e", "f"}) // of all shards
	ok(t, "AcquireAll", err)
	ok(t, "Release", locks.Release(t.Context()))
}

func slowNode(client redis.UniversalClient) redisbackend.Config {
	return redisbackend.Config{Clients: []redis.UniversalClient{client}, NodeTimeout: 5 * time.Second}
}

// While a slot moves, its keys are answered for with ASK once they have moved, with TRYAGAIN while a
// part has, and with MOVED after.
func TestRedisCluster_SlotMoves(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3)
	l, other := locker(t, slowNode(cluster.Client())), locker(t, slowNode(cluster.Client()))
	const name = "onelane:{k}"
	k := acquire(t, l, "k", core.WithToken())
	from := cluster.Owner(name)
	move := cluster.BeginMove(name, (from+1)%3)
	ok(t, "Extend before the key has moved", k.Extend(t.Context(), time.Minute))
	move.MoveKey(name)
	ok(t, "Extend of a key that has moved", k.Extend(t.Context(), 2*time.Minute))
	_, err := other.TryAcquire(t.Context(), "k")
	want(t, "TryAcquire of a key that has moved", err, core.ErrTaken)
	taken := make(chan error, 1)
	go func() { // the key has moved, its counter has not
		_, err := other.TryAcquire(t.Context(), "k", core.WithToken())
		taken <- err
	}()
	time.Sleep(200 * time.Millisecond)
	move.MoveKey(name + ":fence")
	want(t, "TryAcquire", <-taken, core.ErrTaken)
	ok(t, "Release of a key that has moved", k.Release(t.Context()))
	next := acquiring(t, other, "k", core.WithToken()) // the counter has moved, the key is not there
	time.Sleep(200 * time.Millisecond)
	move.EndMove()
	again := <-next
	if token(t, again) <= token(t, k) {
		t.Errorf("token %d after %d", token(t, again), token(t, k))
	}
	ok(t, "Release after the move", again.Release(t.Context()))
	ok(t, "Release", acquire(t, l, "k").Release(t.Context())) // by one that learns of the move by MOVED
}

// A redirect is no try that may have had an effect.
func TestRedisCluster_ReleaseAfterRedirect(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3)
	l, admin := locker(t, slowNode(cluster.Client())), cluster.Client()
	for name, disturb := range map[string]func(key string) error{
		"gone":      func(key string) error { return admin.Del(t.Context(), key).Err() },
		"another's": func(key string) error { return admin.Set(t.Context(), key, "another", time.Minute).Err() },
	} {
		k := acquire(t, l, name)
		key := "onelane:{" + name + "}"
		cluster.BeginMove(key, (cluster.Owner(key)+1)%3).EndMove()
		ok(t, "take away", disturb(key))
		want(t, "Release of what is "+name, k.Release(t.Context()), core.ErrLost)
	}
}

// Two contend for a key while its slot moves to and fro: one at a time, and tokens increase.
func TestRedisCluster_ContendedWhileSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3)
	const name = "onelane:{hot}"
	stop := make(chan struct{})
	var all sync.WaitGroup
	inside, last := 0, uint64(0)
	for range 2 {
		l := locker(t, slowNode(cluster.Client()), core.WithToken())
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				k, err := l.Acquire(t.Context(), "hot")
				if err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				if inside++; inside != 1 || token(t, k) <= last {
					t.Errorf("%d inside, token %d after %d", inside, token(t, k), last)
				}
				last = token(t, k)
				inside--
				if err := k.Release(t.Context()); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
		})
	}
	for range 6 {
		move := cluster.BeginMove(name, (cluster.Owner(name)+1)%3)
		time.Sleep(50 * time.Millisecond)
		move.EndMove()
		time.Sleep(50 * time.Millisecond)
	}
	close(stop)
	all.Wait()
}

// A hung master fails the calls to its own keys only.
func TestRedisCluster_HungShard(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3, "--cluster-node-timeout", "60000", "--cluster-require-full-coverage", "no")
	client := cluster.Client()
	b := one(client)
	b.NodeTimeout = 20 * time.Second // who waits for the hung shard loses the lock
	l := locker(t, b, core.WithTTL(9*time.Second))
	healthy, hung := keysOf(cluster, 0, 2), keysOf(cluster, 1, 100)
	k := acquire(t, l, healthy[0])
	ok(t, "Release", acquire(t, l, hung[0]).Release(t.Context()))
	cluster.Nodes[1].Stop()
	defer cluster.Nodes[1].Cont()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range 150 {
		all.Go(func() {
			for ctx.Err() == nil {
				_, _ = l.TryAcquire(ctx, hung[i%len(hung)])
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
	first := k.Deadline()
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end) || k.Err() == nil && !k.Deadline().After(first); {
		h, err := l.TryAcquire(t.Context(), healthy[1])
		if err == nil {
			err = h.Release(t.Context())
		}
		ok(t, "a lock on a healthy shard", err)
		time.Sleep(5 * time.Millisecond)
	}
	cancel()
	cluster.Nodes[1].Cont()
	all.Wait()
	ok(t, "Release of the lock on a healthy shard, renewed meanwhile", k.Release(t.Context()))
}

// keysOf returns n keys that a master has.
func keysOf(c *testutil.Sharded, master, n int) (keys []string) {
	for i := 0; len(keys) < n; i++ {
		if key := fmt.Sprint("k", i); c.Owner("onelane:{"+key+"}") == master {
			keys = append(keys, key)
		}
	}
	return keys
}

// Waiters listen on the key's own shard only, even if the slot moves while they wait.
func TestWatch_ShardedOnRedisCluster(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3)
	const name, channel = "onelane:{k}", "onelane:{k}:free:s"
	holder, waiter := locker(t, one(cluster.Client())), locker(t, one(cluster.Client()))
	var clients []*redis.Client
	for _, n := range cluster.Nodes {
		clients = append(clients, n.Client())
	}
	listening := func() (shard int, plain bool) {
		shard = -1
		for i, client := range clients {
			if counts, err := client.PubSubShardNumSub(t.Context(), channel).Result(); err == nil && counts[channel] > 0 {
				shard = i
			}
			plain = plain || len(client.PubSubChannels(t.Context(), "*").Val()) > 0
		}
		return shard, plain
	}
	for _, disturb := range []func(){
		func() {},
		func() { // the connection breaks
			for _, client := range clients {
				ok(t, "CLIENT KILL", client.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err())
			}
		},
		func() { cluster.BeginMove(name, (cluster.Owner(name)+1)%3).EndMove() },
	} {
		k := acquire(t, holder, "k")
		got := acquiring(t, waiter, "k")
		subscribed := func() bool { shard, _ := listening(); return shard == cluster.Owner(name) }
		eventually(t, "the waiter listens on the key's shard", subscribed)
		disturb()
		eventually(t, "the waiter listens again", subscribed)
		if _, plain := listening(); plain {
			t.Error("a channel of the whole cluster is used")
		}
		ok(t, "Release", k.Release(t.Context()))
		ok(t, "Release", (<-got).Release(t.Context()))
	}
	eventually(t, "no subscription is left", func() bool { shard, _ := listening(); return shard == -1 })
}

// Channels of different slots are left one by one. In one command, Redis refuses them and would
// cost all waiters of the shard their signals.
func TestWatch_ClusterLeavesManyChannels(t *testing.T) {
	t.Parallel()
	node := testutil.RedisCluster(t, 1).Nodes[0].Client()
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{node.Options().Addr}})
	t.Cleanup(func() { _ = client.Close() })
	holder, waiter := locker(t, one(client)), locker(t, one(client))
	subscribed := func() int { return len(node.PubSubShardChannels(t.Context(), "*").Val()) }
	var held []*core.Lock
	var got []<-chan *core.Lock
	for _, key := range []string{"a", "b", "c", "d"} {
		held = append(held, acquire(t, holder, key))
		got = append(got, acquiring(t, waiter, key))
	}
	eventually(t, "all are waited for", func() bool { return subscribed() == len(held) })
	for i, k := range held {
		ok(t, "Release", k.Release(t.Context()))
		ok(t, "Release", (<-got[i]).Release(t.Context()))
	}
	eventually(t, "no subscription is left", func() bool { return subscribed() == 0 })
	if errs := node.Info(t.Context(), "errorstats").Val(); strings.Contains(errs, "CROSSSLOT") {
		t.Errorf("Redis refused a command: %s", errs)
	}
}

// Before Redis 7 there is no sharded pub/sub, and waiters listen to the plain one.
func TestWatch_ClusterWithoutShardedPubSub(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3, "--rename-command", "SSUBSCRIBE", "", "--rename-command", "SPUBLISH", "")
	const channel = "onelane:{k}:free:s"
	holder, waiter := locker(t, one(cluster.Client())), locker(t, one(cluster.Client()))
	var clients []*redis.Client
	for _, n := range cluster.Nodes {
		clients = append(clients, n.Client())
	}
	for range 2 {
		k := acquire(t, holder, "k")
		got := acquiring(t, waiter, "k")
		eventually(t, "the waiter is subscribed", func() bool {
			n := int64(0)
			for _, client := range clients {
				n += client.PubSubNumSub(t.Context(), channel).Val()[channel]
			}
			return n == 1
		})
		ok(t, "Release", k.Release(t.Context()))
		ok(t, "Release", (<-got).Release(t.Context()))
	}
}

// A client that may read from replicas makes its connections READONLY. A master that was demoted must
// redirect calls all the same.
func TestRedisCluster_FailoverOfReadOnlyClient(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3)
	const name = "onelane:{k}"
	master := cluster.Nodes[cluster.Owner(name)].Client()
	replica := testutil.Redis(t, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf").Client()
	host, port, _ := strings.Cut(cluster.Nodes[0].Addr(), ":")
	ok(t, "CLUSTER MEET", replica.ClusterMeet(t.Context(), host, port).Err())
	id, err := master.Do(t.Context(), "CLUSTER", "MYID").Text()
	ok(t, "CLUSTER MYID", err)
	eventually(t, "the replica knows its master", func() bool { return replica.ClusterReplicate(t.Context(), id).Err() == nil })
	has := func(c *redis.Client, what string) func() bool {
		return func() bool { return strings.Contains(c.Info(t.Context(), "replication").Val(), what) }
	}
	eventually(t, "the replica is in sync", has(replica, "master_link_status:up"))
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{cluster.Nodes[0].Addr()}, ReadOnly: true})
	t.Cleanup(func() { _ = client.Close() })
	l := locker(t, one(client))
	k := acquire(t, l, "k", core.WithTTL(time.Minute))
	var sent time.Time
	eventually(t, "the master is a replica", func() bool {
		if time.Since(sent) > 6*time.Second && replica.ClusterFailover(t.Context()).Err() == nil { // Redis gives it up after 5 s
			sent = time.Now()
		}
		return has(master, "role:slave")()
	})
	eventually(t, "Extend", func() bool { return k.Extend(t.Context(), 2*time.Minute) == nil })
	ok(t, "Release", k.Release(t.Context()))
}

// One master hangs, and go-redis cannot say which masters there are.
func TestPing_NamesTheHungShard(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3)
	l := locker(t, redisbackend.New(cluster.Client()))
	answered(t, l)
	cluster.Nodes[1].Stop()
	defer cluster.Nodes[1].Cont()
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err := l.Ping(ctx)
		cancel()
		if err == nil || !strings.Contains(err.Error(), cluster.Nodes[1].Addr()) {
			t.Errorf("Ping: %v; want an error that names %s", err, cluster.Nodes[1].Addr())
		}
	}
}

// The one master gets a new address again and again, as pods of Kubernetes do. The connections to the
// former ones are closed.
func TestRedisCluster_FormerMasters(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	var pod atomic.Int64
	address := func() string { return fmt.Sprintf("pod-%d:6379", pod.Load()) }
	client := redis.NewClusterClient(&redis.ClusterOptions{
		ClientName: "locks",
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{End: 1<<14 - 1, Nodes: []redis.ClusterNode{{Addr: address()}}}}, nil
		},
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) { return dial(ctx, network, node.Addr()) },
	})
	t.Cleanup(func() { _ = client.Close() })
	l := locker(t, one(client))
	for range 20 {
		eventually(t, "the new address", func() bool {
			client.ReloadState(t.Context())
			found, err := client.MasterForKey(t.Context(), "k")
			return err == nil && found.Options().Addr == address()
		})
		ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
		pod.Add(1)
	}
	pod.Add(-1)
	admin := node.Client()
	eventually(t, "connections to former masters are closed", func() bool { return connections(t, admin, "locks") < 10 })
	ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
}

// A Ping that was given up leaves no connections behind.
func TestPing_GivenUpOnRedisCluster(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3)
	const slots = 1 << 14
	var all []redis.ClusterSlot
	var admins []*redis.Client
	for i, n := range cluster.Nodes {
		admins = append(admins, n.Client())
		all = append(all, redis.ClusterSlot{Start: i * slots / 3, End: (i+1)*slots/3 - 1,
			Nodes: []redis.ClusterNode{{Addr: strings.Replace(n.Addr(), "127.0.0.1", "localhost", 1)}}})
	}
	var slow atomic.Bool
	goOn := make(chan struct{})
	client := redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
		if slow.Load() {
			<-goOn
		}
		return all, nil
	}})
	t.Cleanup(func() { _ = client.Close() })
	l := locker(t, one(client))
	answered(t, l)
	made := func() (n int) {
		for _, admin := range admins {
			n += statistic(t, admin, "total_connections_received")
		}
		return n
	}
	made()                      // the admins connect
	time.Sleep(2 * time.Second) // the backend's own check of each node comes a second after its start
	before := made()
	slow.Store(true)
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		wantEnded(t, "Ping", l.Ping(ctx), context.DeadlineExceeded)
		cancel()
	}
	close(goOn)
	time.Sleep(2 * time.Second)
	if n := made() - before; n >= 5 { // on a busy machine the check may come late
		t.Errorf("5 calls that were given up made %d connections", n)
	}
}
