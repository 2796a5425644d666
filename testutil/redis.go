package testutil

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/alicebob/miniredis/v2"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/testutil/internal/server"
)

// Node is a Redis of one test: a separate redis-server process, or an embedded miniredis if
// redis-server is not installed. Its methods fail the test that the node was made for. Methods that
// act on the process need a real server.
type Node struct {
	t        testing.TB
	embedded *miniredis.Miniredis
	process  *server.Server
}

// Redis starts an empty Redis on a free loopback port and ends it with the test. The args are added
// to the command line of redis-server, for example "--appendonly", "yes". If redis-server is not
// installed, the node is a miniredis, and Redis logs that. If CI or ONELANE_REQUIRE_SERVERS is set,
// it fails the test instead.
//
//	node := testutil.Redis(t)
//	locker, err := core.New(redisbackend.New(node.Client()), core.WithOutageWait(time.Second))
//	if err != nil {
//		t.Fatal(err)
//	}
//	defer locker.Close()
//	if !node.Real() {
//		return // a miniredis does not hang
//	}
//	node.Stop()
//	_, err = locker.Acquire(t.Context(), "stock:42")
//	if !errors.Is(err, core.ErrUnavailable) {
//		t.Errorf("with a Redis that hangs: %v", err)
//	}
//	node.Cont()
func Redis(t testing.TB, args ...string) *Node {
	t.Helper()
	n, err := newNode(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// newNode may be called from any goroutine.
func newNode(t testing.TB, args ...string) (*Node, error) {
	t.Helper()
	if _, err := server.Find(server.Redis); err != nil {
		if server.Required() {
			return nil, fmt.Errorf("testutil: %w; %s", err, server.Advice)
		}
		missing(t, "redis-server", "Redis is a miniredis in these tests", err)
		return &Node{t: t, embedded: startMini(t)}, nil
	}
	process, err := server.StartRedis(context.Background(), args...)
	if err != nil {
		return nil, fmt.Errorf("testutil: %w", err)
	}
	t.Cleanup(process.Stop)
	return &Node{t: t, process: process}, nil
}

var said sync.Map

// missing logs that something is not there. It also writes that once to standard error, because the
// log of a passing test is not shown.
func missing(t testing.TB, what, instead string, err error) {
	t.Helper()
	text := fmt.Sprintf("testutil: %s: %v; %s", instead, err, server.Advice)
	t.Log(text)
	if _, before := said.LoadOrStore(what, true); !before {
		fmt.Fprintln(os.Stderr, text)
	}
}

// Addr is the node's address, host:port.
func (n *Node) Addr() string {
	if n.process == nil {
		return n.embedded.Addr()
	}
	return n.process.Addr
}

// Client returns a new client with go-redis's defaults, closed at the end of the test.
func (n *Node) Client() *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: n.Addr()})
	n.t.Cleanup(func() { _ = client.Close() })
	return client
}

// Pool returns a redsync pool on a new client.
func (n *Node) Pool() redsyncredis.Pool { return goredis.NewPool(n.Client()) }

// Real reports whether the node is a redis-server process, and not a miniredis.
func (n *Node) Real() bool { return n.process != nil }

// Kill ends the process with SIGKILL and returns when it is gone.
func (n *Node) Kill() {
	n.t.Helper()
	n.real("Kill").Kill()
}

// Stop stops the process with SIGSTOP and returns when it stands still. Connections stay open, and
// nothing answers until Cont.
func (n *Node) Stop() {
	n.t.Helper()
	n.must(n.real("Stop").Pause())
}

// Cont lets a stopped process go on, with SIGCONT.
func (n *Node) Cont() {
	n.t.Helper()
	n.must(n.real("Cont").Resume())
}

// Restart starts the process anew on the same port. If the process still runs, Restart kills it
// first. The node comes back empty, unless it has args that make it persistent.
func (n *Node) Restart() {
	n.t.Helper()
	n.must(n.real("Restart").Restart(context.Background()))
}

func (n *Node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatalf("testutil: %v", err)
	}
}

func (n *Node) real(verb string) *server.Server {
	n.t.Helper()
	if n.process == nil {
		n.t.Fatalf("testutil: Node.%s needs a redis-server process, and this is a miniredis; %s", verb, server.Advice)
	}
	return n.process
}

// MiniRedis returns a client of an embedded miniredis. It is for tests that want a miniredis even
// if Redis is installed. Client and miniredis end with the test.
//
//	locker, err := core.New(redisbackend.New(testutil.MiniRedis(t)))
//	if err != nil {
//		t.Fatal(err)
//	}
//	defer locker.Close()
func MiniRedis(t testing.TB) *redis.Client {
	t.Helper()
	n := &Node{t: t, embedded: startMini(t)}
	return n.Client()
}

// Nodes are independent Redis masters.
type Nodes []*Node

// Cluster starts n independent Redis masters at once. Each starts as from [Redis]. They are no
// Redis Cluster.
//
//	nodes := testutil.Cluster(t, 3)
//	quorum := redisbackend.New(nodes.Clients()...)
//	quorum.NewInstallation = true // the nodes have just started
//	locker, err := core.New(quorum)
//	if err != nil {
//		t.Fatal(err)
//	}
//	defer locker.Close()
//	for _, key := range []string{"stock:42", "stock:43"} {
//		if _, err := locker.Acquire(t.Context(), key); err != nil {
//			t.Error(err)
//		}
//		if nodes[0].Real() {
//			nodes[0].Kill() // two of three go on
//		}
//	}
func Cluster(t testing.TB, n int) Nodes {
	t.Helper()
	nodes, errs := make(Nodes, n), make([]error, n)
	var all sync.WaitGroup
	for i := range nodes {
		all.Go(func() { nodes[i], errs[i] = newNode(t) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return nodes
}

// Clients returns a new client for each node.
func (ns Nodes) Clients() []redis.UniversalClient {
	clients := make([]redis.UniversalClient, len(ns))
	for i, n := range ns {
		clients[i] = n.Client()
	}
	return clients
}

// Pools returns a new redsync pool for each node.
func (ns Nodes) Pools() []redsyncredis.Pool {
	pools := make([]redsyncredis.Pool, len(ns))
	for i, n := range ns {
		pools[i] = n.Pool()
	}
	return pools
}

// startMini starts a miniredis whose keys expire by the clock, as Redis's do.
func startMini(t testing.TB) *miniredis.Miniredis {
	m := miniredis.RunT(t)
	m.ClockTTL(true)
	return m
}
