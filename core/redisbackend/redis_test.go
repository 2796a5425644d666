package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

func TestOwner_InRedis(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	l := locker(t, one(client), core.WithInstance("shop-7"))
	k := acquire(t, l, "stock:42", core.WithTag("tag"))
	owner, err := client.Get(t.Context(), "onelane:{stock:42}").Result()
	ok(t, "GET", err)
	if !strings.HasPrefix(owner, "shop-7/") || !strings.HasSuffix(owner, "#tag") || owner != k.Owner() {
		t.Errorf("the key holds %q, Owner is %q", owner, k.Owner())
	}
	st, err := l.Inspect(t.Context(), "stock:42")
	if err != nil || st.Owner != owner {
		t.Errorf("Inspect = %+v, %v", st, err)
	}
}

func TestKeys_AllExpire(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	l := locker(t, one(client), core.WithToken())
	ctx := t.Context()
	acquire(t, l, "held")
	ok(t, "Release", acquire(t, l, "released").Release(ctx))
	ok(t, "Seal", acquire(t, l, "sealed").Seal(ctx, nil, time.Minute))
	ok(t, "Seal", acquire(t, l, "unsealed").Seal(ctx, nil, time.Minute))
	ok(t, "Unseal", l.Unseal(ctx, "unsealed"))
	keys, err := client.Keys(ctx, "*").Result()
	if err != nil || len(keys) < 6 {
		t.Fatalf("keys %q, %v", keys, err)
	}
	for _, key := range keys {
		if ttl := client.PTTL(ctx, key).Val(); ttl <= 0 || ttl > 2*time.Hour {
			t.Errorf("%s expires in %v", key, ttl)
		}
	}
}

func TestForeignValue(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	l := locker(t, one(client))
	ok(t, "LPUSH", client.LPush(t.Context(), "onelane:{k}", "x").Err())
	for _, opts := range [][]core.AcquireOption{nil, {core.WithToken()}} {
		_, err := l.Acquire(t.Context(), "k", opts...)
		want(t, "Acquire", err, core.ErrInvalidKey)
		if !strings.Contains(err.Error(), "another type") || !strings.Contains(err.Error(), `{k}`) {
			t.Errorf("the error hides the cause: %v", err)
		}
	}
	k := acquire(t, l, "overwritten")
	ok(t, "DEL", client.Del(t.Context(), "onelane:{overwritten}").Err())
	ok(t, "LPUSH", client.LPush(t.Context(), "onelane:{overwritten}", "x").Err())
	want(t, "Release", k.Release(t.Context()), core.ErrLost)
}

func TestForeignValue_WithoutExpiryDoesNotSpin(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	l := locker(t, one(node.Client()))
	ok(t, "SET", node.Client().Set(t.Context(), "onelane:{k}", "somebody", 0).Err())
	var counts map[string]int64
	eventually(t, "an answer", func() (answered bool) { // a busy machine may be too late for the first one
		counts = node.Commands(t, func() {
			_, err := l.Acquire(t.Context(), "k", core.WithWait(time.Second))
			if answered = !errors.Is(err, core.ErrUnavailable); answered {
				want(t, "Acquire", err, core.ErrTaken)
			}
		})
		return answered
	})
	if n := counts["set"]; n > 40 {
		t.Errorf("%d tries in a second", n)
	}
}

func TestScripts_Flushed(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	for name, b := range map[string]core.Opener{"client": one(node.Client()), "pool": pooled(node.Pool())} {
		l := locker(t, b)
		k := acquire(t, l, name)
		ok(t, "SCRIPT FLUSH", node.Client().ScriptFlush(t.Context()).Err())
		ok(t, "Extend", k.Extend(t.Context(), time.Minute))
		ok(t, "SCRIPT FLUSH", node.Client().ScriptFlush(t.Context()).Err())
		ok(t, "Release", k.Release(t.Context()))
	}
}

// hung is how long a call may take beyond its context's deadline on a busy machine. It is less than
// the time-out of one and pooled.
const hung = 4 * time.Second

