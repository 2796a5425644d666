package etcdbackend_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/etcdbackend"
	"github.com/onelane/onelane/testutil"
)

// A process that watches a key takes it over a TTL after its last renewal, and no sooner.
func TestTakeover_NotBeforeTheTTL(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	first, second := open(t, etcd.Client()), open(t, etcd.Client())
	var key string
	var g, renewed core.Grant
	for ttl := time.Second; ; ttl *= 2 {
		if ttl > time.Minute {
			t.Fatal("this machine is too slow")
		}
		key = fmt.Sprint("k", ttl)
		g = acquire(t, first, request(key, ttl, 0))
		_, taken := second.Acquire(t.Context(), request(key, time.Minute, 0))
		var err error
		renewed, err = first.Extend(t.Context(), g, ttl)
		if errors.Is(err, core.ErrLost) && time.Now().After(g.Deadline) {
			continue // this machine was too slow
		}
		want(t, "Acquire", taken, core.ErrTaken)
		ok(t, "Extend", err)
		break
	}
	for {
		next, err := second.Acquire(t.Context(), request(key, time.Minute, 0))
		if err == nil {
			if time.Now().Before(renewed.Deadline) || next.Token < g.Token+g.Tokens {
				t.Errorf("taken over %v before the deadline, token %d after %d", time.Until(renewed.Deadline), next.Token, g.Token)
			}
			break
		}
		want(t, "Acquire", err, core.ErrTaken)
		time.Sleep(5 * time.Millisecond)
	}
	_, err := first.Extend(t.Context(), renewed, time.Minute)
	want(t, "Extend by who was taken over", err, core.ErrLost)
	_, err = first.Release(t.Context(), renewed)
	want(t, "Release by who was taken over", err, core.ErrLost)
	want(t, "Seal by who was taken over", first.Seal(t.Context(), renewed, nil, time.Minute), core.ErrLost)
	if status(second, key) != core.Held {
		t.Error("the new holder lost the key")
	}
}

// A process that has never seen the key learns from etcd how old its lease is.
func TestTakeover_NewProcessSeesOrphan(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	began := time.Now()
	g := acquire(t, open(t, etcd.Client()), request("k", time.Second, time.Hour))
	ended, took := g.Deadline, time.Since(began) // etcd's lease may end later by that
	client := etcd.Client()
	var orphaned *core.OrphanedError
	var asked time.Time
	eventually(t, "a new process sees the orphan", func() bool {
		fresh := open(t, client)
		asked = time.Now()
		_, err := fresh.Acquire(t.Context(), request("k", time.Minute, 0))
		if err == nil {
			t.Fatal("the orphan was taken over by who does not know of it")
		}
		return errors.As(err, &orphaned) && status(fresh, "k") == core.Orphaned
	})
	// etcd counts in whole seconds, and says how long ago it was. The answer takes a while.
	latest := 3*time.Second + took + time.Since(asked)
	if late := orphaned.Since.Sub(ended); orphaned.Owner != g.Owner || late < -time.Second || late > latest {
		t.Errorf("orphan of %q, %v after its deadline", orphaned.Owner, late)
	}
	ok(t, "Unseal", open(t, client).Unseal(t.Context(), "k"))
	if status(open(t, client), "k") != core.Free {
		t.Error("a new process could not free the orphan")
	}
}

// Keys that nobody looks at any more leave nothing in etcd.
func TestGarbage_EndsByItself(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	client := etcd.Client()
	b := open(t, client)
	begun := time.Now()
	acquire(t, b, request("held", time.Second, 0))
	acquire(t, b, request("orphan", time.Second, time.Second))
	g := acquire(t, b, request("sealed", time.Minute, 0))
	ok(t, "Seal", b.Seal(t.Context(), g, []byte("v"), time.Second))
	g = acquire(t, b, request("released", time.Minute, 0))
	_, err := b.Release(t.Context(), g)
	ok(t, "Release", err)
	// An attempt that was too slow leaves a mark for ten minutes.
	all := func() int64 { return keys(t, client, "") - keys(t, client, "held\x00") - keys(t, client, "orphan\x00") }
	if n := all(); n > 3 || n < 3 && time.Since(begun) < time.Second {
		t.Errorf("%d keys, want 3", n)
	}
	eventually(t, "etcd is empty", func() bool { return all() == 0 })
}

