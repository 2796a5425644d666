package core_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
	"github.com/redis/go-redis/v9"
)

// faults says which test shows what for each fault that concerns this package.
var faults = []struct{ fault, expected, test string }{
	{"holder killed -9", "takeover within TTL + retry", "TestHolderKilled_TakeoverWithinTheTTL"},
	{"Redis killed, stays down", "one node: unavailable by the deadline", "TestKilledServer_IsUnavailableAndComesBack"},
	{"two of five nodes down", "works", "TestQuorum_WorksWithAMinorityDead"},
	{"SIGSTOP 1–2 of 5", "lock and unlock at their pace", "TestFault_StoppedMinority"},
	{"SIGSTOP 3 of 5", "unavailable; survivors released; back at once", "TestFault_StoppedMajority"},
	{"requests lost on the way", "no grant that a majority did not confirm; nothing left", "TestFault_RequestsLost"},
	{"replies lost on the way", "the next try knows its own work", "TestLostReply_TheNextTryKnowsItsOwnWork"},
	{"replies slower than the validity", "acquire refused and released", "TestFault_RepliesSlowerThanTheValidity"},
	{"ctx cancelled in the middle of an acquire", "an error, and nothing stays held", "TestContextEndsInTheMiddleOfAnAcquire_NothingStaysHeld"},
	{"the same on a quorum", "an error, and nothing stays held", "TestFault_ContextEndsInTheMiddleOfAnAcquireOnAQuorum"},
	{"server clock ahead on one node", "its key ends early; exclusion holds", "TestFault_OneNodesClockIsAhead"},
	{"node restarted empty", "abstains for one TTL; exclusion holds", "TestFault_RestartedEmpty"},
	{"READONLY, LOADING, CLUSTERDOWN, BUSY, MISCONF, NOREPLICAS, maxclients", "as a node that is down; typed, bounded, no spin", "TestFault_ServerErrors"},
	{"OOM", "acquire fails, renew, seal and release work", "TestOutOfMemory_HoldersCanStillRenewSealAndRelease"},
	{"SCRIPT FLUSH", "invisible", "TestScriptFlush_IsInvisible"},
	{"CROSSSLOT", "cannot happen", "TestFault_CrossSlot"},
	{"a slot moves", "calls go on", "TestRedisCluster_ContendedWhileTheSlotMoves"},
	{"NOAUTH, NOPERM", "fail closed, not tried again", "TestFault_NoPermission"},
	{"fail-over by Sentinel", "loud or works; tokens increase", "TestSentinel_FailOver"},
	{"fail-over before replication", "one node: lost, the token tells; quorum: kept", "TestFailOver_BeforeTheLockWasReplicated"},
	{"subscription lost", "polling, and it recovers", "TestWakeUp_ALostSubscriptionFallsBackToPollingAndRecovers"},
	{"fn panics", "the lock is freed", "TestDo"},
}

func TestFaults_EachHasItsTest(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*_test.go")
	ok(t, "Glob", err)
	var source strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		ok(t, "ReadFile", err)
		source.Write(text)
	}
	for _, f := range faults {
		if !strings.Contains(source.String(), "\nfunc "+f.test+"(") {
			t.Errorf("%s (%s): there is no %s", f.fault, f.expected, f.test)
		}
	}
}

