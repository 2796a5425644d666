package redisbackend_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// replicated starts a master with n replicas.
func replicated(t *testing.T, n int) (master *testutil.Node, replicas []*testutil.Node) {
	t.Helper()
	master = testutil.Redis(t, "--repl-diskless-sync-delay", "0")
	host, port, _ := strings.Cut(master.Addr(), ":")
	for range n {
		replicas = append(replicas, testutil.Redis(t, "--replicaof", host+" "+port))
	}
	confirms(t, master, n)
	return master, replicas
}

// confirms waits until n replicas confirm a write.
func confirms(t *testing.T, master *testutil.Node, n int) {
	t.Helper()
	conn := master.Client().Conn()
	defer func() { _ = conn.Close() }()
	eventually(t, "the replicas confirm", func() bool {
		return conn.Set(t.Context(), "onelane:{confirms}", "", time.Second).Err() == nil &&
			conn.Wait(t.Context(), n, 100*time.Millisecond).Val() == int64(n)
	})
}

// confirmed is the backend on one client, whose locks n replicas confirm.
func confirmed(client redis.UniversalClient, n int, timeout time.Duration) redisbackend.Config {
	c := one(client)
	c.Replicas, c.ReplicaTimeout = n, timeout
	return c
}

const replicaTimeout = 250 * time.Millisecond

func held(t testing.TB, n *testutil.Node, key string) bool {
	t.Helper()
	count, err := n.Client().Exists(context.Background(), "onelane:{"+key+"}").Result()
	ok(t, "EXISTS", err)
	return count == 1
}

func TestReplicas_HaveEachLock(t *testing.T) {
	t.Parallel()
	master, replicas := replicated(t, 2)
	l := locker(t, confirmed(master.Client(), 2, 5*time.Second), core.WithTTL(time.Minute))
	for key, opts := range map[string][]core.AcquireOption{"plain": nil, "token": {core.WithToken()}} {
		k := acquire(t, l, key, opts...)
		for i, r := range replicas {
			if !held(t, r, key) {
				t.Errorf("%s: replica %d has not got the lock", key, i)
			}
		}
		ok(t, "Extend", k.Extend(t.Context(), time.Hour))
		for i, r := range replicas {
			if left := r.Client().PTTL(t.Context(), "onelane:{"+key+"}").Val(); left < 30*time.Minute {
				t.Errorf("%s: replica %d has not got the extension: %v", key, i, left)
			}
		}
		ok(t, "Seal", k.Seal(t.Context(), []byte("v"), time.Minute))
		for i, r := range replicas {
			if v := r.Client().Get(t.Context(), "onelane:{"+key+"}").Val(); !strings.HasSuffix(v, ":v") {
				t.Errorf("%s: replica %d has %q and not the seal", key, i, v)
			}
		}
	}
}

