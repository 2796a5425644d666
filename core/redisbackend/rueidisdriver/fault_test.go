package rueidisdriver_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/core/redisbackend/rueidisdriver"
	"github.com/onelane/onelane/testutil"
)

// soon is far more than the node time-out of these tests. It is less than the time after which
// rueidis notices by itself that a connection is silent, see client.
const soon = 30 * time.Second

func quick(b redisbackend.Config) redisbackend.Config {
	b.NodeTimeout, b.NewInstallation = time.Second, true
	return b
}

// retried lets an Acquire before the fault try again on a busy machine.
var retried = core.WithOutageWait(30 * time.Second)

// A server that is gone fails calls in time, ends the locks that it held, and is used again when it is
// back.
func TestFault_Killed(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	l := locker(t, quick(rueidisdriver.New(single(t, node.Addr()))), core.WithOutageWait(0), core.WithTTL(2*time.Second))
	k := acquire(t, l, "held", retried)
	node.Kill()
	inTime(t, "Acquire", func() {
		_, err := l.Acquire(t.Context(), "k")
		want(t, "Acquire", err, core.ErrUnavailable)
	})
	<-k.Context().Done()
	want(t, "cause", context.Cause(k.Context()), core.ErrLost)
	node.Restart()
	eventually(t, "locks are granted again", func() bool {
		k, err := l.Acquire(t.Context(), "k")
		return err == nil && k.Release(t.Context()) == nil
	})
}

// A server that hangs fails all calls in time, also more calls than a connection takes. When it
// goes on, the commands that it runs late leave no lock behind.
func TestFault_Stopped(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	l := locker(t, quick(rueidisdriver.New(single(t, node.Addr()))), core.WithOutageWait(0), core.WithTTL(time.Minute))
	held := acquire(t, l, "held", core.WithTTL(2*time.Second), retried)
	_ = acquire(t, l, "warm-up", retried).Release(t.Context())
	node.Stop()
	t.Cleanup(node.Cont)
	inTime(t, "Acquire", func() {
		var all sync.WaitGroup
		for i := range 1500 {
			all.Go(func() {
				if _, err := l.Acquire(t.Context(), fmt.Sprint("k", i)); !errors.Is(err, core.ErrUnavailable) {
					t.Errorf("Acquire: %v", err)
				}
			})
		}
		all.Wait()
	})
	<-held.Context().Done()
	want(t, "cause", context.Cause(held.Context()), core.ErrLost)
	node.Cont()
	admin := node.Client()
	eventually(t, "locks are granted again, and nothing stays", func() bool {
		k, err := l.Acquire(t.Context(), "k")
		return err == nil && k.Release(t.Context()) == nil && admin.DBSize(t.Context()).Val() == 0
	})
}

// inTime fails if a call exceeds the node time-out.
func inTime(t *testing.T, what string, call func()) {
	t.Helper()
	began := time.Now()
	call()
	if took := time.Since(began); took > soon {
		t.Errorf("%s took %v", what, took)
	}
}

// A connection that goes silent is replaced as soon as a call on it was given up, and not when rueidis
// notices.
func TestFault_SilentConnection(t *testing.T) {
	t.Parallel()
	var silent atomic.Bool
	node := testutil.Redis(t)
	c := client(t, rueidis.ClientOption{InitAddress: []string{node.Addr()}, DisableCache: true, AlwaysPipelining: true,
		DialCtxFn: func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			wire, err := d.DialContext(ctx, "tcp", addr)
			if err != nil {
				return nil, err
			}
			return &hole{Conn: wire, silent: &silent, born: silent.Load()}, nil
		}})
	l := locker(t, quick(rueidisdriver.New(c)), core.WithTTL(30*time.Second), core.WithOutageWait(0))
	eventually(t, "locks are granted", func() bool {
		return acquire(t, l, "k", retried).Release(t.Context()) == nil
	})
	silent.Store(true)
	inTime(t, "a new connection", func() {
		eventually(t, "locks are granted again", func() bool {
			k, err := l.Acquire(t.Context(), "k")
			return err == nil && k.Release(t.Context()) == nil
		})
	})
}

// hole is a connection on which nothing comes after silent, if it was made before.
type hole struct {
	net.Conn
	silent *atomic.Bool
	born   bool
}

func (h *hole) Read(b []byte) (int, error) {
	for {
		n, err := h.Conn.Read(b)
		if h.born || !h.silent.Load() || err != nil {
			return n, err
		}
	}
}

func (h *hole) Write(b []byte) (int, error) {
	if !h.born && h.silent.Load() {
		return len(b), h.Conn.SetWriteDeadline(time.Time{}) // an error if it is closed
	}
	return h.Conn.Write(b)
}

// deaf is a connection that hears nothing if it has subscribed and deafen is set.
type deaf struct {
	net.Conn
	deafen     *atomic.Bool
	subscribed atomic.Bool
}