// A server that answers with an error counts as one that is down: on one Redis the call fails, soon and with the server's words, and
// does not spin; a quorum works without the node, and says why if two of three are like that.
func TestFault_ServerErrors(t *testing.T) {
	t.Parallel()
	replicaOfNobody := func(t *testing.T, n *testutil.Node) {
		ok(t, "REPLICAOF", n.Client().ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
	}
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
		{"READONLY", "READONLY", nil, replicaOfNobody},
		{"NOREPLICAS", "NOREPLICAS", nil, set("min-replicas-to-write", "1")},
		{"OOM", "OOM", nil, set("maxmemory", "1")},
		{"maxclients", "", nil, func(t *testing.T, n *testutil.Node) {
			admin := n.Client() // has the one connection that is left; who comes after it reads an error, or that it is closed
			ok(t, "CONFIG SET", admin.ConfigSet(t.Context(), "maxclients", "1").Err())
		}},
		{"BUSY", "BUSY", []string{"--busy-reply-threshold", "20"}, busy},
		{"MISCONF", "MISCONF", []string{"--enable-protected-configs", "yes", "--save", "3600 1"}, misconf},
		{"LOADING", "LOADING", []string{"--save", "3600 1", "--key-load-delay", "20000", "--rdbcompression", "no", "--loading-process-events-interval-bytes", "1024"}, loading},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var nodes testutil.Nodes
			for range 2 {
				nodes = append(nodes, testutil.Redis(t, c.args...))
			}
			nodes = append(nodes, testutil.Redis(t))
			warm := locker(t, core.Clients(nodes.Clients()...), patient)
			ok(t, "Release", acquire(t, warm, "warm").Release(t.Context()))

			c.broken(t, nodes[0])
			fails(t, core.Clients(nodes[0].Client()), c.says)
			quorum := locker(t, core.Clients(nodes.Clients()...), patient)
			for _, l := range []*core.Locker{warm, quorum} {
				for range 5 {
					if k, err := l.Acquire(t.Context(), "k"); err == nil {
						ok(t, "Release without the node", k.Release(t.Context()))
					} else if l == warm || !strings.Contains(err.Error(), "started less than") { // a new process may not know that the others are new
						t.Errorf("with one node of three: %v", err)
					}
				}
			}
			c.broken(t, nodes[1])
			fails(t, core.Clients(nodes.Clients()...), c.says)
			eventually(t, "the survivor is released", func() bool {
				return nodes[2].Client().Exists(context.Background(), "onelane:{fails}").Val() == 0
			})
		})
	}
}