func TestNode_HungReturnsByTheDeadline(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testutil.Node) core.Opener{
		"client":           func(n *testutil.Node) core.Opener { return one(n.Client()) },
		"pool":             func(n *testutil.Node) core.Opener { return redisbackend.Pools(n.Pool()) },
		"fresh connection": func(n *testutil.Node) core.Opener { return one(n.Client()) },
		// go-redis takes -2 for "no deadlines at all".
		"ReadTimeout -2": func(n *testutil.Node) core.Opener {
			return one(newClient(t, &redis.Options{Addr: n.Addr(), ReadTimeout: -2, WriteTimeout: -2}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := testutil.Redis(t)
			l := locker(t, open(node))
			var k *core.Lock
			if name != "fresh connection" {
				k = acquire(t, l, "held", core.WithTTL(time.Minute))
			}
			node.Stop()
			defer node.Cont()
			bounded := func(what string, call func(ctx context.Context) error) {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				defer cancel()
				start := time.Now()
				err := call(ctx)
				if took := time.Since(start); took > 200*time.Millisecond+hung {
					t.Errorf("%s took %v with a deadline of 200 ms", what, took)
				}
				// Once the node is known to hang, a call fails before its deadline.
				if !errors.Is(err, core.ErrUnavailable) || name == "pool" {
					wantEnded(t, what, err, context.DeadlineExceeded)
				}
			}
			bounded("Acquire", func(ctx context.Context) error { _, err := l.Acquire(ctx, "k"); return err })
			bounded("TryAcquire", func(ctx context.Context) error { _, err := l.TryAcquire(ctx, "k2"); return err })
			bounded("Inspect", func(ctx context.Context) error { _, err := l.Inspect(ctx, "k"); return err })
			if k != nil {
				bounded("Extend", func(ctx context.Context) error { return k.Extend(ctx, time.Minute) })
				bounded("Seal", func(ctx context.Context) error { return k.Seal(ctx, nil, time.Minute) })
				bounded("Release", k.Release)
			}
		})
	}
}

func TestAcquire_ContextEndsMidCall(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testutil.Node) core.Opener{
		"client": func(n *testutil.Node) core.Opener { return one(n.Client()) },
		"pool":   func(n *testutil.Node) core.Opener { return pooled(n.Pool()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := testutil.Redis(t)
			l := locker(t, open(node))
			ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
			node.Stop()
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, err := l.Acquire(ctx, "k", core.WithTTL(time.Minute))
			wantEnded(t, "Acquire", err, context.DeadlineExceeded)
			node.Cont()
			eventually(t, "the key is free long before its TTL", func() bool { return status(t, l, "k") == core.Free })
		})
	}
}

func TestNode_KilledAndRestarted(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	l := locker(t, one(node.Client()), core.WithOutageWait(0))
	k := acquire(t, l, "k", core.WithTTL(2*time.Second), core.WithOutageWait(30*time.Second))
	node.Kill()
	_, err := l.Acquire(t.Context(), "other")
	want(t, "Acquire", err, core.ErrUnavailable)
	select {
	case <-k.Context().Done():
		want(t, "cause", context.Cause(k.Context()), core.ErrLost)
	case <-time.After(time.Minute):
		t.Error("the holder was not told of the loss")
	}
	node.Restart()
	eventually(t, "locks are granted again", func() bool {
		k, err := l.TryAcquire(context.Background(), "k")
		return err == nil && k.Release(context.Background()) == nil
	})
}

func TestNode_OutOfMemory(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	l := locker(t, one(node.Client()), core.WithOutageWait(0))
	a, b := acquire(t, l, "a"), acquire(t, l, "b")
	ok(t, "CONFIG SET", node.Client().ConfigSet(t.Context(), "maxmemory", "1").Err())
	ok(t, "Extend", a.Extend(t.Context(), time.Minute))
	_, err := l.TryAcquire(t.Context(), "a", core.WithTag("second"))
	want(t, "TryAcquire of a held key", err, core.ErrTaken)
	ok(t, "Release", a.Release(t.Context()))
	ok(t, "Seal", b.Seal(t.Context(), []byte("v"), time.Minute))
	for _, opts := range [][]core.AcquireOption{nil, {core.WithToken()}} {
		_, err := l.TryAcquire(t.Context(), "b", opts...)
		want(t, "TryAcquire of a sealed key", err, core.ErrSealed)
		_, err = l.TryAcquire(t.Context(), "free", opts...)
		want(t, "TryAcquire of a free key", err, core.ErrUnavailable)
	}
}

