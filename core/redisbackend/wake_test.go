package redisbackend_test

import (
	"bytes"
	"context"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

func TestWatch_WaiterHearsTheRelease(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	holder, waiter := locker(t, one(node.Client())), locker(t, one(node.Client()))
	k := acquire(t, holder, "k")
	counts := node.Commands(t, func() {
		got := acquiring(t, waiter, "k")
		time.Sleep(2 * time.Second)
		ok(t, "Release", k.Release(t.Context()))
		ok(t, "Release", (<-got).Release(t.Context()))
	})
	// The waiter looks about once a second. Polling would take more than 30 tries.
	if n := counts["set"]; n > 15 {
		t.Errorf("%d tries in two seconds of waiting", n)
	}
}

func TestWatch_LostSubscription(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	holder, waiter := locker(t, one(node.Client())), locker(t, one(node.Client()))
	admin := node.Client()
	for range 3 {
		k := acquire(t, holder, "k")
		got := acquiring(t, waiter, "k")
		for range 2 {
			eventually(t, "the waiter is subscribed", func() bool { return subscribers(t, node, "k") == 1 })
			ok(t, "CLIENT KILL", admin.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err())
		}
		ok(t, "Release", k.Release(t.Context())) // nobody hears it
		select {
		case k := <-got:
			ok(t, "Release", k.Release(t.Context()))
		case <-time.After(30 * time.Second):
			t.Fatal("the waiter never woke")
		}
	}
}

func TestWatch_Forbidden(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	ok(t, "ACL", node.Client().Do(t.Context(), "ACL", "SETUSER", "default", "-subscribe", "-publish").Err())
	holder, waiter := locker(t, one(node.Client())), locker(t, one(node.Client()))
	k := acquire(t, holder, "k")
	time.AfterFunc(300*time.Millisecond, func() { _ = k.Release(context.Background()) })
	ok(t, "Release", acquire(t, waiter, "k").Release(t.Context()))
}

// watch subscribes and returns how many signals came so far.
func watch(t *testing.T, b core.Backend, key string) (signals func() int64, stop func()) {
	t.Helper()
	changed, end, err := b.Watch(t.Context(), key)
	ok(t, "Watch", err)
	var n atomic.Int64
	over := make(chan struct{})
	go func() {
		for {
			select {
			case _, open := <-changed:
				if !open {
					return
				}
				n.Add(1)
			case <-over:
				return
			}
		}
	}()
	return n.Load, func() { end(); close(over) }
}

// hole is a proxy that can make the connections that have subscribed go silent without closing them.
type hole struct {
	net.Listener
	silent atomic.Bool
}

func newHole(t *testing.T, target string) *hole {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, "Listen", err)
	h := &hole{Listener: l}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", target)
			if err != nil {
				_ = c.Close()
				return
			}
			var subscribed, dead atomic.Bool
			go h.pass(c, s, &subscribed, &dead, true)
			go h.pass(s, c, &subscribed, &dead, false)
		}
	}()
	return h
}