// fails checks that a lock cannot be had, and how that is said.
func fails(t *testing.T, b core.Backend, says string) {
	t.Helper()
	l := locker(t, b, patient)
	calls := core.CountCalls(core.BackendOf(l))
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
	for i, n := range calls {
		if n.Load() > 4 { // a try, one more where all nodes are new, and what it may have left
			t.Errorf("%d calls to node %d for one Acquire", n.Load(), i+1)
		}
	}
	if took := time.Since(start); took > 2*time.Second+hung {
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
	for i := range 150 {
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
	t.Cleanup(func() { <-restarted })
	eventually(t, "the server loads", func() bool {
		return strings.HasPrefix(fmt.Sprint(admin.Get(t.Context(), "k").Err()), "LOADING")
	})
}

// CLUSTERDOWN: a slot that nobody has.
func TestFault_ClusterDown(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3)
	l := locker(t, core.Clients(cluster.Client()), patient)
	ok(t, "Release", acquire(t, l, "fails").Release(t.Context()))
	owner := cluster.Nodes[cluster.Owner("onelane:{fails}")].Client()
	slot := owner.ClusterKeySlot(t.Context(), "onelane:{fails}").Val()
	ok(t, "DELSLOTS", owner.ClusterDelSlots(t.Context(), int(slot)).Err())
	eventually(t, "the cluster is down", func() bool {
		return strings.HasPrefix(fmt.Sprint(owner.Set(t.Context(), "onelane:{fails}", "v", 0).Err()), "CLUSTERDOWN")
	})
	fails(t, core.Clients(cluster.Client()), "CLUSTERDOWN")
	ok(t, "ADDSLOTS", owner.ClusterAddSlots(t.Context(), int(slot)).Err())
	eventually(t, "locks are granted again", func() bool {
		k, err := l.TryAcquire(t.Context(), "fails")
		return err == nil && k.Release(t.Context()) == nil
	})
}

// Requests to two of three nodes get lost: one grant is none, and it is given back.
func TestFault_RequestsLost(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	proxies, clients := proxied(t, nodes)
	l := locker(t, core.Clients(clients...), core.WithNodeTimeout(500*time.Millisecond))
	ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
	for _, p := range proxies[1:] {
		p.lose.Store(true)
	}
	_, err := l.Acquire(t.Context(), "k", core.WithTTL(time.Minute))
	want(t, "Acquire", err, core.ErrUnavailable)
	direct := nodes[0].Client()
	eventually(t, "the one grant is given back", func() bool { return direct.Exists(t.Context(), "onelane:{k}").Val() == 0 })
	for _, p := range proxies {
		p.lose.Store(false)
	}
	eventually(t, "locks are granted again", func() bool {
		k, err := l.Acquire(t.Context(), "k")
		return err == nil && k.Release(t.Context()) == nil
	})

	// A lock whose release gets lost everywhere ends with its TTL.
	k := acquire(t, l, "lost", core.WithTTL(time.Second), core.WithoutRenewal())
	for _, p := range proxies {
		p.lose.Store(true)
	}
	want(t, "Release", k.Release(t.Context()), core.ErrUnavailable)
	for _, n := range nodes {
		client := n.Client()
		eventually(t, "nothing is left after its TTL", func() bool { return client.Exists(t.Context(), "onelane:{lost}").Val() == 0 })
	}
}

// The answers come when the lease is over, or about to be: it is refused and released.
func TestFault_RepliesSlowerThanTheValidity(t *testing.T) {
	t.Parallel()
	for _, masters := range []int{1, 3} {
		nodes := testutil.Cluster(t, masters)
		proxies, clients := proxied(t, nodes)
		l := locker(t, core.Clients(clients...), core.WithNodeTimeout(5*time.Second))
		ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
		for _, p := range proxies {
			p.late.Store(int64(400 * time.Millisecond))
		}
		_, err := l.Acquire(t.Context(), "k", core.WithTTL(300*time.Millisecond))
		want(t, "Acquire", err, core.ErrUnavailable)
		if !strings.Contains(err.Error(), "about to end") {
			t.Errorf("%d masters: %v", masters, err)
		}
		for _, n := range nodes {
			client := n.Client()
			eventually(t, "it is released", func() bool { return client.Exists(t.Context(), "onelane:{k}").Val() == 0 })
		}
	}
}

func TestFault_ContextEndsInTheMiddleOfAnAcquireOnAQuorum(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	proxies, clients := proxied(t, nodes)
	l := locker(t, core.Clients(clients...), core.WithNodeTimeout(5*time.Second))
	for i := range 3 { // also when the slow ones are a minority, and when all are
		ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
		for _, p := range proxies[:i+1] {
			p.late.Store(int64(300 * time.Millisecond))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		start := time.Now()
		k, err := l.Acquire(ctx, "k", core.WithTTL(time.Minute))
		if took := time.Since(start); took > 100*time.Millisecond+hung {
			t.Errorf("it took %v with a deadline of 100 ms", took)
		}
		cancel()
		if err == nil { // two of three had answered
			_ = k.Release(context.Background())
		} else {
			want(t, "Acquire", err, context.DeadlineExceeded)
		}
		for _, p := range proxies {
			p.late.Store(0)
		}
		for _, n := range nodes {
			client := n.Client()
			eventually(t, "nothing stays held", func() bool { return client.Exists(context.Background(), "onelane:{k}").Val() == 0 })
		}
	}
}

// A node whose clock is ahead lets go of the key early. With the two others the lock is still held by a majority. (What the clock
// does to tokens is a matter of the simulation; here the key is taken away, as its expiry would.)
func TestFault_OneNodesClockIsAhead(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	l, other := locker(t, core.Clients(nodes.Clients()...), patient), locker(t, core.Clients(nodes.Clients()...), patient)
	k := acquire(t, l, "k")
	for _, n := range nodes {
		eventually(t, "all nodes hold it", func() bool { return n.Client().Exists(t.Context(), "onelane:{k}").Val() == 1 })
	}
	ok(t, "PEXPIREAT", nodes[0].Client().PExpireAt(t.Context(), "onelane:{k}", time.Now().Add(-time.Minute)).Err())
	for range 20 {
		_, err := other.TryAcquire(t.Context(), "k")
		want(t, "TryAcquire", err, core.ErrTaken)
	}
	ok(t, "Extend", k.Extend(t.Context(), time.Minute))
	ok(t, "Release", k.Release(t.Context()))
}