// Many locks share few etcd leases.
func TestGarbage_FewEtcdLeases(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	client := etcd.Client()
	b := open(t, client)
	for range 200 {
		g := acquire(t, b, request("k", time.Hour, time.Hour))
		_, err := b.Release(t.Context(), g)
		ok(t, "Release", err)
	}
	leases, err := client.Leases(t.Context())
	if ok(t, "Leases", err); len(leases.Leases) != 1 {
		t.Errorf("%d etcd leases for 200 locks, want one", len(leases.Leases))
	}
	// Somebody revokes it: locks that were held are lost, and the next one gets a new lease.
	lost := acquire(t, b, request("lost", time.Hour, time.Hour))
	_, err = client.Revoke(t.Context(), leases.Leases[0].ID)
	ok(t, "Revoke", err)
	_, err = b.Extend(t.Context(), lost, 2*time.Hour)
	want(t, "Extend", err, core.ErrLost)
	acquire(t, b, request("next", time.Hour, time.Hour))
}

// etcd removes no key before its lease ends, even if the key shares an etcd lease that began
// before.
func TestGarbage_NotBeforeTheTTL(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	client := etcd.Client()
	b := open(t, client)
	for shared, tries := false, 0; !shared; tries++ {
		if tries == 20 {
			t.Fatal("two keys never share an etcd lease")
		}
		g := acquire(t, b, request("warm", 4*time.Second, 0))
		begun := time.Now()
		lease := leaseOf(t, client, "warm")
		for time.Since(begun) < 800*time.Millisecond { // the etcd lease gets older
			time.Sleep(10 * time.Millisecond)
		}
		_, _ = b.Release(t.Context(), g)
		g = acquire(t, b, request("k", 4*time.Second, 0))
		now := leaseOf(t, client, "k")
		if now == 0 && time.Now().Before(g.Deadline) {
			t.Fatalf("etcd removed the key %v before its deadline", time.Until(g.Deadline))
		}
		if shared = lease != 0 && now == lease; !shared {
			_, _ = b.Release(t.Context(), g)
			continue // this machine was too slow
		}
		for time.Now().Before(g.Deadline.Add(-20 * time.Millisecond)) {
			if keys(t, client, "k") == 0 && time.Now().Before(g.Deadline) {
				t.Fatalf("etcd removed the key %v before its deadline", time.Until(g.Deadline))
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// leaseOf returns the etcd lease of a key, or 0 if there is no key any more.
func leaseOf(t *testing.T, client *clientv3.Client, key string) int64 {
	t.Helper()
	resp, err := client.Get(t.Context(), key)
	ok(t, "Get", err)
	if len(resp.Kvs) != 1 {
		return 0
	}
	return resp.Kvs[0].Lease
}

// On a suspended machine the monotonic clock stops, and etcd's leases go on. A lock that is
// acquired afterwards gets an etcd lease that lasts long enough.
func TestGarbage_MachineWasSuspended(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	client := etcd.Client()
	b := open(t, client)
	acquire(t, b, request("before", time.Hour, 0))
	etcdbackend.Suspend(b, 70*time.Minute)
	acquire(t, b, request("after", time.Hour, 0))
	if old := leaseOf(t, client, "before"); old == 0 || leaseOf(t, client, "after") == old {
		t.Error("the key has an etcd lease that ends before the key's")
	}
}

// With a user, etcd (3.4.44, 3.5.30, 3.6.11 and later) checks at each write the permission on every
// key of the write's etcd lease. So there must be few.
func TestGarbage_FewKeysPerEtcdLease(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	client := etcd.Client()
	b := open(t, client)
	const most = 256
	for i := range 2 * most { // as requests with an idempotency key do
		g := acquire(t, b, request(fmt.Sprint("k", i), time.Minute, 24*time.Hour))
		ok(t, "Seal", b.Seal(t.Context(), g, []byte("answer"), 24*time.Hour))
	}
	leases, err := client.Leases(t.Context())
	ok(t, "Leases", err)
	for _, l := range leases.Leases {
		life, err := client.TimeToLive(t.Context(), l.ID, clientv3.WithAttachedKeys())
		ok(t, "TimeToLive", err)
		if n := len(life.Keys); n > most {
			t.Errorf("an etcd lease has %d keys, want %d at most", n, most)
		}
	}
}