// A lock that too few replicas confirmed is not granted, and is free at once.
func TestReplicas_OneStopped(t *testing.T) {
	t.Parallel()
	master, replicas := replicated(t, 2)
	both := locker(t, confirmed(master.Client(), 2, replicaTimeout), core.WithOutageWait(0))
	either := locker(t, confirmed(master.Client(), 1, replicaTimeout), core.WithOutageWait(0))
	patient, long := core.WithOutageWait(30*time.Second), core.WithTTL(10*time.Minute) // on a busy machine
	k, sealing := acquire(t, both, "before", patient, long), acquire(t, both, "seal", patient, long)
	replicas[1].Stop()

	for _, opts := range [][]core.AcquireOption{nil, {core.WithToken()}, {core.WithOrphan(time.Minute)}} {
		start := time.Now()
		_, err := both.Acquire(t.Context(), "k", opts...)
		want(t, "Acquire", err, core.ErrUnavailable)
		if took := time.Since(start); took > 2*replicaTimeout+hung {
			t.Errorf("Acquire took %v", took)
		}
		if !strings.Contains(err.Error(), " of the 2 replicas") || !strings.Contains(err.Error(), `"k"`) {
			t.Errorf("the error does not say how many confirmed: %v", err)
		}
		if held(t, master, "k") {
			t.Error("the lock was not given back")
		}
	}
	// A call learns without replicas that another caller holds the key.
	_, err := both.TryAcquire(t.Context(), "before", core.WithTag("second"))
	want(t, "TryAcquire of a held key", err, core.ErrTaken)

	until := k.Deadline()
	want(t, "Extend", k.Extend(t.Context(), time.Hour), core.ErrUnavailable)
	if !k.Deadline().Equal(until) {
		t.Errorf("the lease ends %v later than before", k.Deadline().Sub(until))
	}
	ok(t, "Release", k.Release(t.Context()))

	want(t, "Seal", sealing.Seal(t.Context(), []byte("v"), time.Minute), core.ErrUnavailable)
	_, err = either.TryAcquire(t.Context(), "seal")
	want(t, "TryAcquire of a key whose seal is on the master", err, core.ErrSealed)

	other := acquire(t, either, "k", patient, long)
	eventually(t, "Extend with one replica", func() bool { return other.Extend(t.Context(), time.Minute) == nil })
	ok(t, "Release with one replica", other.Release(t.Context()))

	replicas[1].Cont()
	eventually(t, "Seal again", func() bool { return sealing.Seal(t.Context(), []byte("v"), time.Minute) == nil })
	ok(t, "Release", acquire(t, both, "k", patient).Release(t.Context()))
}

// An adoption that is not confirmed does not forget the orphan.
func TestReplicas_AdoptionNotConfirmed(t *testing.T) {
	t.Parallel()
	master, replicas := replicated(t, 1)
	b := open(t, confirmed(master.Client(), 1, replicaTimeout))
	q := core.Request{Key: "k", Owner: "shop/1;60000", TTL: time.Second, Orphan: time.Minute}
	eventually(t, "Acquire", func() bool { _, err := b.Acquire(t.Context(), q); return err == nil })
	eventually(t, "the key is orphaned", func() bool {
		st, err := b.Inspect(t.Context(), "k")
		return err == nil && st.Status == core.Orphaned
	})
	replicas[0].Stop()
	_, err := b.Acquire(t.Context(), core.Request{Key: "k", Owner: "shop/2;60000", TTL: 10 * time.Second, Orphan: time.Minute, Adopt: q.Owner})
	want(t, "Acquire", err, core.ErrUnavailable)
	// It is an orphan again when the lease ends.
	if st, err := b.Inspect(t.Context(), "k"); err != nil || st.Owner != "shop/2;60000" {
		t.Errorf("the orphan is forgotten: %+v, %v", st, err)
	}
}

// The reply of the write has come, and that of WAIT never does.
func TestReplicas_WaitNotAnswered(t *testing.T) {
	t.Parallel()
	master, replicas := replicated(t, 1)
	l := locker(t, confirmed(master.Client(), 1, time.Minute), core.WithTTL(10*time.Minute))
	k := acquire(t, l, "before")
	ok(t, "Extend", k.Extend(t.Context(), 10*time.Minute)) // the master knows the script
	until := k.Deadline()
	replicas[0].Stop()
	defer replicas[0].Cont()
	results := make(chan error, 2)
	go func() {
		_, err := l.Acquire(context.Background(), "k", core.WithOutageWait(0))
		results <- err
	}()
	eventually(t, "the first call waits for the replica", func() bool { return blocked(t, master) == 1 })
	go func() { results <- k.Extend(context.Background(), time.Hour) }() // in one pipeline they would share a WAIT
	eventually(t, "two calls wait for the replica", func() bool { return blocked(t, master) == 2 })
	ok(t, "CLIENT KILL", master.Client().Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err())
	want(t, "first call", <-results, core.ErrUnavailable)
	want(t, "second call", <-results, core.ErrUnavailable)
	if !k.Deadline().Equal(until) {
		t.Errorf("the lease ends %v later than before", k.Deadline().Sub(until))
	}
	eventually(t, "the lock is given back", func() bool { return !held(t, master, "k") })
}

