package etcdbackend_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/etcdbackend"
	"github.com/onelane/onelane/testutil"
)

// staleLeader is a client's Lease that asks a member which was stopped before the lease was
// granted. That member still takes itself for the leader.
type staleLeader struct{ clientv3.Lease }

func (staleLeader) TimeToLive(
	_ context.Context, id clientv3.LeaseID, _ ...clientv3.LeaseOption,
) (*clientv3.LeaseTimeToLiveResponse, error) {
	return &clientv3.LeaseTimeToLiveResponse{ID: id, TTL: -1}, nil
}

// A stale member answers that a key's etcd lease does not exist. The process that asked does not
// take the key over while the key is there.
func TestTakeover_StaleLeader(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	acquire(t, open(t, etcd.Client()), request("k", time.Minute, time.Hour))
	client := etcd.Client()
	client.Lease = staleLeader{client.Lease}
	_, err := open(t, client).Acquire(t.Context(), request("k", time.Minute, time.Hour))
	want(t, "Acquire", err, core.ErrTaken)
}

// An Extend that has nothing to write says nevertheless that the lease is gone.
func TestExtend_NotLongerAfterRelease(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	b := open(t, etcd.Client())
	g := acquire(t, b, request("k", time.Minute, 0))
	_, err := b.Release(t.Context(), g)
	ok(t, "Release", err)
	_, err = b.Extend(t.Context(), g, time.Second)
	want(t, "Extend", err, core.ErrLost)
}

// An Extend with an older copy of the grant does not shorten the lease.
func TestExtend_StaleGrant(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	b := open(t, etcd.Client())
	g := acquire(t, b, request("k", time.Minute, 0))
	long, err := b.Extend(t.Context(), g, time.Hour)
	ok(t, "Extend", err)
	_, err = b.Extend(t.Context(), g, time.Minute)
	ok(t, "Extend", err)
	st, err := open(t, etcd.Client()).Inspect(t.Context(), "k")
	if ok(t, "Inspect", err); time.Now().Add(st.ExpiresIn).Before(long.Deadline) {
		t.Errorf("the key ends %v before the lease", time.Until(long.Deadline)-st.ExpiresIn)
	}
}

// After an Extend whose reply was lost, the lease may last longer than the grant says.
func TestRelease_AfterExtendOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	client, k := lossy(etcd.Client(), 0)
	b := open(t, client)
	var g core.Grant
	for ttl := time.Second; ; ttl *= 2 {
		if ttl > time.Minute {
			t.Fatal("this machine is too slow")
		}
		k.lose = func() (bool, <-chan struct{}) { return false, nil }
		g = acquire(t, b, request(fmt.Sprint("k", ttl), ttl, 0))
		ctx, cancel := context.WithCancel(t.Context())
		k.lose = func() (bool, <-chan struct{}) { cancel(); return true, nil }
		_, err := b.Extend(ctx, g, time.Hour)
		cancel()
		if errors.Is(err, core.ErrLost) && time.Now().After(g.Deadline) {
			continue // this machine was too slow
		}
		want(t, "Extend", err, core.ErrUnavailable)
		time.Sleep(ttl + 100*time.Millisecond)
		break
	}
	k.lose = func() (bool, <-chan struct{}) { return false, nil }
	_, err := b.Release(t.Context(), g)
	ok(t, "Release", err)
	if status(open(t, etcd.Client()), g.Key) != core.Free {
		t.Error("still held")
	}
}

// A failed adoption restores the orphan even if its clean-up comes when the lease has ended.
func TestCleanUp_FailedAdoptionAfterItsLease(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	other := open(t, etcd.Client())
	g := acquire(t, other, request("k", time.Second, time.Hour))
	client, k := lossy(etcd.Client(), 0)
	k.done = make(chan error, 1000)
	b := open(t, client)
	eventually(t, "the key is orphaned", func() bool { return status(b, "k") == core.Orphaned })
	var changes, lost atomic.Int64
	var reachable atomic.Bool
	late := make(chan struct{})
	k.lose = func() (bool, <-chan struct{}) { // the second one adopts, then etcd is out of reach
		if n := changes.Add(1); n <= 2 || reachable.Load() {
			return n == 2, nil
		}
		lost.Add(1)
		return false, late
	}
	defer func() {
		close(late)
		for range lost.Load() {
			<-k.done
		}
	}()
	r := request("k", time.Second, 0)
	r.Adopt = g.Owner
	_, err := b.Acquire(t.Context(), r)
	want(t, "Acquire", err, core.ErrUnavailable)
	resp, err := client.Get(t.Context(), "k")
	if ok(t, "Get", err); len(resp.Kvs) != 1 || !strings.Contains(string(resp.Kvs[0].Value), r.Owner) {
		t.Fatal("the adoption had no effect")
	}
	time.Sleep(1100 * time.Millisecond)
	reachable.Store(true)
	eventually(t, "the orphan is restored", func() bool {
		st, err := other.Inspect(t.Context(), "k")
		return err == nil && st.Status == core.Orphaned && st.Owner == g.Owner
	})
}

// The age of an orphan is asked for again if etcd did not answer the first time.
func TestTakeover_AgeUnknownAtFirst(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	began := time.Now()
	acquire(t, open(t, etcd.Client()), request("k", time.Second, time.Hour))
	took := time.Since(began) // the lease may be longer by that
	client := etcd.Client()
	leases := &silentLeases{Lease: client.Lease}
	leases.silent.Store(true)
	client.Lease = leases
	b := open(t, client)
	time.Sleep(4*time.Second + took) // etcd counts in whole seconds
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	leases.asked = cancel
	_, err := b.Acquire(ctx, request("k", time.Minute, time.Hour))
	want(t, "Acquire", err, core.ErrUnavailable)
	leases.silent.Store(false)
	_, err = b.Acquire(t.Context(), request("k", time.Minute, time.Hour))
	want(t, "Acquire", err, core.ErrOrphaned)
}

// silentLeases is a client's Lease that can leave questions without an answer.
type silentLeases struct {
	clientv3.Lease
	silent atomic.Bool
	asked  func()
}

func (l *silentLeases) TimeToLive(
	ctx context.Context, id clientv3.LeaseID, opts ...clientv3.LeaseOption,
) (*clientv3.LeaseTimeToLiveResponse, error) {
	if l.silent.Load() {
		l.asked()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return l.Lease.TimeToLive(ctx, id, opts...)
}

// slowLease is a client's Lease whose etcd takes long for a lease.
type slowLease struct {
	clientv3.Lease
	takes time.Duration
}

func (s slowLease) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	resp, err := s.Lease.Grant(ctx, ttl)
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
	}
	return resp, err
}

// An etcd that takes almost as long as WithTimeout allows still grants locks.
func TestAcquire_SlowEtcdLease(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	client := etcd.Client()
	client.Lease = slowLease{client.Lease, 3100 * time.Millisecond}
	b := open(t, client, etcdbackend.WithTimeout(14*time.Second)) // a quarter of it for each request
	acquire(t, b, request("k", time.Second, 0))
}

// The holder extends its lease while the answer to a read is under way.
func TestRead_LateAnswer(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	b := open(t, etcd.Client())
	g := acquire(t, b, request("k", time.Minute, 0))
	missed, err := etcdbackend.LateAnswer(t.Context(), b, "k", func() {
		_, err := b.Extend(t.Context(), g, time.Minute)
		ok(t, "Extend", err)
	})
	ok(t, "read", err)
	if missed != 0 {
		t.Errorf("an old answer is used, which misses %d changes", missed)
	}
}
