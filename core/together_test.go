package core_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// crowd has many callers take a lock of their own and give it back, again and again; each tells what else it has to ask, or nil.
func crowd(t *testing.T, l *core.Locker, callers, each int, also func(i int)) {
	t.Helper()
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for range each {
				k, err := l.Acquire(t.Context(), fmt.Sprintf("k%d", i))
				if err == nil {
					err = k.Extend(t.Context(), time.Minute)
				}
				if err == nil {
					err = k.Release(t.Context())
				}
				if err != nil {
					t.Errorf("k%d: %v", i, err)
					return
				}
				if also != nil {
					also(i)
				}
			}
		})
	}
	all.Wait()
}

func TestPipelined_CallsOfOneVerbAreOneScript(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	l := locker(t, core.Clients(node.Client()), core.Pipelined())
	crowd(t, l, 100, 5, nil) // it learns that it may
	counts := node.Commands(t, func() { crowd(t, l, 100, 20, nil) })
	if n := counts["evalsha"]; n == 0 || n > 3*100*20/3 {
		t.Errorf("%d scripts for %d calls", n, 3*100*20)
	}
}

// Leases that are due at the same time are renewed by few scripts, also without Pipelined.
func TestRenewals_AreOneScript(t *testing.T) {
	t.Parallel()
	const locks = 300
	node := testutil.Redis(t)
	l := locker(t, core.Clients(node.Client()), core.WithTTL(6*time.Second))
	held := make([]*core.Lock, locks)
	for i := range held {
		held[i] = acquire(t, l, fmt.Sprintf("k%d", i))
	}
	renew := func() { // all are due while Redis hangs
		time.Sleep(1800 * time.Millisecond)
		node.Stop()
		time.Sleep(500 * time.Millisecond)
		node.Cont()
		time.Sleep(300 * time.Millisecond)
	}
	renew() // it learns that it may
	counts := node.Commands(t, renew)
	if n := counts["pexpire"]; n < locks || counts["evalsha"] > n/5 {
		t.Errorf("%d renewals took %d scripts", n, counts["evalsha"])
	}
	for i, k := range held {
		if err := k.Release(t.Context()); err != nil {
			t.Errorf("Release of k%d: %v", i, err)
		}
	}
}

// What one caller asks for does not spoil the others' answers: neither a key of another type, nor one that the user may not touch, nor
// scripts that Redis has forgotten.
func TestPipelined_EachHasItsOwnAnswer(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	admin := node.Client()
	ok(t, "ACL SETUSER", admin.Do(t.Context(), "ACL", "SETUSER", "some", "on", ">secret", "~onelane:{k*", "~onelane:{list*", "&onelane:*", "+@all").Err())
	client := redis.NewClient(&redis.Options{Addr: node.Addr(), Username: "some", Password: "secret"})
	t.Cleanup(func() { _ = client.Close() })
	l := locker(t, core.Clients(client), core.Pipelined())
	ok(t, "LPUSH", admin.LPush(t.Context(), "onelane:{list}", "x").Err())
	held := acquire(t, locker(t, core.Clients(admin)), "k:held")
	var asked [4]atomic.Int64
	counts := node.Commands(t, func() {
		crowd(t, l, 100, 20, func(i int) {
			asked[i%4].Add(1)
			var err error
			switch i % 4 {
			case 0:
				if _, err = l.TryAcquire(t.Context(), "list"); !errors.Is(err, core.ErrInvalidKey) {
					t.Errorf("a list: %v", err)
				}
				name := fmt.Sprintf("k:overwritten:%d", i)
				k := acquire(t, l, name)
				ok(t, "DEL", admin.Del(t.Context(), "onelane:{"+name+"}").Err())
				ok(t, "LPUSH", admin.LPush(t.Context(), "onelane:{"+name+"}", "x").Err())
				want(t, "Release of a list", k.Release(t.Context()), core.ErrLost)
				ok(t, "DEL", admin.Del(t.Context(), "onelane:{"+name+"}").Err())
			case 1:
				if _, err = l.TryAcquire(t.Context(), core.Join("forbidden", strconv.Itoa(i))); !errors.Is(err, core.ErrUnavailable) || !strings.Contains(err.Error(), "NOPERM") {
					t.Errorf("a key that is not allowed: %v", err)
				}
			case 2:
				if _, err = l.TryAcquire(t.Context(), "k:held"); !errors.Is(err, core.ErrTaken) {
					t.Errorf("a lock that is taken: %v", err)
				}
			default:
				if asked[3].Load()%50 == 0 {
					err = admin.ScriptFlush(t.Context()).Err()
				}
				if err != nil {
					t.Errorf("SCRIPT FLUSH: %v", err)
				}
			}
		})
	})
	ok(t, "Release", held.Release(t.Context()))
	if n := counts["evalsha"]; n > 6000 {
		t.Errorf("%d scripts: they were not put together, and this shows nothing", n)
	}
	keys, err := admin.Keys(t.Context(), "onelane:{*}").Result()
	ok(t, "KEYS", err)
	if len(keys) != 1 {
		t.Errorf("left behind: %q", keys)
	}
}