// A caller that leaves before ReplicaTimeout learns how many replicas confirmed.
func TestReplicas_CallerLeavesSooner(t *testing.T) {
	t.Parallel()
	master, replicas := replicated(t, 1)
	l := locker(t, confirmed(master.Client(), 1, time.Minute), core.WithTTL(10*time.Minute))
	k := acquire(t, l, "k")
	replicas[0].Stop()
	defer replicas[0].Cont()
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		err := k.Extend(ctx, time.Hour)
		if end, _ := ctx.Deadline(); !time.Now().Before(end) { // a busy machine read the answer too late
			wantEnded(t, "Extend", err, context.DeadlineExceeded)
			continue
		}
		if want(t, "Extend", err, core.ErrUnavailable); !strings.Contains(err.Error(), "0 of the 1 replicas") {
			t.Errorf("Extend: %v", err)
		}
		return
	}
	t.Error("the answer never came before the caller left")
}

// blocked returns how many clients of a node WAIT.
func blocked(t testing.TB, n *testutil.Node) int {
	t.Helper()
	clients, err := n.Client().InfoMap(context.Background(), "clients").Result()
	ok(t, "INFO", err)
	count, err := strconv.Atoi(clients["Clients"]["blocked_clients"])
	ok(t, "blocked_clients", err)
	return count
}

// A renewal that replicas do not confirm in time loses the lock by its deadline.
func TestReplicas_HungAtRenewal(t *testing.T) {
	t.Parallel()
	master, replicas := replicated(t, 1)
	l := locker(t, confirmed(master.Client(), 1, replicaTimeout), core.WithTTL(3*time.Second))
	k := acquire(t, l, "k")
	replicas[0].Stop()
	stopped := time.Now()
	select {
	case <-k.Context().Done():
		want(t, "cause", context.Cause(k.Context()), core.ErrLost)
	case <-time.After(20 * time.Second):
		t.Fatal("the holder was not told of the loss")
	}
	// The answer of a renewal that was sent before may come later.
	if beyond := k.Deadline().Sub(stopped.Add(3 * time.Second)); beyond > 0 {
		t.Errorf("the lease was renewed without the replica: it ended %v too late", beyond)
	}
}

// signal is a log that tells when a text was logged.
type signal struct {
	text string
	seen chan struct{}
	once sync.Once
}

func (s *signal) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte(s.text)) {
		s.once.Do(func() { close(s.seen) })
	}
	return len(line), nil
}

// A lock outlives a replica that hangs for a while.
func TestReplicas_HungReplicaComesBack(t *testing.T) {
	t.Parallel()
	master, replicas := replicated(t, 1)
	err := outlivesHang(t, master, replicas[0], 6*time.Second)
	for try := 1; errors.Is(err, core.ErrLost) && try < 4; try++ { // a busy machine needs a longer lease
		err = outlivesHang(t, master, replicas[0], 9*time.Second)
	}
	ok(t, "the lock", err)
}

// outlivesHang holds a lock while its replica hangs until a renewal fails, and returns why it ended.
func outlivesHang(t *testing.T, master, replica *testutil.Node, ttl time.Duration) error {
	failed := &signal{text: "renewal failed", seen: make(chan struct{})}
	l := locker(t, confirmed(master.Client(), 1, replicaTimeout), core.WithTTL(ttl),
		core.WithLogger(slog.New(slog.NewTextHandler(failed, nil))))
	k := acquire(t, l, "k")
	until := k.Deadline()
	replica.Stop()
	select {
	case <-failed.seen:
	case <-k.Context().Done():
	case <-time.After(check.Patience):
		t.Error("no renewal failed")
	}
	replica.Cont()
	eventually(t, "the lock is renewed or lost", func() bool { return k.Err() != nil || k.Deadline().After(until) })
	return errors.Join(k.Err(), k.Release(t.Context()))
}