func (h *hole) pass(from, to net.Conn, subscribed, dead *atomic.Bool, request bool) {
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if request && bytes.Contains(bytes.ToLower(buf[:n]), []byte("subscribe")) && !h.silent.Load() {
			subscribed.Store(true)
		}
		if subscribed.Load() && h.silent.Load() {
			dead.Store(true)
		}
		if dead.Load() {
			continue
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// The other end of a subscription is gone without a word: a master that vanished, a NAT entry that was
// dropped. The connection is replaced, and signals come again.
func TestWatch_HalfOpenSubscription(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	h := newHole(t, node.Addr())
	b := open(t, one(newClient(t, &redis.Options{Addr: h.Addr().String()})))
	heard, stop := watch(t, b, "onelane:{k}")
	defer stop()
	admin := node.Client()
	publish := func() { ok(t, "PUBLISH", admin.Publish(t.Context(), "onelane:{k}:free", "").Err()) }
	eventually(t, "the watcher hears a message", func() bool { publish(); return heard() > 0 })
	h.silent.Store(true)
	time.Sleep(50 * time.Millisecond) // what was under way arrives
	before := heard()
	// A replaced connection signals, too: something may have been missed.
	eventually(t, "the watcher hears a message again", func() bool { publish(); return heard() > before })
	before = heard()
	eventually(t, "the new connection hears messages", func() bool { publish(); return heard() > before+2 })
}

// The same for new keys: each contended Acquire finds the connection replaced.
func TestWatch_HalfOpenSubscriptionNewKeys(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	h := newHole(t, node.Addr())
	holder, waiter := locker(t, one(node.Client())), locker(t, one(newClient(t, &redis.Options{Addr: h.Addr().String()})))
	ok(t, "Release", acquire(t, waiter, "warm").Release(t.Context()))
	// Somebody waits on another key all the time.
	long := acquire(t, holder, "long")
	waiting := acquiring(t, waiter, "long")
	eventually(t, "the waiter is subscribed", func() bool { return subscribers(t, node, "long") == 1 })
	h.silent.Store(true)
	// A wait that nothing ends takes about a second, so three short ones in a row were woken.
	woken := 0
	for i := 0; i < 100 && woken < 3; i++ {
		key := strconv.Itoa(i)
		k := acquire(t, holder, key)
		time.AfterFunc(20*time.Millisecond, func() { _ = k.Release(context.Background()) })
		start := time.Now()
		ok(t, "Release", acquire(t, waiter, key).Release(t.Context()))
		if woken++; time.Since(start) > 500*time.Millisecond {
			woken = 0
		}
	}
	if woken < 3 {
		t.Error("waiters are not woken")
	}
	ok(t, "Release", long.Release(t.Context()))
	ok(t, "Release", (<-waiting).Release(t.Context()))
}

// The connection stays for the next waiter.
func TestWatch_ConnectionLingers(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	admin := node.Client()
	holder, waiter := locker(t, one(node.Client())), locker(t, one(node.Client()))
	subscribed := func(key string, n int64) func() bool {
		name := "onelane:{" + key + "}:free"
		return func() bool { return admin.PubSubNumSub(t.Context(), name).Val()[name] == n }
	}
	contend := func(key string) {
		k := acquire(t, holder, key)
		got := acquiring(t, waiter, key)
		eventually(t, "the waiter is subscribed", subscribed(key, 1))
		ok(t, "Release", k.Release(t.Context()))
		ok(t, "Release", (<-got).Release(t.Context()))
		eventually(t, "the channel is left", subscribed(key, 0))
	}
	connections := func() string {
		info, err := admin.InfoMap(t.Context(), "stats").Result()
		ok(t, "INFO", err)
		return info["Stats"]["total_connections_received"]
	}
	// A connection that stood still for as long as a pong may take is made anew, so a busy machine needs
	// some attempts. Without the linger none succeeds.
	contend("warm")
	kept := 0
	for i := 0; i < 20 && kept < 3; i++ {
		before := connections()
		time.Sleep(700 * time.Millisecond)
		contend(strconv.Itoa(i))
		if kept++; connections() != before {
			kept = 0
		}
	}
	if kept < 3 {
		t.Error("a waiter makes a new connection")
	}
}

// A channel that is left and joined again keeps its subscription, whenever the confirmations come.
func TestWatch_LeftAndJoinedAgain(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	p := newProxy(t, node.Addr())
	b := open(t, one(newClient(t, &redis.Options{Addr: p.Addr().String()})))
	p.late.Store(int64(60 * time.Millisecond))
	admin := node.Client()
	for i := range 20 {
		changed, stop, err := b.Watch(t.Context(), "onelane:{k}")
		ok(t, "Watch", err)
		time.Sleep(time.Duration(i*7) * time.Millisecond) // around the end of the linger
		stop()
		time.Sleep(time.Duration(60+i*7) * time.Millisecond)
		select {
		case _, open := <-changed:
			if !open {
				t.Fatal("the subscription was ended")
			}
		default:
		}
	}
	heard, stop := watch(t, b, "onelane:{k}")
	defer stop()
	eventually(t, "the watcher hears a message", func() bool {
		ok(t, "PUBLISH", admin.Publish(t.Context(), "onelane:{k}:free", "").Err())
		return heard() > 1
	})
}

// betweenContext runs a function when it is first waited for.
type betweenContext struct {
	context.Context
	run func()
}

func (c betweenContext) Done() <-chan struct{} {
	c.run()
	return c.Context.Done()
}

// A subscription that ends while another waiter joins it is no subscription.
func TestWatch_EndsWhileJoined(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	b := open(t, one(node.Client()))
	_, stop := watch(t, b, "onelane:{k}")
	defer stop()
	eventually(t, "the first waiter is subscribed", func() bool { return subscribers(t, node, "k") == 1 })
	ctx := betweenContext{t.Context(), sync.OnceFunc(func() { ok(t, "Close", b.Close()) })}
	changed, stop, err := b.Watch(ctx, "onelane:{k}")
	defer stop()
	if err == nil {
		t.Errorf("Watch returned %v: it never signals and is never closed", changed)
	}
}

// Subscriptions that end at once are made ever more seldom, even if the server confirmed them.
func TestWatch_ShortSubscriptionsBackOff(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	b := open(t, one(node.Client()))
	admin := node.Client()
	_, stop := watch(t, b, "onelane:{k}")
	defer stop()
	counts := node.Commands(t, func() {
		for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			ok(t, "CLIENT KILL", admin.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err())
		}
		eventually(t, "the watcher is subscribed again", func() bool { return subscribers(t, node, "k") == 1 })
	})
	// The pauses are 10, 20, 40 ms and so on. Pauses of 10 ms would make about 60.
	if n := counts["subscribe"]; n == 0 || n > 20 {
		t.Errorf("%d subscriptions in a second", n)
	}
}

// A client with ClusterSlots, such as that of redis.NewFailoverClusterClient, and a plain one wake each
// other.
func TestWake_ClusterClientToldItsSlots(t *testing.T) {
	t.Parallel()
	if redis.NewFailoverClusterClient(&redis.FailoverOptions{}).Options().ClusterSlots == nil { // dials nothing
		t.Error("the client of a Sentinel has no ClusterSlots")
	}
	node := testutil.Redis(t)
	told := redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
		return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: node.Addr()}}}}, nil
	}})
	t.Cleanup(func() { _ = told.Close() })
	l := []*core.Locker{locker(t, one(node.Client())), locker(t, one(told))}
	for i, holder := range l {
		k := acquire(t, holder, "k")
		got := acquiring(t, l[1-i], "k")
		eventually(t, "the waiter listens to the plain channel", func() bool { return subscribers(t, node, "k") == 1 })
		counts := node.Commands(t, func() { ok(t, "Release", k.Release(t.Context())) })
		if counts["publish"] == 0 || counts["spublish"] > 0 {
			t.Errorf("locker %d sends to another channel: %v", i, counts)
		}
		ok(t, "Release", (<-got).Release(t.Context()))
		eventually(t, "nobody listens", func() bool { return subscribers(t, node, "k") == 0 })
	}
}
