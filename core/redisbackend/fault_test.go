package redisbackend_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/internal/loglimit"
	"github.com/onelane/onelane/testutil"
)

// A server that answers with an error counts as one that is down: the call fails soon, with the
// server's words, and does not spin.
func TestNode_ServerErrors(t *testing.T) {
	t.Parallel()
	set := func(key, value string) func(t *testing.T, n *testutil.Node) {
		return func(t *testing.T, n *testutil.Node) {
			ok(t, "CONFIG SET", n.Client().ConfigSet(t.Context(), key, value).Err())
		}
	}
	for _, c := range []struct {
		name, says string
		args       []string
		broken     func(t *testing.T, n *testutil.Node)
	}{
		{"READONLY", "READONLY", nil, func(t *testing.T, n *testutil.Node) {
			ok(t, "REPLICAOF", n.Client().ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
		}},
		{"NOREPLICAS", "NOREPLICAS", nil, set("min-replicas-to-write", "1")},
		{"OOM", "OOM", nil, set("maxmemory", "1")},
		{"maxclients", "", nil, func(t *testing.T, n *testutil.Node) {
			admin := n.Client() // has the one connection that is left
			ok(t, "CONFIG SET", admin.ConfigSet(t.Context(), "maxclients", "1").Err())
		}},
		{"BUSY", "BUSY", []string{"--busy-reply-threshold", "20"}, busy},
		{"MISCONF", "MISCONF", []string{"--enable-protected-configs", "yes", "--save", "3600 1"}, misconf},
		{"LOADING", "LOADING", []string{"--save", "3600 1", "--key-load-delay", "20000", "--rdbcompression", "no",
			"--loading-process-events-interval-bytes", "1024"}, loading},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := testutil.Redis(t, c.args...)
			c.broken(t, n)
			fails(t, one(n.Client()), c.says)
		})
	}
}

// fails checks that a lock cannot be acquired, and what the error says. The server's error ends the call,
// and not the node time-out.
func fails(t *testing.T, b redisbackend.Config, says string) {
	t.Helper()
	b.NodeTimeout = 2 * time.Minute
	l := locker(t, b, core.WithOutageWait(0))
	start := time.Now()
	_, err := l.Acquire(t.Context(), "fails", core.WithTTL(time.Minute))
	want(t, "Acquire", err, core.ErrUnavailable)
	if errors.Is(err, core.ErrTaken) || !strings.Contains(err.Error(), says) {
		t.Errorf("the error does not say %s: %v", says, err)
	}
	var reply redis.Error
	if says != "" && !errors.As(err, &reply) {
		t.Errorf("the error hides the server's: %v", err)
	}
	if took := time.Since(start); took > time.Minute {
		t.Errorf("it took %v", took)
	}
}

// busy runs a script that does not end.
func busy(t *testing.T, n *testutil.Node) {
	client := redis.NewClient(&redis.Options{Addr: n.Addr(), ReadTimeout: -1, MaxRetries: -1})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = client.Eval(context.Background(), "while true do end", nil).Err()
	}()
	admin := n.Client()
	t.Cleanup(func() {
		_ = admin.ScriptKill(context.Background()).Err()
		<-done
		_ = client.Close()
	})
	eventually(t, "the server is busy", func() bool {
		return strings.HasPrefix(fmt.Sprint(admin.Get(t.Context(), "k").Err()), "BUSY")
	})
}

// misconf makes the server unable to save.
func misconf(t *testing.T, n *testutil.Node) {
	admin := n.Client()
	ok(t, "CONFIG SET", admin.ConfigSet(t.Context(), "dir", "/proc").Err())
	_ = admin.BgSave(t.Context()).Err()
	eventually(t, "saving has failed", func() bool {
		return strings.HasPrefix(fmt.Sprint(admin.Set(t.Context(), "k", "v", time.Second).Err()), "MISCONF")
	})
}