func TestHolderKilled_TakeoverWithinTTL(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	child := startChild(t, "HOLD="+node.Addr())
	l := locker(t, one(node.Client()))
	eventually(t, "the child holds the key", func() bool { return status(t, l, "k") == core.Held })
	ok(t, "kill -9", child.Process.Kill())
	_ = child.Wait()
	left, err := node.Client().PTTL(t.Context(), "onelane:{k}").Result()
	if ok(t, "PTTL", err); left > childTTL || left == -1 { // -1: forever
		t.Errorf("the key of a dead holder stays for %v", left)
	}
	k, err := l.Acquire(t.Context(), "k", core.WithWait(check.Patience))
	ok(t, "Acquire", err)
	ok(t, "Release", k.Release(t.Context()))
}

const childTTL = time.Second

// hold is what the child process does: it holds a key, and renews it, until it is killed. If a busy
// machine loses the lock, it takes it again.
func hold(addr string) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	l, err := core.New(one(client), core.WithTTL(childTTL))
	for err == nil {
		var k *core.Lock
		if k, err = l.Acquire(context.Background(), "k"); err == nil {
			<-k.Context().Done()
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func TestNew_Refuses(t *testing.T) {
	t.Parallel()
	c := newClient(t, &redis.Options{Addr: "127.0.0.1:1"})
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	t.Cleanup(func() { _ = ring.Close() })
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	t.Cleanup(func() { _ = cluster.Close() })
	pool := goredis.NewPool(c)
	for name, b := range map[string]redisbackend.Config{
		"no client": redisbackend.New(), "nil": one(nil), "a nil client": one((*redis.Client)(nil)),
		"a nil cluster": one((*redis.ClusterClient)(nil)), "two clients": redisbackend.New(c, c),
		"no pool": redisbackend.Pools(), "a nil pool": redisbackend.Pools(nil), "two pools": redisbackend.Pools(pool, pool),
		"one client three times": redisbackend.New(c, c, c), "a Ring": one(ring),
		"a wrapped client":      one(struct{ redis.UniversalClient }{c}),
		"a cluster in a quorum": redisbackend.New(c, cluster, c),
		"both":                  {Clients: one(c).Clients, Pools: redisbackend.Pools(pool).Pools},
		"a negative time-out":   {Clients: one(c).Clients, NodeTimeout: -1},
	} {
		if _, err := core.New(b); err == nil || !strings.Contains(err.Error(), "redisbackend: ") {
			t.Errorf("New on %s: %v", name, err)
		}
	}
}

func TestToken_ForeignCounter(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	l := locker(t, one(client), core.WithOutageWait(0))
	ok(t, "LPUSH", client.LPush(t.Context(), "onelane:{list}:fence", "x").Err())
	ok(t, "SET", client.Set(t.Context(), "onelane:{text}:fence", "not a number", 0).Err())
	for _, key := range []string{"list", "text"} {
		_, err := l.Acquire(t.Context(), key, core.WithToken())
		if err == nil || errors.Is(err, core.ErrTaken) || !strings.Contains(err.Error(), key) {
			t.Errorf("Acquire of %q: %v", key, err)
		}
		if n := client.Exists(t.Context(), "onelane:{"+key+"}").Val(); n != 0 {
			t.Errorf("%q is locked nevertheless", key)
		}
	}
	if n := client.LLen(t.Context(), "onelane:{list}:fence").Val(); n != 1 {
		t.Errorf("the list has %d elements", n)
	}
	if s := client.Get(t.Context(), "onelane:{text}:fence").Val(); s != "not a number" {
		t.Errorf("the text is %q", s)
	}
}
