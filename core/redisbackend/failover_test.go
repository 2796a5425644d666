package redisbackend_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// A fail-over by Sentinel is a slow call, and tokens strictly increase.
func TestSentinel_FailOver(t *testing.T) {
	t.Parallel()
	s := testutil.Sentinel(t)
	l := locker(t, one(s.Client()), core.WithToken(), core.WithOutageWait(90*time.Second))
	var last uint64
	use := func() {
		t.Helper()
		k := acquire(t, l, "k")
		if token(t, k) <= last {
			t.Errorf("token %d after %d", token(t, k), last)
		}
		last = token(t, k)
		if err := k.Release(t.Context()); err != nil && !errors.Is(err, core.ErrUnavailable) {
			t.Errorf("Release: %v", err)
		}
	}
	for range 10 {
		use()
	}
	held := acquire(t, l, "held", core.WithTTL(2*time.Second))
	s.Master.Kill()
	for range 10 {
		use()
	}
	// It outlived the fail-over, or its holder learns that it is lost.
	if err := held.Release(t.Context()); err != nil {
		want(t, "Release of a lock from before", err, core.ErrLost)
	}
}

// The replica is promoted before the lock was replicated to it. The lock is lost, as the docs say,
// and its token tells.
func TestSentinel_LockNotReplicated(t *testing.T) {
	t.Parallel()
	s := testutil.Sentinel(t)
	first, second := locker(t, one(s.Client()), core.WithToken()), locker(t, one(s.Client()), core.WithToken())
	ok(t, "Release", acquire(t, first, "k").Release(t.Context()))
	eventually(t, "the Release is replicated", func() bool {
		return s.Master.Client().Exists(t.Context(), "onelane:{k}").Val()+s.Replica.Client().Exists(t.Context(), "onelane:{k}").Val() == 0
	})
	s.Lag()
	k := acquire(t, first, "k", core.WithTTL(time.Minute), core.WithMaxHold(0))
	s.Master.Kill()
	s.Promoted()
	if n := s.Replica.Client().Exists(t.Context(), "onelane:{k}").Val(); n != 0 {
		t.Fatal("the lock was replicated: this test tests nothing")
	}
	next := acquire(t, second, "k", core.WithOutageWait(90*time.Second))
	if token(t, next) <= token(t, k) {
		t.Errorf("token %d after %d: a resource could not tell the two apart", token(t, next), token(t, k))
	}
	eventually(t, "the first holder learns of the loss", func() bool {
		return errors.Is(k.Extend(t.Context(), time.Minute), core.ErrLost)
	})
}

// Sentinel names another master, and the old one goes on to answer this process alone.
func TestSentinel_OldMasterStillAnswers(t *testing.T) {
	t.Parallel()
	old, promoted := testutil.Redis(t), testutil.Redis(t)
	client, promote := named(t, "FailoverClient", old, promoted) // what go-redis calls a client of Sentinel
	l := locker(t, one(client), core.WithTTL(6*time.Second))
	k := acquire(t, l, "k")
	promote()
	// Renewals and new locks come to the promoted master, which does not know the lock.
	select {
	case <-k.Context().Done():
		want(t, "cause", context.Cause(k.Context()), core.ErrLost)
	case <-time.After(20 * time.Second):
		t.Error("the lock is renewed on the old master")
	}
	eventually(t, "new locks are on the promoted master", func() bool {
		k := acquire(t, l, "new")
		defer func() { _ = k.Release(t.Context()) }()
		return promoted.Client().Exists(t.Context(), "onelane:{new}").Val() == 1
	})
}

// Waiters listen at the promoted master, too: at the old one they would hear of no release.
func TestSentinel_WakeUpsFollow(t *testing.T) {
	t.Parallel()
	old, promoted := testutil.Redis(t), testutil.Redis(t)
	for _, n := range []*testutil.Node{old, promoted} {
		acquire(t, locker(t, one(n.Client())), "k", core.WithTTL(time.Hour))
	}
	client, promote := named(t, "FailoverClient", old, promoted)
	waiter := locker(t, one(client))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	gaveUp := make(chan error, 1)
	go func() {
		_, err := waiter.Acquire(ctx, "k")
		gaveUp <- err
	}()
	eventually(t, "the waiter listens", func() bool { return subscribers(t, old, "k") == 1 })
	promote()
	eventually(t, "the waiter listens at the promoted master", func() bool {
		return subscribers(t, promoted, "k") == 1 && subscribers(t, old, "k") == 0
	})
	cancel()
	want(t, "Acquire", <-gaveUp, context.Canceled)
}

