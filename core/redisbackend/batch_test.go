package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil"
)

// statistic returns one figure of INFO stats.
func statistic(t testing.TB, c *redis.Client, name string) int {
	t.Helper()
	info, err := c.InfoMap(t.Context(), "stats").Result()
	ok(t, "INFO", err)
	n, err := strconv.Atoi(info["Stats"][name])
	ok(t, name, err)
	return n
}

func TestBatch_ManyCallersShareRoundTrips(t *testing.T) {
	t.Parallel()
	const callers, each = 400, 10
	node := testutil.Redis(t)
	admin := node.Client()
	// The way there takes longer than all callers need to ask: what shares a round trip is no chance.
	l := locker(t, one(newClient(t, &redis.Options{Addr: link(t, node.Addr(), 2*time.Millisecond)})))
	var all sync.WaitGroup
	reads := statistic(t, admin, "total_reads_processed")
	for i := range callers {
		all.Go(func() {
			for range each {
				k, err := l.Acquire(t.Context(), fmt.Sprint("k", i))
				if err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				if err := k.Release(t.Context()); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
		})
	}
	all.Wait()
	// One by one, it is more than 8,000.
	if reads = statistic(t, admin, "total_reads_processed") - reads; reads > callers*each/2 {
		t.Errorf("%d locks took %d reads: they did not share round trips", callers*each, reads)
	}
	t.Logf("%d reads", reads)
	if n := statistic(t, admin, "total_connections_received"); n > 30 {
		t.Errorf("%d connections were made", n)
	}
}

// A lone caller's lock is two reads, and one connection.
func TestBatch_LoneCaller(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	admin := node.Client()
	l := locker(t, one(node.Client()))
	ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
	reads, connections := 0, 0
	for range 5 { // on a busy machine, checks of the backend's own may come in between
		reads, connections = statistic(t, admin, "total_reads_processed"), statistic(t, admin, "total_connections_received")
		for range 10 {
			ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
		}
		reads = statistic(t, admin, "total_reads_processed") - reads
		connections = statistic(t, admin, "total_connections_received") - connections
		if reads <= 22+1 && connections == 0 { // INFO is read, too
			return
		}
	}
	t.Errorf("10 locks took %d reads and %d connections", reads, connections)
}

// A call that is given up before it was sent is not sent, and what was sent is cleaned up.
func TestBatch_DeadlinesOnAHungNode(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]time.Duration{"a moment": 0, "longer than the node time-out": 1500 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const callers = 100
			node := testutil.Redis(t)
			admin := node.Client()
			ok(t, "PING", admin.Ping(t.Context()).Err())
			l := locker(t, one(node.Client()), core.WithTTL(time.Minute))
			held := make([]*core.Lock, callers)
			for i := range held {
				held[i] = acquire(t, l, fmt.Sprint("held:", i))
			}
			node.Stop()
			var all, canceled, gaveUp sync.WaitGroup
			within := func(what string, call func(ctx context.Context) error) {
				all.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
					defer cancel()
					start := time.Now()
					err := call(ctx)
					if took := time.Since(start); took > 100*time.Millisecond+hung {
						t.Errorf("%s took %v", what, took)
					}
					want(t, what, err, context.DeadlineExceeded)
				})
			}
			for i := range callers {
				within("Acquire", func(ctx context.Context) error { _, err := l.Acquire(ctx, fmt.Sprint("new:", i)); return err })
				within("Release", held[i].Release)
				gaveUp.Add(1)
				canceled.Go(func() { // a call on the wire notices its deadline, a waiting one its cancellation, too
					ctx, cancel := context.WithCancel(context.Background())
					time.AfterFunc(50*time.Millisecond, func() { cancel(); gaveUp.Done() })
					_, err := l.Acquire(ctx, fmt.Sprint("canceled:", i))
					want(t, "an Acquire that is canceled", err, context.Canceled)
				})
			}
			all.Wait()
			gaveUp.Wait() // a call that a busy machine begins late must not get its lock
			time.Sleep(stop)
			node.Cont()
			canceled.Wait()
			eventually(t, "nothing is locked", func() bool { return admin.DBSize(t.Context()).Val() == 0 })
			sets := admin.Info(t.Context(), "commandstats").Val()
			_, sets, _ = strings.Cut(sets, "cmdstat_set:calls=")
			sets, _, _ = strings.Cut(sets, ",")
			n, err := strconv.Atoi(sets)
			ok(t, "the calls of SET", err)
			if n > callers+callers/2 {
				t.Errorf("%d calls of SET: what was given up was sent", n)
			}
			ok(t, "Release", acquire(t, l, "new:0").Release(t.Context()))
		})
	}
}