// After a fail-over the promoted replica has the lock. A lock that the replica has not got was not
// granted.
func TestReplicas_FailOver(t *testing.T) {
	t.Parallel()
	s := testutil.Sentinel(t)
	l := locker(t, confirmed(s.Client(), 1, time.Second), core.WithOutageWait(0))
	others, third := locker(t, one(s.Client()), core.WithOutageWait(30*time.Second)), locker(t, one(s.Client()), core.WithOutageWait(30*time.Second))
	patient := core.WithOutageWait(30 * time.Second) // on a busy machine
	k := acquire(t, l, "k", core.WithTTL(5*time.Minute), core.WithMaxHold(0), patient)
	sealed := acquire(t, l, "sealed", core.WithTTL(5*time.Minute), patient)
	eventually(t, "Seal", func() bool { return sealed.Seal(t.Context(), []byte("v"), time.Hour) == nil })

	s.Lag()
	plain := acquire(t, others, "plain", core.WithTTL(5*time.Minute), core.WithMaxHold(0))
	_, err := l.Acquire(t.Context(), "refused")
	want(t, "Acquire while nothing is replicated", err, core.ErrUnavailable)

	s.Master.Kill()
	s.Promoted()
	_, err = others.Acquire(t.Context(), "sealed")
	want(t, "Acquire of the confirmed seal", err, core.ErrSealed)
	_, err = others.TryAcquire(t.Context(), "k")
	want(t, "TryAcquire of the confirmed lock", err, core.ErrTaken)
	if st, err := others.Inspect(t.Context(), "k"); err != nil || st.Owner != k.Owner() {
		t.Errorf("the promoted replica has %+v, %v; want the owner %s", st, err, k.Owner())
	}
	ok(t, "Err", k.Err())
	// Without Replicas, another gets the lock while its holder works.
	acquire(t, third, "plain")
	ok(t, "Err of the lock that is lost", plain.Err())
	if held(t, s.Replica, "refused") {
		t.Error("a lock that was not granted is held")
	}
}

// Each shard asks its own replicas, and none confirms what is written while a slot moves.
func TestReplicas_RedisCluster(t *testing.T) {
	t.Parallel()
	c := testutil.RedisCluster(t, 2)
	l := locker(t, confirmed(c.Client(), 1, replicaTimeout), core.WithOutageWait(0))
	with, without := c.Owner("with"), 1-c.Owner("with")
	addReplica(t, c.Nodes[with])
	other := "other"
	for i := 0; c.Owner(other) != without; i++ {
		other = fmt.Sprint("other", i)
	}
	k := acquire(t, l, "with", core.WithOutageWait(30*time.Second))
	eventually(t, "Extend", func() bool { return k.Extend(t.Context(), time.Minute) == nil })
	ok(t, "Release", k.Release(t.Context()))
	_, err := l.Acquire(t.Context(), other)
	want(t, "Acquire", err, core.ErrUnavailable)
	if !strings.Contains(err.Error(), "0 of the 1 replicas") {
		t.Error(err)
	}

	move := c.BeginMove("with", without)
	eventually(t, "the reason", func() bool { // a busy machine gets no answer in time
		_, err = l.Acquire(t.Context(), "with")
		want(t, "Acquire while the slot moves", err, core.ErrUnavailable)
		return strings.Contains(err.Error(), "moving")
	})
	eventually(t, "the key is free", func() bool { return status(t, l, "with") == core.Free })
	move.EndMove()
}