func (d *deaf) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("SUBSCRIBE")) {
		d.subscribed.Store(true)
	}
	return d.Conn.Write(b)
}

func (d *deaf) Read(b []byte) (int, error) {
	for {
		n, err := d.Conn.Read(b)
		if err != nil || !d.subscribed.Load() || !d.deafen.Load() {
			return n, err
		}
	}
}

// A subscription that goes silent is replaced, even if rueidis has a separate connection for it.
func TestFault_SilentSubscription(t *testing.T) {
	t.Parallel()
	for name, resp2 := range map[string]bool{"RESP2": true, "RESP3": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := testutil.Redis(t)
			var deafen atomic.Bool
			c := client(t, rueidis.ClientOption{InitAddress: []string{node.Addr()}, DisableCache: true, AlwaysRESP2: resp2,
				DialCtxFn: func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
					wire, err := d.DialContext(ctx, "tcp", addr)
					if err != nil {
						return nil, err
					}
					return &deaf{Conn: wire, deafen: &deafen}, nil
				}})
			first, second := locker(t, patient(single(t, node.Addr()))), locker(t, rueidisdriver.New(c))
			k := acquire(t, first, "k", core.WithTTL(time.Minute))
			got := make(chan error, 1)
			go func() {
				k, err := second.Acquire(t.Context(), "k")
				if err == nil {
					_ = k.Release(t.Context()) // a busy machine may be too late for the answer
				}
				got <- err
			}()
			admin := node.Client()
			subscribers := func() int64 { return admin.PubSubNumSub(t.Context(), "onelane:{k}:free").Val()["onelane:{k}:free"] }
			eventually(t, "the waiter is subscribed", func() bool { return subscribers() == 1 })
			id := func() int64 {
				list := admin.Do(t.Context(), "client", "list", "type", "pubsub").String()
				_, after, _ := strings.Cut(list, "id=")
				n, _, _ := strings.Cut(after, " ")
				number, _ := strconv.ParseInt(n, 10, 64)
				return number
			}
			before := id()
			deafen.Store(true)
			eventually(t, "another connection subscribes", func() bool { return id() > before })
			deafen.Store(false)
			ok(t, "Release", k.Release(t.Context()))
			ok(t, "the waiter", <-got)
		})
	}
}

// A waiter whose subscription goes silent with its server is woken when the server is back.
func TestFault_WaiterAfterRestart(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	b := quick(rueidisdriver.New(single(t, node.Addr())))
	first, second := locker(t, b), locker(t, b, core.WithOutageWait(30*time.Second))
	k := acquire(t, first, "k", core.WithTTL(time.Minute))
	got := make(chan error, 1)
	go func() {
		k, err := second.Acquire(t.Context(), "k")
		if err == nil {
			_ = k.Release(t.Context()) // a busy machine may be too late for the answer
		}
		got <- err
	}()
	admin := node.Client()
	eventually(t, "the waiter is subscribed", func() bool {
		return admin.PubSubNumSub(t.Context(), "onelane:{k}:free").Val()["onelane:{k}:free"] == 1
	})
	node.Restart()
	_ = k.Release(t.Context()) // its server has lost it
	ok(t, "the waiter", <-got)
}

// kinds makes a backend of each kind, and what makes its Redis lose all requests.
var kinds = map[string]func(t *testing.T) (redisbackend.Config, testutil.Nodes){
	"one Redis": func(t *testing.T) (redisbackend.Config, testutil.Nodes) {
		node := testutil.Redis(t)
		return rueidisdriver.New(single(t, node.Addr())), testutil.Nodes{node}
	},
	"Redis Cluster": func(t *testing.T) (redisbackend.Config, testutil.Nodes) {
		c := testutil.RedisCluster(t, 3)
		return rueidisdriver.New(clustered(t, c)), c.Nodes
	},
	"quorum": func(t *testing.T) (redisbackend.Config, testutil.Nodes) {
		nodes := testutil.Cluster(t, 3)
		return quorum(t, nodes), nodes
	},
}

