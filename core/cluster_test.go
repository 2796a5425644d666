package core_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

func TestBackend_RedisCluster(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3)
	b, err := core.Open(core.Clients(cluster.Client()), patient)
	ok(t, "Open", err)
	t.Cleanup(func() { ok(t, "Close", b.(interface{ Close() error }).Close()) })
	testutil.TestBackend(t, func(*testing.T) core.Backend { return b })
}

// CROSSSLOT cannot happen: all keys of a call share a slot, whatever the key is.
func TestFault_CrossSlot(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3)
	l, bare := locker(t, core.Clients(cluster.Client())), locker(t, core.Clients(cluster.Client()), core.WithPrefix(""))
	for _, key := range []string{"a", "{a}", "{", "}", "}{", "a{b}c", "{}", "{}{a}", "a}b{c", "{{a}}", "%7Ba%7D", "订单:42", "a b"} {
		for _, l := range []*core.Locker{l, bare} {
			k, err := l.Acquire(t.Context(), key)
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

// While a slot moves, locks in it work, with the same tokens: with ASK for what has moved, TRYAGAIN while a part has, and MOVED after.
func TestRedisCluster_LocksWhileTheirSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3)
	l, other := locker(t, core.Clients(cluster.Client()), core.WithNodeTimeout(5*time.Second)), locker(t, core.Clients(cluster.Client()), core.WithNodeTimeout(5*time.Second))
	const name = "onelane:{k}"
	k := acquire(t, l, "k")
	from := cluster.Owner(name)
	move := cluster.BeginMove(name, (from+1)%3)
	ok(t, "Extend before the key has moved", k.Extend(t.Context(), time.Minute))
	move.MoveKey(name)
	ok(t, "Extend of a key that has moved", k.Extend(t.Context(), 2*time.Minute))
	taken := make(chan error, 1)
	go func() { // the key has moved, its counter has not
		_, err := other.TryAcquire(t.Context(), "k")
		taken <- err
	}()
	time.Sleep(200 * time.Millisecond)
	move.MoveKey(name + ":fence")
	want(t, "TryAcquire", <-taken, core.ErrTaken)
	ok(t, "Release of a key that has moved", k.Release(t.Context()))
	next := make(chan *core.Lock, 1)
	go func() { next <- acquire(t, other, "k") }() // the counter has moved, the key is not there
	time.Sleep(200 * time.Millisecond)
	move.EndMove()
	again := <-next
	if again.Token() <= k.Token() {
		t.Errorf("token %d after %d", again.Token(), k.Token())
	}
	ok(t, "Release after the move", again.Release(t.Context()))
	ok(t, "Release", acquire(t, l, "k").Release(t.Context())) // by one that learns of the move by MOVED
}

// A redirect is no try that may have had an effect: what is gone, or another's, after one is lost, and not released by it.
func TestRedisCluster_ReleaseAfterARedirectIsExact(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3)
	l, admin := locker(t, core.Clients(cluster.Client())), cluster.Client()
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

// Two contend for a key while its slot is moved to and fro: one at a time, and tokens increase.
func TestRedisCluster_ContendedWhileTheSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3)
	const name = "onelane:{hot}"
	stop := make(chan struct{})
	var all sync.WaitGroup
	n, inside, last := 0, 0, uint64(0)
	for range 2 {
		l := locker(t, core.Clients(cluster.Client()), core.WithNodeTimeout(5*time.Second))
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
				if inside++; inside != 1 || k.Token() <= last {
					t.Errorf("%d inside, token %d after %d", inside, k.Token(), last)
				}
				n, last = n+1, k.Token()
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
	t.Logf("%d locks", n)
}

// Waiters listen on the key's own shard, and only there; also when the slot moves while they wait.
func TestWakeUp_ShardedOnARedisCluster(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3)
	const name, channel = "onelane:{k}", "onelane:{k}:free:s"
	holder, waiter := locker(t, core.Clients(cluster.Client())), locker(t, core.Clients(cluster.Client()))
	listening := func() (shard int, plain bool) {
		shard = -1
		for i, n := range cluster.Nodes {
			client := n.Client()
			if counts, err := client.PubSubShardNumSub(t.Context(), channel).Result(); err == nil && counts[channel] > 0 {
				shard = i
			}
			plain = plain || len(client.PubSubChannels(t.Context(), "*").Val()) > 0
		}
		return shard, plain
	}
	for round, disturb := range []func(){
		func() {},
		func() { // the connection breaks
			for _, n := range cluster.Nodes {
				ok(t, "CLIENT KILL", n.Client().Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err())
			}
		},
		func() { cluster.BeginMove(name, (cluster.Owner(name)+1)%3).EndMove() },
	} {
		k := acquire(t, holder, "k")
		got := make(chan *core.Lock, 1)
		go func() {
			k, err := waiter.Acquire(context.Background(), "k")
			if err != nil {
				t.Error(err)
			}
			got <- k
		}()
		subscribed := func() bool { shard, _ := listening(); return shard == cluster.Owner(name) }
		eventually(t, "the waiter listens on the key's shard", subscribed)
		disturb()
		eventually(t, "the waiter listens again", subscribed)
		if _, plain := listening(); plain {
			t.Error("a channel of the whole cluster is used")
		}
		ok(t, "Release", k.Release(t.Context()))
		start := time.Now()
		k = <-got
		if took := time.Since(start); took > 400*time.Millisecond {
			t.Errorf("round %d: woken %v after the release", round, took)
		}
		ok(t, "Release", k.Release(t.Context()))
	}
	eventually(t, "no subscription is left", func() bool { shard, _ := listening(); return shard == -1 })
}

// Before Redis 7 there is no sharded pub/sub: waiters are told by the plain one.
func TestWakeUp_OnAClusterWithoutShardedPubSub(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3, "--rename-command", "SSUBSCRIBE", "", "--rename-command", "SPUBLISH", "")
	const channel = "onelane:{k}:free:s"
	holder, waiter := locker(t, core.Clients(cluster.Client())), locker(t, core.Clients(cluster.Client()))
	for round := range 2 {
		k := acquire(t, holder, "k")
		got := make(chan *core.Lock, 1)
		go func() {
			k, err := waiter.Acquire(context.Background(), "k")
			if err != nil {
				t.Error(err)
			}
			got <- k
		}()
		if round > 0 { // the first finds out and polls
			eventually(t, "the waiter is subscribed", func() bool {
				n := int64(0)
				for _, node := range cluster.Nodes {
					n += node.Client().PubSubNumSub(t.Context(), channel).Val()[channel]
				}
				return n == 1
			})
		}
		time.Sleep(300 * time.Millisecond)
		ok(t, "Release", k.Release(t.Context()))
		ok(t, "Release", (<-got).Release(t.Context()))
	}
}
