package rueidisdriver_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// While the name still leads to a demoted master, a connection that is replaced leads there again.
// So it is not replaced at every call.
func TestFault_ReplicaCostsFewConnections(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	var dials atomic.Int64
	c := client(t, rueidis.ClientOption{InitAddress: []string{node.Addr()}, DisableCache: true,
		DialCtxFn: func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			dials.Add(1)
			return d.DialContext(ctx, "tcp", addr)
		}})
	l := locker(t, patient(c), core.WithOutageWait(0))
	ok(t, "Release", acquire(t, l, "warm").Release(t.Context()))
	ok(t, "REPLICAOF", node.Client().ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
	time.Sleep(300 * time.Millisecond) // the connections are not new
	before, began := dials.Load(), time.Now()
	for range 100 {
		_, err := l.TryAcquire(t.Context(), "k")
		want(t, "TryAcquire", err, core.ErrUnavailable)
	}
	most := 2 + 2*int64(time.Since(began)/(250*time.Millisecond))
	if n := dials.Load() - before; n > most {
		t.Errorf("100 calls made %d connections, want at most %d", n, most)
	}
}

// replicated starts a master with a replica.
func replicated(t *testing.T) (master, replica *testutil.Node) {
	t.Helper()
	master = testutil.Redis(t, "--repl-diskless-sync-delay", "0")
	host, port, _ := strings.Cut(master.Addr(), ":")
	replica = testutil.Redis(t, "--replicaof", host+" "+port)
	eventually(t, "the replica confirms", func() bool { return master.Client().Wait(t.Context(), 1, time.Second).Val() == 1 })
	return master, replica
}

// confirmed is the backend on one client, whose locks a replica confirms.
func confirmed(c rueidis.Client, timeout time.Duration) redisbackend.Config {
	b := patient(c)
	b.Replicas, b.ReplicaTimeout = 1, timeout
	return b
}

func TestBackend_Replicas(t *testing.T) {
	t.Parallel()
	master, _ := replicated(t)
	b := open(t, confirmed(single(t, master.Addr()), 5*time.Second))
	backendtest.TestSealer(t, func(*testing.T) core.Backend { return b })
}

// The replica has each lock, renewal and seal when the call returns. Without it, nothing is granted,
// and calls that need no replica go on.
func TestReplicas_Stopped(t *testing.T) {
	t.Parallel()
	master, replica := replicated(t)
	l := locker(t, confirmed(single(t, master.Addr()), 5*time.Second), core.WithTTL(time.Minute))
	for key, opts := range map[string][]core.AcquireOption{"plain": nil, "token": {core.WithToken()}} {
		name := "onelane:{" + key + "}"
		k := acquire(t, l, key, opts...)
		if replica.Client().Exists(t.Context(), name).Val() != 1 {
			t.Errorf("%s: the replica has not got the lock", key)
		}
		ok(t, "Extend", k.Extend(t.Context(), time.Hour))
		if left := replica.Client().PTTL(t.Context(), name).Val(); left < 30*time.Minute {
			t.Errorf("%s: the replica has not got the extension: %v", key, left)
		}
		ok(t, "Seal", k.Seal(t.Context(), []byte("v"), time.Minute))
		if v := replica.Client().Get(t.Context(), name).Val(); !strings.HasSuffix(v, ":v") {
			t.Errorf("%s: the replica has %q and not the seal", key, v)
		}
	}
	short := locker(t, confirmed(single(t, master.Addr()), 250*time.Millisecond), core.WithOutageWait(0), core.WithTTL(10*time.Minute))
	before := acquire(t, short, "before", retried)
	replica.Stop()
	t.Cleanup(replica.Cont)
	_, err := short.Acquire(t.Context(), "k")
	if want(t, "Acquire", err, core.ErrUnavailable); !strings.Contains(err.Error(), "0 of the 1 replicas") {
		t.Errorf("the error does not say how many confirmed: %v", err)
	}
	if master.Client().Exists(t.Context(), "onelane:{k}").Val() != 0 {
		t.Error("the lock was not given back")
	}
	until := before.Deadline()
	want(t, "Extend", before.Extend(t.Context(), time.Hour), core.ErrUnavailable)
	if !before.Deadline().Equal(until) {
		t.Errorf("the lease ends %v later than before", before.Deadline().Sub(until))
	}
	ok(t, "Release", before.Release(t.Context()))
}

// Each shard asks its own replicas, and none confirms what is written while a slot moves.
func TestReplicas_RedisCluster(t *testing.T) {
	t.Parallel()
	c := testutil.RedisCluster(t, 2)
	with := c.Owner("with")
	ok(t, "CONFIG SET", c.Nodes[with].Client().ConfigSet(t.Context(), "repl-diskless-sync-delay", "0").Err())
	joined(t, c.Nodes[1-with], c.Nodes[with])
	other := "other"
	for i := 0; c.Owner(other) == with; i++ {
		other = fmt.Sprint("other", i)
	}
	l := locker(t, confirmed(clustered(t, c), 250*time.Millisecond), core.WithOutageWait(0))
	ok(t, "Release", acquire(t, l, "with", retried).Release(t.Context()))
	_, err := l.Acquire(t.Context(), other)
	if want(t, "Acquire", err, core.ErrUnavailable); !strings.Contains(err.Error(), "0 of the 1 replicas") {
		t.Error(err)
	}
	move := c.BeginMove("with", 1-with)
	eventually(t, "the reason", func() bool { // a busy machine gets no answer in time
		_, err = l.Acquire(t.Context(), "with")
		want(t, "Acquire while the slot moves", err, core.ErrUnavailable)
		return strings.Contains(err.Error(), "moving")
	})
	move.EndMove()
}