// The application has used up its pool. Locks and renewals do not wait for it.
func TestRenewal_DoesNotShareTheApplicationsPool(t *testing.T) {
	t.Parallel()
	for name, client := range map[string]func(t *testing.T) (redis.UniversalClient, *testutil.Node){
		"cluster": func(t *testing.T) (redis.UniversalClient, *testutil.Node) {
			node := testutil.RedisCluster(t, 1).Nodes[0]
			client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{node.Addr()}, PoolSize: 1})
			t.Cleanup(func() { _ = client.Close() })
			return client, node
		},
		"one Redis": func(t *testing.T) (redis.UniversalClient, *testutil.Node) {
			node := testutil.Redis(t)
			return newClient(t, &redis.Options{Addr: node.Addr(), PoolSize: 1}), node
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, node := client(t)
			b := one(client)
			// Another Locker on the same Config is closed: the connections are not shared.
			ok(t, "Close", locker(t, b).Close())
			busy := block(t, client, node)
			l := locker(t, b)
			err := renewedTwice(t, l, 3*time.Second)
			for try := 1; errors.Is(err, core.ErrLost) && try < 4; try++ { // a busy machine needs a longer lease
				err = renewedTwice(t, l, 6*time.Second)
			}
			ok(t, "the lock", err)
			ok(t, "Release", acquire(t, l, "another").Release(t.Context()))
			select {
			case <-busy:
				t.Error("the application's pool was free: this test tests nothing")
			default:
			}
		})
	}
}

// renewedTwice holds a lock until it was renewed twice, and returns why it ended.
func renewedTwice(t *testing.T, l *core.Locker, ttl time.Duration) error {
	t.Helper()
	k := acquire(t, l, "k", core.WithTTL(ttl))
	for range 2 {
		last := k.Deadline()
		eventually(t, "a renewal, or the loss", func() bool { return k.Err() != nil || k.Deadline().After(last) })
	}
	return errors.Join(k.Err(), k.Release(t.Context()))
}

// block blocks the client's only connection until the test ends.
func block(t *testing.T, client redis.UniversalClient, node *testutil.Node) <-chan struct{} {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		client.BLPop(context.Background(), 0, "nothing")
	}()
	t.Cleanup(func() {
		ok(t, "LPush", node.Client().LPush(context.Background(), "nothing", "").Err())
		<-done
	})
	return done
}

// Leases that are due at the same time are renewed together.
func TestRenewals_ShareRoundTrips(t *testing.T) {
	t.Parallel()
	const n = 1000
	node := testutil.Redis(t)
	admin := node.Client()
	b := open(t, one(node.Client()))
	grants := make([]core.Grant, n)
	each := func(do func(i int) error) {
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				if err := do(i); err != nil {
					t.Errorf("%d: %v", i, err)
				}
			})
		}
		all.Wait()
	}
	each(func(i int) (err error) {
		grants[i], err = b.Acquire(t.Context(), core.Request{Key: fmt.Sprintf("{%d}", i), Owner: fmt.Sprint("me/", i), TTL: time.Minute})
		return err
	})
	reads := statistic(t, admin, "total_reads_processed")
	each(func(i int) error {
		_, err := b.Extend(t.Context(), grants[i], 2*time.Minute)
		return err
	})
	if reads = statistic(t, admin, "total_reads_processed") - reads; reads > n/2 {
		t.Errorf("%d renewals took %d reads: they did not share round trips", n, reads)
	}
}

// The largest value takes longer over a slow link than a call may take, and so does its replay.
func TestSeal_LargestValue(t *testing.T) {
	t.Parallel()
	value := make([]byte, 16<<20)
	p := newProxy(t, testutil.Redis(t).Addr())
	const limit = 2 * time.Second
	l := locker(t, redisbackend.Config{Clients: []redis.UniversalClient{newClient(t, &redis.Options{Addr: p.Addr().String()})}, NodeTimeout: limit})
	k := acquire(t, l, "k", core.WithTTL(5*time.Minute))
	eventually(t, "Seal", func() bool { return k.Seal(t.Context(), value, 5*time.Minute) == nil })
	// After limit, a pause of 250 ms is an answer that does not come. So the rest is quick, and there
	// are more tries if the machine stands still.
	eventually(t, "the value comes", func() bool {
		p.late.Store(int64(9 * time.Millisecond)) // for each 64 KiB, 2.3 s for all
		quick := time.AfterFunc(limit+50*time.Millisecond, func() { p.late.Store(0) })
		defer quick.Stop()
		start := time.Now()
		_, err := l.TryAcquire(t.Context(), "k")
		sealed, whole := errors.AsType[*core.SealedError](err)
		if whole && (len(sealed.Value) != len(value) || time.Since(start) < limit) {
			t.Fatalf("%d bytes in %v: this test tests nothing", len(sealed.Value), time.Since(start))
		}
		return whole
	})
}

// A call waits for its first connection as long as NodeTimeout allows.
func TestConnect_WithinNodeTimeout(t *testing.T) {
	t.Parallel()
	p := newProxy(t, testutil.Redis(t).Addr())
	c := one(newClient(t, &redis.Options{Addr: p.Addr().String(), DialTimeout: time.Minute}))
	c.NodeTimeout = time.Minute
	p.late.Store(int64(600 * time.Millisecond)) // two round trips
	_, err := open(t, c).Acquire(t.Context(), attempt("k", time.Hour, 0))
	ok(t, "Acquire", err)
}

// A slow handshake delays the first lock only, and a call that gives up does not end it.
func TestConnect_SlowHandshake(t *testing.T) {
	t.Parallel()
	p := newProxy(t, testutil.Redis(t).Addr())
	p.late.Store(int64(100 * time.Millisecond))
	l := locker(t, redisbackend.Config{Clients: []redis.UniversalClient{newClient(t, &redis.Options{Addr: p.Addr().String()})}, NodeTimeout: 10 * time.Second},
		core.WithOutageWait(0))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := l.Acquire(ctx, "k")
	want(t, "Acquire before there is a connection", err, context.DeadlineExceeded)
	ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
}