// shardingProxy answers as one Redis and gives each call to the master of its first key, as twemproxy and Envoy do.
func shardingProxy(t *testing.T, masters ...*testutil.Node) (client *redis.Client, master func(key string) *redis.Client) {
	t.Helper()
	clients := make([]*redis.Client, len(masters))
	for i, n := range masters {
		clients[i] = n.Client()
	}
	master = func(key string) *redis.Client {
		h := fnv.New32a()
		_, _ = h.Write([]byte(strings.TrimSuffix(key, ":fence")))
		return clients[h.Sum32()%uint32(len(clients))]
	}
	s, err := server.NewServer("127.0.0.1:0")
	ok(t, "a proxy", err)
	t.Cleanup(s.Close)
	forward := func(p *server.Peer, verb string, args []string) {
		all := []any{verb}
		for _, a := range args {
			all = append(all, a)
		}
		v, err := master(args[2]).Do(context.Background(), all...).Result()
		if err != nil {
			p.WriteError(err.Error())
			return
		}
		p.Block(func(w *server.Writer) { write(w, v) })
	}
	for _, verb := range []string{"EVAL", "EVALSHA"} {
		ok(t, verb, s.Register(verb, forward))
	}
	client = redis.NewClient(&redis.Options{Addr: s.Addr().String(), Protocol: 2, DisableIdentity: true})
	t.Cleanup(func() { _ = client.Close() })
	return client, master
}

func write(w *server.Writer, v any) {
	switch v := v.(type) {
	case nil:
		w.WriteNull()
	case int64:
		w.WriteInt(int(v))
	case string:
		w.WriteBulk(v)
	case []any:
		w.WriteLen(len(v))
		for _, e := range v {
			write(w, e)
		}
	}
}

// A script for many locks would take all but the first on the wrong master there.
func TestPipelined_BehindAShardingProxyEachLockIsOnItsMaster(t *testing.T) {
	t.Parallel()
	proxy, master := shardingProxy(t, testutil.Redis(t), testutil.Redis(t))
	l := locker(t, core.Clients(proxy), core.Pipelined())
	crowd(t, l, 100, 5, nil)
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			for range 5 {
				name := fmt.Sprintf("k%d", i)
				k, err := l.Acquire(t.Context(), name)
				if err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				if n := master("onelane:{"+name+"}").Exists(t.Context(), "onelane:{"+name+"}").Val(); n != 1 {
					t.Errorf("%s is locked, but not on its master", name)
				}
				if err := k.Release(t.Context()); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
		})
	}
	all.Wait()
}

// A *redis.Client of one node of a Redis Cluster has keys of many slots: one script for several is refused with CROSSSLOT. That is found out
// by one question, not by one with every batch, and each lock stays a script of its own.
func TestPipelined_OnANodeOfAClusterEachCallGoesByItself(t *testing.T) {
	t.Parallel()
	node := testutil.RedisCluster(t, 1).Nodes[0] // with all slots
	l := locker(t, core.Clients(node.Client()), core.Pipelined())
	const callers, each = 100, 20
	counts := node.Commands(t, func() { crowd(t, l, callers, each, nil) })
	if calls := counts["evalsha"]; calls < 3*callers*each {
		t.Errorf("%d scripts for %d calls: some were put together", calls, 3*callers*each)
	}
	// EVAL loads a script that Redis does not know, once for each of several callers, and asks once whether scripts may have many keys.
	refused, err := node.Client().InfoMap(t.Context(), "errorstats").Result()
	ok(t, "INFO", err)
	if n := refused["Errorstats"]["errorstat_CROSSSLOT"]; n != "count=1" {
		t.Errorf("CROSSSLOT was answered with %q, want once", n)
	}
}
