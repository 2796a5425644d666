package testutil_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/internal/server"
)

// recorder is a testing.TB that records a failure instead of failing the test.
type recorder struct {
	testing.TB
	fatal, log string
}

func (r *recorder) Helper() {}

func (r *recorder) Log(args ...any) { r.log += fmt.Sprintln(args...) }

func (r *recorder) Fatal(args ...any) {
	r.fatal = fmt.Sprint(args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) { r.Fatal(fmt.Sprintf(format, args...)) }

// record runs fn as a test would be, and returns what it said.
func record(t *testing.T, fn func(t testing.TB)) *recorder {
	t.Helper()
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn(r)
	}()
	<-done
	return r
}

// withoutServers makes the machine one without servers.
func withoutServers(t *testing.T, required string) {
	t.Helper()
	t.Setenv("PATH", "")
	t.Setenv("CI", "")
	t.Setenv(server.EnvRequire, required)
	for _, env := range []string{server.EnvRedisServer, server.EnvMySQL, server.EnvPostgres} {
		t.Setenv(env, "")
	}
}

// real returns a redis-server process, nil where there is none and none is required.
func real(t *testing.T) *testutil.Node {
	t.Helper()
	if n := testutil.Redis(t); n.Real() {
		return n
	}
	return nil
}

func TestRedisAnswers(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	if err := n.Client().Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	other := testutil.Redis(t)
	if n.Addr() == other.Addr() {
		t.Fatalf("two nodes have the address %s", n.Addr())
	}
	if err := other.Client().Get(t.Context(), "k").Err(); err != redis.Nil {
		t.Errorf("a new node is not empty: %v", err)
	}
	mutex := redsync.New(n.Pool()).NewMutex("m")
	if err := mutex.LockContext(t.Context()); err != nil {
		t.Errorf("its redsync pool does not lock: %v", err)
	}
}

func TestRedisEndsWithItsTest(t *testing.T) {
	t.Parallel()
	var client *redis.Client
	var addr string
	t.Run("inner", func(t *testing.T) {
		n := testutil.Redis(t)
		client, addr = n.Client(), n.Addr()
	})
	if err := client.Ping(t.Context()).Err(); err != redis.ErrClosed {
		t.Errorf("the client of a test that ended: %v, want %v", err, redis.ErrClosed)
	}
	late := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1})
	defer late.Close()
	if err := late.Ping(t.Context()).Err(); err == nil {
		t.Error("the node of a test that ended answers")
	}
}

func TestKillAndRestart(t *testing.T) {
	t.Parallel()
	n := real(t)
	if n == nil {
		return
	}
	client := n.Client()
	if err := client.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	n.Kill()
	if err := client.Ping(t.Context()).Err(); err == nil {
		t.Error("a killed node answers")
	}
	n.Restart()
	if err := n.Client().Get(t.Context(), "k").Err(); err != redis.Nil {
		t.Errorf("after Restart: %v, want an empty node", err)
	}
	n.Restart() // of one that runs
	if err := n.Client().Ping(t.Context()).Err(); err != nil {
		t.Errorf("after a second Restart: %v", err)
	}
}

func TestStopAndCont(t *testing.T) {
	t.Parallel()
	n := real(t)
	if n == nil {
		return
	}
	client := redis.NewClient(&redis.Options{Addr: n.Addr(), MaxRetries: -1, ReadTimeout: 100 * time.Millisecond})
	defer client.Close()
	check.Eventually(t, "the node answers in 100 ms", func() bool { return client.Ping(t.Context()).Err() == nil })
	n.Stop()
	if err := client.Ping(t.Context()).Err(); err == nil {
		t.Error("a stopped node answers")
	}
	n.Cont()
	if err := n.Client().Ping(t.Context()).Err(); err != nil {
		t.Errorf("after Cont: %v", err)
	}
	n.Stop() // its test's end must not wait for it
}

func TestCluster(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 5)
	began := time.Now()
	seen := map[string]bool{}
	for i, client := range nodes.Clients() {
		if err := client.Ping(t.Context()).Err(); err != nil {
			t.Errorf("node %d: %v", i, err)
		}
		seen[nodes[i].Addr()] = true
	}
	t.Logf("five pings took %v", time.Since(began))
	if len(seen) != 5 || len(nodes.Pools()) != 5 {
		t.Errorf("5 nodes have the addresses %v and %d pools", seen, len(nodes.Pools()))
	}
	if err := redsync.New(nodes.Pools()...).NewMutex("m").LockContext(t.Context()); err != nil {
		t.Errorf("redsync does not lock on their pools: %v", err)
	}
}

func TestRedisWhereThereIsNone(t *testing.T) {
	withoutServers(t, "")
	var n *testutil.Node
	r := record(t, func(t testing.TB) { n = testutil.Redis(t) })
	if r.fatal != "" || n == nil || n.Real() {
		t.Fatalf("got %v, failure %q", n, r.fatal)
	}
	for _, word := range []string{"miniredis", "redis-server was not found", "testutil/servers"} {
		if !strings.Contains(r.log, word) {
			t.Errorf("the log does not say %q: %s", word, r.log)
		}
	}
	if err := n.Client().Ping(t.Context()).Err(); err != nil {
		t.Errorf("the miniredis does not answer: %v", err)
	}
	for verb, do := range map[string]func(t testing.TB, n *testutil.Node){
		"Kill":     func(_ testing.TB, n *testutil.Node) { n.Kill() },
		"Stop":     func(_ testing.TB, n *testutil.Node) { n.Stop() },
		"Cont":     func(_ testing.TB, n *testutil.Node) { n.Cont() },
		"Restart":  func(_ testing.TB, n *testutil.Node) { n.Restart() },
		"Commands": func(t testing.TB, n *testutil.Node) { n.Commands(t, func() {}) },
	} {
		r := record(t, func(t testing.TB) { do(t, testutil.Redis(t)) })
		if !strings.Contains(r.fatal, verb+" needs a redis-server process") {
			t.Errorf("%s on a miniredis: %q", verb, r.fatal)
		}
	}
}

func TestRedisWhereItIsRequired(t *testing.T) {
	withoutServers(t, "1")
	for name, start := range map[string]func(t testing.TB){
		"Redis":   func(t testing.TB) { testutil.Redis(t) },
		"Cluster": func(t testing.TB) { testutil.Cluster(t, 3) },
	} {
		r := record(t, start)
		for _, word := range []string{"redis-server was not found", "apt-get install redis-server", "go run github.com/onelane/onelane/testutil/servers"} {
			if !strings.Contains(r.fatal, word) {
				t.Errorf("%s: the failure does not say %q: %s", name, word, r.fatal)
			}
		}
	}
}

func TestMiniRedis(t *testing.T) {
	t.Parallel()
	if err := testutil.MiniRedis(t).Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
}