// addReplica gives a master of a Redis Cluster a replica.
func addReplica(t *testing.T, master *testutil.Node) {
	t.Helper()
	ctx := t.Context()
	replica := testutil.Redis(t, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf")
	id, err := master.Client().Do(ctx, "CLUSTER", "MYID").Text()
	ok(t, "CLUSTER MYID", err)
	ok(t, "CONFIG SET", master.Client().ConfigSet(ctx, "repl-diskless-sync-delay", "0").Err())
	host, port, _ := strings.Cut(master.Addr(), ":")
	ok(t, "CLUSTER MEET", replica.Client().ClusterMeet(ctx, host, port).Err())
	eventually(t, "the replica knows its master", func() bool {
		return replica.Client().ClusterReplicate(ctx, id).Err() == nil
	})
	eventually(t, "the replica has what its master has", func() bool {
		return strings.Contains(master.Client().Info(ctx, "replication").Val(), "state=online")
	})
}

// Many calls share one WAIT, and calls that need no replicas do not wait.
func TestReplicas_HungReplicaAndOtherCalls(t *testing.T) {
	t.Parallel()
	master, replicas := replicated(t, 1)
	// The replica comes back long before this time-out.
	l := locker(t, confirmed(master.Client(), 1, time.Minute), core.WithTTL(10*time.Minute))
	before := acquire(t, l, "before")
	replicas[0].Stop()
	defer replicas[0].Cont()
	const callers = 200
	results := make(chan error, callers)
	counts := master.Commands(t, func() {
		for i := range callers {
			go func() {
				_, err := l.Acquire(context.Background(), fmt.Sprint("k", i), core.WithOutageWait(0))
				results <- err
			}()
		}
		eventually(t, "callers wait for the replica", func() bool {
			return blocked(t, master) > 0
		})
		ok(t, "Release", before.Release(t.Context()))
		time.Sleep(time.Second + time.Second/5) // longer than NodeTimeout: calls in the queue wait for the replica, too
		if n := len(results); n > 0 {
			t.Errorf("%d calls did not wait for the replica: %v", n, <-results)
		}
		replicas[0].Cont()
		for range callers {
			ok(t, "Acquire", <-results)
		}
	})
	if counts["wait"] > callers/4 {
		t.Errorf("%d calls sent %d WAIT", callers, counts["wait"])
	}
}

// A server that refuses WAIT grants nothing, and nothing stays held.
func TestReplicas_WaitForbidden(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	client := restricted(t, node, append(neededCommands, betterCommands...))
	l := locker(t, confirmed(client, 1, replicaTimeout))
	_, err := l.Acquire(t.Context(), "k")
	want(t, "Acquire", err, core.ErrUnavailable)
	var unavailable *core.UnavailableError
	if errors.As(err, &unavailable); !unavailable.Permanent || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("the cause is hidden: %v", err)
	}
	if held(t, node, "k") {
		t.Error("the lock was not given back")
	}
}

func TestBackend_Replicas(t *testing.T) {
	t.Parallel()
	master, _ := replicated(t, 1)
	w := newWaitRule(t, master)
	b := openQuorum(t, confirmed(w.client(t), 1, 5*time.Second), time.Minute)
	backendtest.TestSealer(t, func(*testing.T) core.Backend { return b })
	for _, c := range w.wroteNothing() {
		t.Errorf("success without a write: %s", c)
	}
}

func TestReplicas_Refused(t *testing.T) {
	t.Parallel()
	a, b, c := testutil.MiniRedis(t), testutil.MiniRedis(t), testutil.MiniRedis(t)
	quorum, pool := redisbackend.New(a, b, c), redisbackend.Pools(testutil.Redis(t).Pool())
	quorum.Replicas, quorum.ReplicaTimeout = 1, replicaTimeout
	pool.Replicas, pool.ReplicaTimeout = 1, replicaTimeout
	for name, refused := range map[string]struct {
		redisbackend.Config
		says string
	}{
		"a quorum":            {quorum, "quorum"},
		"a pool":              {pool, "redsync pools"},
		"a negative number":   {confirmed(a, -1, replicaTimeout), "negative"},
		"no time-out":         {confirmed(a, 1, 0), "positive"},
		"a negative time-out": {confirmed(a, 1, -1), "positive"},
		"no number":           {confirmed(a, 0, replicaTimeout), "without Replicas"},
		"a long time-out":     {confirmed(a, 1, 2*time.Second), "eighth of the TTL"},
	} {
		if _, err := core.New(refused, core.WithTTL(10*time.Second)); err == nil || !strings.Contains(err.Error(), refused.says) {
			t.Errorf("New with %s: %v", name, err)
		}
	}
}