// loading restarts a server that takes its time to load.
func loading(t *testing.T, n *testutil.Node) {
	admin := n.Client()
	pipe := admin.Pipeline()
	for i := range 1500 { // half a minute, unless the delay is taken away
		pipe.Set(t.Context(), fmt.Sprint("key", i), strings.Repeat("x", 1000), 0)
	}
	_, err := pipe.Exec(t.Context())
	ok(t, "SET", err)
	ok(t, "SAVE", admin.Save(t.Context()).Err())
	restarted := make(chan struct{})
	go func() {
		defer close(restarted)
		n.Restart()
	}()
	t.Cleanup(func() {
		eventually(t, "the rest loads at once", func() bool {
			return admin.ConfigSet(context.Background(), "key-load-delay", "0").Err() == nil
		})
		<-restarted
	})
	eventually(t, "the server loads", func() bool {
		return strings.HasPrefix(fmt.Sprint(admin.Get(t.Context(), "k").Err()), "LOADING")
	})
}

// A slot that nobody has.
func TestRedisCluster_ClusterDown(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3)
	l := locker(t, one(cluster.Client()))
	ok(t, "Release", acquire(t, l, "fails").Release(t.Context()))
	owner := cluster.Nodes[cluster.Owner("onelane:{fails}")].Client()
	slot := owner.ClusterKeySlot(t.Context(), "onelane:{fails}").Val()
	ok(t, "DELSLOTS", owner.ClusterDelSlots(t.Context(), int(slot)).Err())
	eventually(t, "the cluster is down", func() bool {
		return strings.HasPrefix(fmt.Sprint(owner.Set(t.Context(), "onelane:{fails}", "v", 0).Err()), "CLUSTERDOWN")
	})
	fails(t, one(cluster.Client()), "CLUSTERDOWN")
	ok(t, "ADDSLOTS", owner.ClusterAddSlots(t.Context(), int(slot)).Err())
	eventually(t, "locks are granted again", func() bool {
		k, err := l.TryAcquire(t.Context(), "fails")
		return err == nil && k.Release(t.Context()) == nil
	})
}

// The answer comes when the lease is over, or about to be.
func TestAcquire_AnswerAfterTheLease(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	p := newProxy(t, node.Addr())
	l := locker(t, one(newClient(t, &redis.Options{Addr: p.Addr().String()})), core.WithOutageWait(0))
	ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
	p.late.Store(int64(400 * time.Millisecond))
	_, err := l.Acquire(t.Context(), "k", core.WithTTL(300*time.Millisecond))
	want(t, "Acquire", err, core.ErrUnavailable)
	if !strings.Contains(err.Error(), "about to end") {
		t.Errorf("the error hides the cause: %v", err)
	}
	admin := node.Client()
	eventually(t, "it is released", func() bool { return admin.Exists(t.Context(), "onelane:{k}").Val() == 0 })
}

// The deadline of a renewed lease counts from when the renewal was sent, not from its late answer.
func TestExtend_DeadlineCountsFromTheSending(t *testing.T) {
	t.Parallel()
	const ttl, late = 30 * time.Second, 300 * time.Millisecond
	node := testutil.Redis(t)
	p := newProxy(t, node.Addr())
	b := open(t, one(newClient(t, &redis.Options{Addr: p.Addr().String()})))
	g, err := b.Acquire(t.Context(), core.Request{Key: "{k}", Owner: "me/1", TTL: 10 * time.Second})
	ok(t, "Acquire", err)
	g, err = b.Extend(t.Context(), g, 20*time.Second) // its connection is there now
	ok(t, "Extend", err)
	p.late.Store(int64(late))
	sent := time.Now()
	g, err = b.Extend(t.Context(), g, ttl)
	ok(t, "Extend", err)
	if answered := time.Since(sent); answered < late {
		t.Fatalf("the answer came after %v: this test tests nothing", answered)
	}
	if beyond := time.Until(g.Deadline) - (ttl - ttl/100 - late/2); beyond > 0 {
		t.Errorf("the deadline is %v later than the TTL after the sending", beyond)
	}
	if g.Deadline.Before(sent.Add(ttl * 9 / 10)) {
		t.Errorf("the deadline is only %v after the sending", g.Deadline.Sub(sent))
	}
}

// Answers that come 60 ms late cost 60 ms, and no call.
func TestNode_LateReplies(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	p := newProxy(t, node.Addr())
	b := open(t, one(newClient(t, &redis.Options{Addr: p.Addr().String()})))
	p.late.Store(int64(60 * time.Millisecond))
	for i := range 5 {
		g, err := b.Acquire(t.Context(), core.Request{Key: "{k}", Owner: fmt.Sprint("me/", i), TTL: time.Minute})
		ok(t, "Acquire", err)
		_, err = b.Release(t.Context(), g)
		ok(t, "Release", err)
	}
}