// The end of the caller's context says nothing about the backend, and a time-out of the backend nothing
// about the caller's context.
func TestFault_Errors(t *testing.T) {
	t.Parallel()
	for name, open := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, nodes := open(t)
			l := locker(t, quick(b), core.WithTTL(time.Minute), core.WithMaxHold(0), core.WithOutageWait(0))
			locks := make(chan *core.Lock, 4)
			for i := range cap(locks) {
				locks <- acquire(t, l, fmt.Sprint("k", i), retried)
			}
			for _, n := range nodes {
				n.Stop()
				t.Cleanup(n.Cont)
			}
			calls := map[string]func(context.Context) error{
				"Acquire": func(ctx context.Context) error { _, err := l.Acquire(ctx, "free"); return err },
				"Inspect": func(ctx context.Context) error { _, err := l.Inspect(ctx, "free"); return err },
				"Seal":    func(ctx context.Context) error { return (<-locks).Seal(ctx, []byte("v"), time.Minute) },
				"Release": func(ctx context.Context) error { return (<-locks).Release(ctx) },
			}
			if name == "quorum" {
				delete(calls, "Seal") // it keeps none
			}
			var all sync.WaitGroup
			for what, call := range calls {
				all.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
					defer cancel()
					if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, core.ErrUnavailable) || errors.Is(err, core.ErrLost) {
						t.Errorf("%s: got %v, want the context's error alone", what, err)
					}
				})
			}
			all.Wait()
			for what, call := range calls {
				all.Go(func() {
					if err := call(context.Background()); !errors.Is(err, core.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%s: got %v, want ErrUnavailable alone", what, err)
					}
				})
			}
			inTime(t, "calls without a deadline", all.Wait)
		})
	}
}

// A shard that hangs does not touch another.
func TestFault_OneShardStopped(t *testing.T) {
	t.Parallel()
	// The other shards do not notice the loss of one, and do not refuse.
	cluster := testutil.RedisCluster(t, 3, "--cluster-node-timeout", "60000", "--cluster-require-full-coverage", "no")
	b := rueidisdriver.New(clustered(t, cluster))
	b.NodeTimeout = 20 * time.Second
	l := locker(t, b, core.WithOutageWait(0))
	hung, other := "", ""
	for i := 0; hung == "" || other == ""; i++ {
		key := fmt.Sprint("k", i)
		if cluster.Owner("onelane:{"+key+"}") == 0 {
			hung = key
		} else {
			other = key
		}
		ok(t, "Release", acquire(t, l, key).Release(t.Context()))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cluster.Nodes[0].Stop()
	t.Cleanup(cluster.Nodes[0].Cont)
	var all sync.WaitGroup
	for i := range 300 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
			defer cancel()
			_, _ = l.Acquire(ctx, fmt.Sprintf("%s{%s}", fmt.Sprint(i), hung))
		})
	}
	for range 20 {
		ok(t, "Release", acquire(t, l, other).Release(t.Context()))
	}
	cancel()
	cluster.Nodes[0].Cont()
	all.Wait()
}

// A quorum works while a majority does.
func TestFault_QuorumMinority(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 5)
	b := quorum(t, nodes)
	b.NodeTimeout = 2 * time.Minute // more than inTime allows
	l := locker(t, b)
	nodes[0].Kill()
	nodes[1].Stop()
	t.Cleanup(nodes[1].Cont)
	inTime(t, "ten locks", func() {
		for range 10 {
			ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
		}
	})
}

// A fail-over by Sentinel is a slow call.
func TestSentinel_FailOver(t *testing.T) {
	t.Parallel()
	s := testutil.Sentinel(t)
	l := locker(t, patient(watched(t, s)), core.WithOutageWait(90*time.Second), core.WithToken())
	first := acquire(t, l, "k")
	before, err := first.Token(t.Context())
	ok(t, "Token", err)
	ok(t, "Release", first.Release(t.Context()))
	s.Master.Kill()
	k := acquire(t, l, "k")
	after, err := k.Token(t.Context())
	ok(t, "Token", err)
	if after <= before {
		t.Errorf("token %d after %d", after, before)
	}
	ok(t, "Release", k.Release(t.Context()))
}

// While a slot moves, its keys are answered for with ASK once they have moved, and with MOVED after.
func TestRedisCluster_SlotMoves(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3)
	b := rueidisdriver.New(clustered(t, cluster))
	b.NodeTimeout = 5 * time.Second
	l, other := locker(t, b), locker(t, b)
	const name = "onelane:{k}"
	k := acquire(t, l, "k")
	move := cluster.BeginMove(name, (cluster.Owner(name)+1)%3)
	ok(t, "Extend before the key has moved", k.Extend(t.Context(), time.Minute))
	move.MoveKey(name)
	ok(t, "Extend of a key that has moved", k.Extend(t.Context(), 2*time.Minute))
	_, err := other.TryAcquire(t.Context(), "k")
	want(t, "TryAcquire of a key that has moved", err, core.ErrTaken)
	ok(t, "Release of a key that has moved", k.Release(t.Context()))
	k = acquire(t, other, "k") // where the key would go
	move.EndMove()
	ok(t, "Release after the move", k.Release(t.Context()))
	ok(t, "Release", acquire(t, l, "k").Release(t.Context())) // by one that learns of the move by MOVED
}

// Connections that the server closed cost no caller an error.
func TestFault_ConnectionsClosed(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	c, admin := single(t, node.Addr()), node.Client()
	for range 5 {
		l := locker(t, patient(c), core.WithOutageWait(0))
		k := acquire(t, l, "k")
		ok(t, "CLIENT KILL", admin.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err())
		ok(t, "Release", k.Release(t.Context()))
	}
}
