package core_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
	"github.com/redis/go-redis/v9"
)

func TestOwner_SaysWhoHoldsTheKey(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	l := locker(t, core.Clients(client), core.WithInstance("shop-7"))
	k := acquire(t, l, "stock:42", core.WithTag("tag"))
	owner, err := client.Get(t.Context(), "onelane:{stock:42}").Result()
	ok(t, "GET", err)
	if !strings.HasPrefix(owner, "shop-7/") || !strings.HasSuffix(owner, "#tag") || owner != k.Owner() {
		t.Errorf("the key holds %q, Owner is %q", owner, k.Owner())
	}
	st, err := l.Inspect(t.Context(), "stock:42")
	if err != nil || st.Owner != owner || st.Token != k.Token() {
		t.Errorf("Inspect = %+v, %v", st, err)
	}
	other := acquire(t, l, "other", core.WithTag("tag"))
	if other.Owner() == owner {
		t.Error("two leases have one owner text")
	}
}

func TestEveryKeyHasAnExpiry(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	l := locker(t, core.Clients(client))
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

func TestForeignValue_IsAnErrorThatSaysSo(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	l := locker(t, core.Clients(client))
	ok(t, "LPUSH", client.LPush(t.Context(), "onelane:{k}", "x").Err())
	_, err := l.Acquire(t.Context(), "k")
	want(t, "Acquire", err, core.ErrInvalidKey)
	if !strings.Contains(err.Error(), "another type") || !strings.Contains(err.Error(), `{k}`) {
		t.Errorf("the error does not say so: %v", err)
	}
	k := acquire(t, l, "overwritten")
	ok(t, "DEL", client.Del(t.Context(), "onelane:{overwritten}").Err())
	ok(t, "LPUSH", client.LPush(t.Context(), "onelane:{overwritten}", "x").Err())
	want(t, "Release", k.Release(t.Context()), core.ErrLost)
}

func TestForeignKeyWithoutExpiry_DoesNotSpin(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	client := node.Client()
	l := locker(t, core.Clients(client))
	ok(t, "SET", client.Set(t.Context(), "onelane:{k}", "somebody", 0).Err())
	counts := node.Commands(t, func() {
		_, err := l.Acquire(t.Context(), "k", core.WithWait(time.Second))
		want(t, "Acquire", err, core.ErrTaken)
	})
	if n := counts["evalsha"]; n > 40 {
		t.Errorf("%d tries in a second", n)
	}
}

func TestScriptFlush_IsInvisible(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	for name, b := range map[string]core.Backend{"client": core.Clients(node.Client()), "pool": core.Pools(node.Pool())} {
		l := locker(t, b)
		k := acquire(t, l, name)
		ok(t, "SCRIPT FLUSH", node.Client().ScriptFlush(t.Context()).Err())
		ok(t, "Extend", k.Extend(t.Context(), time.Minute))
		ok(t, "SCRIPT FLUSH", node.Client().ScriptFlush(t.Context()).Err())
		ok(t, "Release", k.Release(t.Context()))
	}
}

// hung is how long a call may take beyond its context's deadline: 100 ms, and what a busy test machine adds.
const hung = 500 * time.Millisecond

func TestStoppedServer_CallsReturnByTheirDeadline(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testutil.Node) core.Backend{
		"client": func(n *testutil.Node) core.Backend { return core.Clients(n.Client()) },
		"pool":   func(n *testutil.Node) core.Backend { return core.Pools(n.Pool()) },
		"fresh connection": func(n *testutil.Node) core.Backend {
			client := redis.NewClient(&redis.Options{Addr: n.Addr()})
			t.Cleanup(func() { _ = client.Close() })
			return core.Clients(client)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := testutil.Redis(t)
			l := locker(t, open(node))
			var k *core.Lock
			if name != "fresh connection" {
				k = acquire(t, l, "held")
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
				wantEnded(t, what, err, context.DeadlineExceeded)
				if errors.Is(err, core.ErrTaken) {
					t.Errorf("%s: %v matches ErrTaken", what, err)
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

func TestStoppedServer_NodeTimeoutBoundsCallsWithoutADeadline(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	l := locker(t, core.Clients(node.Client()), core.WithNodeTimeout(100*time.Millisecond))
	node.Stop()
	defer node.Cont()
	start := time.Now()
	_, err := l.Acquire(context.Background(), "k")
	want(t, "Acquire", err, core.ErrUnavailable)
	if took := time.Since(start); took > 100*time.Millisecond+hung {
		t.Errorf("took %v with a time-out of 100 ms", took)
	}
}

func TestContextEndsInTheMiddleOfAnAcquire_NothingStaysHeld(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testutil.Node) core.Backend{
		"client": func(n *testutil.Node) core.Backend { return core.Clients(n.Client()) },
		"pool":   func(n *testutil.Node) core.Backend { return core.Pools(n.Pool()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := testutil.Redis(t)
			l := locker(t, open(node))
			ok(t, "Release", acquire(t, l, "k").Release(t.Context())) // connected
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

func TestKilledServer_IsUnavailableAndComesBack(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	l := locker(t, core.Clients(node.Client()))
	k := acquire(t, l, "k", core.WithTTL(600*time.Millisecond))
	node.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // the client dials for half a second
	defer cancel()
	_, err := l.Acquire(ctx, "other")
	want(t, "Acquire", err, core.ErrUnavailable)
	select {
	case <-k.Context().Done():
		want(t, "cause", context.Cause(k.Context()), core.ErrLost)
	case <-time.After(10 * time.Second):
		t.Error("the loss was never told")
	}
	node.Restart()
	eventually(t, "locks are granted again", func() bool {
		k, err := l.TryAcquire(context.Background(), "k")
		return err == nil && k.Release(context.Background()) == nil
	})
}

func TestOutOfMemory_HoldersCanStillRenewSealAndRelease(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	l := locker(t, core.Clients(node.Client()))
	a, b := acquire(t, l, "a"), acquire(t, l, "b")
	ok(t, "CONFIG SET", node.Client().ConfigSet(t.Context(), "maxmemory", "1").Err())
	ok(t, "Extend", a.Extend(t.Context(), time.Minute))
	ok(t, "Release", a.Release(t.Context()))
	ok(t, "Seal", b.Seal(t.Context(), []byte("v"), time.Minute))
	_, err := l.TryAcquire(t.Context(), "b")
	want(t, "TryAcquire", err, core.ErrSealed)
}

func TestRenewal_DoesNotWaitForTheApplicationsConnections(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	client := redis.NewClient(&redis.Options{Addr: node.Addr(), PoolSize: 1})
	t.Cleanup(func() { _ = client.Close() })
	l := locker(t, core.Clients(client))
	k := acquire(t, l, "k", core.WithTTL(time.Second))
	busy := make(chan struct{})
	go func() {
		defer close(busy)
		client.BLPop(context.Background(), 3*time.Second, "nothing")
	}()
	<-busy
	ok(t, "Err after three seconds without a free connection", k.Err())
	ok(t, "Release", k.Release(t.Context()))
}

// A waiter that looks in the last millisecond of a lease is told of that, and not that the key never expires.
func TestAboutToExpire_IsNotTakenForNoExpiry(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	b := core.Clients(client)
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		ok(t, "SET", client.Set(t.Context(), "k", "somebody", 2*time.Millisecond).Err())
		for range 10 {
			_, err := b.Acquire(t.Context(), "k", "me", time.Millisecond)
			var taken *core.TakenError
			if !errors.As(err, &taken) {
				break
			}
			if taken.RetryAfter <= 0 {
				t.Fatal("a key about to expire looks like one without expiry")
			}
			if taken.RetryAfter == time.Millisecond && client.PTTL(t.Context(), "k").Val() == 0 {
				return // it was the last millisecond
			}
		}
	}
	t.Fatal("never saw the last millisecond of a key")
}

func TestHolderKilled_TakeoverWithinTheTTL(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	child := startChild(t, "HOLD="+node.Addr())
	l := locker(t, core.Clients(node.Client()))
	eventually(t, "the child holds the key", func() bool { return status(t, l, "k") == core.Held })
	ok(t, "kill -9", child.Process.Kill())
	_ = child.Wait()
	start := time.Now()
	k := acquire(t, l, "k")
	if took := time.Since(start); took > childTTL+time.Second {
		t.Errorf("took over after %v, the TTL is %v", took, childTTL)
	}
	ok(t, "Release", k.Release(t.Context()))
}

const childTTL = time.Second

// hold is what the child process does: it holds a key, renewing it, until it is killed.
func hold(addr string) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	l, err := core.New(core.Clients(client), core.WithTTL(childTTL))
	if err == nil {
		_, err = l.Acquire(context.Background(), "k")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	select {}
}

func TestNew_RefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = c.Close() })
	for name, b := range map[string]core.Backend{
		"no backend": nil, "no client": core.Clients(), "a nil client": core.Clients(nil), "two clients": core.Clients(c, c),
		"no pool": core.Pools(), "a nil pool": core.Pools(nil), "two pools": core.Pools(goredis.NewPool(c), goredis.NewPool(c)),
	} {
		if _, err := core.New(b); err == nil {
			t.Errorf("New accepted %s", name)
		}
	}
	for name, o := range map[string]core.Option{
		"TTL 0": core.WithTTL(0), "negative wait": core.WithWait(-1), "max hold 0": core.WithMaxHold(0),
		"prefix with braces": core.WithPrefix("a{"), "instance with /": core.WithInstance("a/b"), "no instance": core.WithInstance(""),
		"negative node time-out": core.WithNodeTimeout(-1),
	} {
		if _, err := core.New(testutil.Memory(), o); err == nil {
			t.Errorf("New accepted %s", name)
		}
	}
	if _, err := core.New(testutil.Memory(), nil, core.WithLogger(nil)); err != nil {
		t.Errorf("nil options are not ignored: %v", err)
	}
}

// A fence counter that is none: the lock is refused, what is there stays, and the key is not left locked.
func TestFenceCounterOfAnotherKind_IsRefusedAndStays(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	l := locker(t, core.Clients(client))
	ok(t, "LPUSH", client.LPush(t.Context(), "onelane:{list}:fence", "x").Err())
	ok(t, "SET", client.Set(t.Context(), "onelane:{text}:fence", "not a number", 0).Err())
	for _, key := range []string{"list", "text"} {
		_, err := l.Acquire(t.Context(), key)
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

// Before Redis 6.2 SET has no GET. The script does the same there.
func TestAcquire_BeforeRedis62(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	const old = `
local redis = {call = redis.call, error_reply = redis.error_reply, pcall = function(...)
  local args = {...}
  return args[#args] == 'GET' and {err = 'ERR syntax error'} or redis.pcall(...)
end}
`
	keys := []string{"{k}", "{k}:fence"}
	last := int64(0)
	for i := range 5 {
		answer, err := client.Eval(t.Context(), old+core.Scripts["acquire"], keys, "o", 60_000, 3_660_000).Slice()
		ok(t, "EVAL", err)
		token, err := strconv.ParseInt(fmt.Sprint(answer[1]), 10, 64)
		ok(t, "the token", err)
		if answer[0] != int64(1) || token < last+core.TokenBlock || client.Get(t.Context(), keys[1]).Val() != fmt.Sprint(token) {
			t.Errorf("%d: %v after %d", i, answer, last)
		}
		if left := client.PTTL(t.Context(), keys[1]).Val(); left < time.Hour {
			t.Errorf("%d: the counter lives for %v", i, left)
		}
		last = token
		ok(t, "DEL", client.Del(t.Context(), keys[0]).Err())
		if i == 2 { // as if the clock were set back: the counter goes on
			last += int64(time.Hour / time.Microsecond)
			ok(t, "SET", client.Set(t.Context(), keys[1], last, time.Hour).Err())
		}
	}
}