// The first copy of a retried Acquire arrives after the Release of what the second one got.
func TestRelease_GhostOfARetriedAcquire(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, "Listen", err)
	t.Cleanup(func() { _ = l.Close() })
	var keepBack atomic.Bool
	arrived, over := make(chan struct{}), make(chan struct{})
	defer close(over)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", node.Addr())
			if err != nil {
				return
			}
			go func() {
				defer s.Close()
				buf := make([]byte, 32<<10)
				for {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					if bytes.Contains(buf[:n], []byte("owner/")) && keepBack.CompareAndSwap(true, false) {
						// The proxy resets its client, but still forwards what it has read.
						b := bytes.Clone(buf[:n])
						_ = c.Close()
						<-arrived
						_, _ = s.Write(b)
						<-over
						return
					}
					if _, err := s.Write(buf[:n]); err != nil {
						return
					}
				}
			}()
			go func() {
				defer c.Close()
				buf := make([]byte, 32<<10)
				for {
					n, err := s.Read(buf)
					if err != nil {
						return
					}
					if _, err := c.Write(buf[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	b := open(t, one(newClient(t, &redis.Options{Addr: l.Addr().String()})))
	_, err = b.Inspect(t.Context(), "{k}")
	ok(t, "Inspect", err)
	keepBack.Store(true)
	g, err := b.Acquire(t.Context(), core.Request{Key: "{k}", Owner: "owner/1", TTL: time.Minute})
	ok(t, "Acquire", err)
	if keepBack.Load() {
		t.Fatal("nothing was kept back: this test tests nothing")
	}
	_, err = b.Release(t.Context(), g)
	ok(t, "Release", err)
	close(arrived)
	admin := node.Client()
	eventually(t, "the first copy has arrived", func() bool {
		return strings.Contains(admin.Info(t.Context(), "commandstats").Val(), "cmdstat_set:calls=2,")
	})
	eventually(t, "the ghost is released long before its TTL", func() bool { return admin.Exists(t.Context(), "{k}").Val() == 0 })
}

// A Redis that hung for longer than the TTL runs what it was sent before. Nobody would hold the key.
func TestCleanUp_AfterALongHang(t *testing.T) {
	t.Parallel()
	expired := ghosts(t, 2*time.Second)
	for try := 1; expired > 0 && try < 4; try++ { // a busy machine needs more time for the clean-up
		expired = ghosts(t, 3*time.Second)
	}
	if expired > 0 {
		t.Errorf("%d ghosts stayed until they expired", expired)
	}
}

// ghosts makes Redis hang for longer than ttl, and returns how many ghosts expired when it went on.
func ghosts(t *testing.T, ttl time.Duration) (expired int) {
	node := testutil.Redis(t)
	var log logbook
	b := openWith(t, one(node.Client()), log.logger(slog.LevelWarn))
	admin := node.Client()
	ok(t, "PING", admin.Ping(t.Context()).Err())
	_, err := b.Inspect(t.Context(), "{k}")
	ok(t, "Inspect", err)
	node.Stop()
	hangs := time.Now()
	for i := range 50 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := b.Acquire(ctx, core.Request{Key: fmt.Sprintf("{k%d}", i), Owner: fmt.Sprint("me/", i), TTL: ttl})
		if ctx.Err() == nil || !errors.Is(err, context.DeadlineExceeded) {
			want(t, "Acquire", err, core.ErrUnavailable)
		}
		cancel()
	}
	time.Sleep(ttl)
	node.Cont()
	deleted := func() int {
		_, del, _ := strings.Cut(admin.Info(t.Context(), "commandstats").Val(), "cmdstat_del:calls=")
		del, _, _ = strings.Cut(del, ",")
		n, _ := strconv.Atoi(del)
		return n
	}
	eventually(t, "the ghosts are released", func() bool { return deleted() > 0 && admin.DBSize(t.Context()).Val() == 0 })
	if n := log.count("level=WARN"); n > 6*(1+int(time.Since(hangs)/loglimit.Interval)) {
		t.Errorf("%d warnings in %v of a hang", n, time.Since(hangs))
	}
	return statistic(t, admin, "expired_keys")
}