// The name of a server leads to another one after a planned fail-over, as with ElastiCache or a
// Service of Kubernetes. The old master is a replica now and keeps its connections open.
func TestFailover_NameLeadsToTheNewMaster(t *testing.T) {
	t.Parallel()
	old, replicas := replicated(t, 1)
	promoted := replicas[0]
	client, promote := named(t, "redis.shop:6379", old, promoted)
	l := locker(t, one(client), core.WithTTL(time.Minute))
	k := acquire(t, l, "held")
	ok(t, "Extend", k.Extend(t.Context(), time.Minute)) // so that there is a connection for renewals, too
	confirms(t, old, 1)                                 // the replica has the lock

	host, port, _ := strings.Cut(promoted.Addr(), ":")
	ok(t, "REPLICAOF NO ONE", promoted.Client().ReplicaOf(t.Context(), "NO", "ONE").Err())
	ok(t, "REPLICAOF", old.Client().ReplicaOf(t.Context(), host, port).Err())
	promote()

	ok(t, "Release of a new lock", acquire(t, l, "new").Release(t.Context()))
	eventually(t, "the held lock is renewed", func() bool { return k.Extend(t.Context(), time.Hour) == nil })
	ok(t, "Release", k.Release(t.Context()))
}

// After a fail-over, clients reach the demoted master until the name leads elsewhere. It knows the
// recorded answers, and a client that repeats a request gets its answer at once.
func TestFailover_DemotedMasterAnswersAtOnce(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	l := locker(t, one(node.Client()))
	ok(t, "Seal", acquire(t, l, "paid").Seal(t.Context(), []byte("answer"), time.Hour))
	ok(t, "REPLICAOF", node.Client().ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
	const repeats = 20
	fast := 0
	for range repeats {
		began := time.Now()
		_, err := l.Acquire(t.Context(), "paid")
		want(t, "Acquire", err, core.ErrSealed)
		if time.Since(began) < 200*time.Millisecond {
			fast++
		}
	}
	if fast < repeats/2 {
		t.Errorf("%d of %d repeats got their answers at once", fast, repeats)
	}
}

// The name leads to the new master. The old one keeps its connections, and has no data that it may
// serve: it cannot reach the new master yet.
func TestFailover_DemotedMasterWithoutItsMaster(t *testing.T) {
	t.Parallel()
	old, replicas := replicated(t, 1)
	promoted := replicas[0]
	client, promote := named(t, "redis.shop:6379", old, promoted)
	l := locker(t, one(client), core.WithTTL(time.Minute))
	k := acquire(t, l, "held")
	ok(t, "Extend", k.Extend(t.Context(), time.Minute)) // so that there is a connection for renewals, too
	confirms(t, old, 1)                                 // the replica has the lock

	ok(t, "REPLICAOF NO ONE", promoted.Client().ReplicaOf(t.Context(), "NO", "ONE").Err())
	ok(t, "CONFIG SET", old.Client().ConfigSet(t.Context(), "replica-serve-stale-data", "no").Err())
	ok(t, "REPLICAOF", old.Client().ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
	promote()

	eventually(t, "the held lock is renewed", func() bool { return k.Extend(t.Context(), time.Hour) == nil })
	eventually(t, "the service is ready", func() bool { return l.Ping(t.Context()) == nil })
}

// A fail-over loses the lock, and another process gets it. The holder's first call after that is
// its Release, on a connection that the old master's end has closed.
func TestFailover_ReleaseTellsOfTheLoss(t *testing.T) {
	t.Parallel()
	for _, another := range []bool{true, false} {
		old, promoted := testutil.Redis(t), testutil.Redis(t)
		client, promote := named(t, "redis.shop:6379", old, promoted)
		l, others := locker(t, one(client)), locker(t, one(promoted.Client()))
		ok(t, "Release", acquire(t, l, "warm").Release(t.Context())) // how this server releases is known
		k := acquire(t, l, "k", core.WithTTL(time.Minute))
		old.Kill()
		promote()
		if another {
			acquire(t, others, "k", core.WithTTL(time.Minute)) // two are inside
		}
		time.Sleep(time.Second) // the end of the connection has come
		want(t, "Release", k.Release(t.Context()), core.ErrLost)
	}
}

// A process reads on a connection to a demoted master, whose copy is old. It must not conclude from
// it that a key is free.
func TestFailover_UnsealAtTheDemotedMaster(t *testing.T) {
	t.Parallel()
	old, promoted := testutil.Redis(t), testutil.Redis(t)
	client, promote := named(t, "redis.shop:6379", old, promoted)
	l, others := locker(t, one(client)), locker(t, one(promoted.Client()))
	if got := status(t, l, "paid"); got != core.Free {
		t.Fatalf("the key is %v", got)
	}
	ok(t, "REPLICAOF", old.Client().ReplicaOf(t.Context(), "127.0.0.1", "1").Err()) // it is not in sync
	promote()
	ok(t, "Seal", acquire(t, others, "paid").Seal(t.Context(), []byte("v"), time.Hour))
	time.Sleep(300 * time.Millisecond) // the connection is not new
	eventually(t, "Unseal", func() bool { return l.Unseal(t.Context(), "paid") == nil })
	if got := status(t, others, "paid"); got != core.Free {
		t.Errorf("Unseal returned nil, and the key is %v", got)
	}
}

// named returns a client of a name that leads to old, and after promote to promoted. Connections to
// old stay.
func named(t testing.TB, name string, old, promoted *testutil.Node) (client *redis.Client, promote func()) {
	t.Helper()
	var failedOver atomic.Bool
	client = newClient(t, &redis.Options{
		Addr: name,
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			addr := old.Addr()
			if failedOver.Load() {
				addr = promoted.Addr()
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	})
	return client, func() { failedOver.Store(true) }
}
