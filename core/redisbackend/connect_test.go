package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// Redis refuses the handshake of a connection that go-redis makes within a call. The commands of the
// call have no answer then, and that is no grant of a key.
func TestConnect_RefusedHandshakeIsNoGrant(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	if !node.Real() {
		return // a miniredis has no users
	}
	admin := node.Client()
	ok(t, "ACL SETUSER", admin.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all").Err())
	o := &redis.Options{Addr: node.Addr(), Username: "app", Password: "secret", DB: 1}
	holder := locker(t, one(newClient(t, &redis.Options{Addr: node.Addr(), DB: 1})))
	l := locker(t, one(newClient(t, o)), core.WithOutageWait(0))
	acquire(t, holder, "k", core.WithTTL(time.Hour))
	for range 20 {
		eventually(t, "a connection", func() bool {
			_, err := l.TryAcquire(t.Context(), "k")
			if err == nil {
				t.Fatal("two hold k: an answer that did not come was taken for a grant")
			}
			return strings.Contains(err.Error(), "taken")
		})
		ok(t, "ACL SETUSER", admin.Do(t.Context(), "ACL", "SETUSER", "app", "-select").Err())
		ok(t, "CLIENT KILL", admin.Do(t.Context(), "CLIENT", "KILL", "USER", "app").Err())
		_, err := l.TryAcquire(t.Context(), "k")
		if err == nil {
			t.Fatal("two hold k: an answer that did not come was taken for a grant")
		}
		want(t, "TryAcquire", err, core.ErrUnavailable)
		ok(t, "ACL SETUSER", admin.Do(t.Context(), "ACL", "SETUSER", "app", "+select").Err())
	}
}

// The handshakes of all connections but the first one do not end. Calls with a deadline share the
// first.
func TestConnect_CallsShareWhatIsReady(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	var made atomic.Int64
	ended := make(chan struct{})
	defer close(ended)
	l := locker(t, one(newClient(t, &redis.Options{Addr: node.Addr(), OnConnect: func(ctx context.Context, _ *redis.Conn) error {
		if made.Add(1) > 1 {
			select {
			case <-ended:
			case <-ctx.Done():
			}
		}
		return ctx.Err()
	}})), core.WithOutageWait(0), core.WithMaxHold(0), core.WithTTL(time.Hour))
	ok(t, "Ping", l.Ping(t.Context()))
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, err := l.Acquire(ctx, fmt.Sprint("k", i))
			ok(t, "Acquire", err)
		})
	}
	all.Wait()
}

// connections returns how many connections of a client name a node has.
func connections(t testing.TB, admin *redis.Client, name string) int {
	t.Helper()
	list, err := admin.ClientList(t.Context()).Result()
	ok(t, "CLIENT LIST", err)
	return strings.Count(list, " name="+name+" ")
}

// bounded uses a Locker for a while, and looks how many connections it has.
func bounded(t *testing.T, node *testutil.Node, client *redis.Client) {
	t.Helper()
	l, admin := locker(t, one(client), core.WithOutageWait(time.Minute)), node.Client()
	held := acquire(t, l, "held", core.WithTTL(3*time.Second))
	limit := 5 * time.Second
	if long {
		limit = 125 * time.Second
	}
	most := 0
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for began := time.Now(); time.Since(began) < limit && t.Context().Err() == nil; time.Sleep(15 * time.Millisecond) {
				ok(t, "Do", l.Do(t.Context(), fmt.Sprint("k", i), func(context.Context) error { return nil }))
			}
		})
	}
	for began := time.Now(); time.Since(began) < limit; time.Sleep(50 * time.Millisecond) {
		most = max(most, connections(t, admin, "locks"))
	}
	all.Wait()
	if err := held.Release(t.Context()); err != nil {
		want(t, "Release", err, core.ErrLost) // a busy machine
	}
	// On a busy machine Redis looks far away: then doc.go allows 16 + 8 + 1.
	if t.Logf("%d connections", most); most > 25 {
		t.Errorf("%d connections", most)
	}
}

func TestConnections_BoundedUnderSentinel(t *testing.T) {
	t.Parallel()
	s := testutil.Sentinel(t)
	o := s.Options()
	o.ClientName = "locks"
	client := redis.NewFailoverClient(o)
	t.Cleanup(func() { _ = client.Close() })
	bounded(t, s.Master, client)
}

func TestConnections_BoundedWithLifetimes(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	bounded(t, node, newClient(t, &redis.Options{Addr: node.Addr(), ClientName: "locks",
		ConnMaxLifetime: 200 * time.Millisecond, ConnMaxLifetimeJitter: 50 * time.Millisecond}))
}

// However many calls come at once, a healthy Redis answers all of them.
func TestConnections_ManyAtOnce(t *testing.T) {
	t.Parallel()
	n := 20_000
	switch {
	case race: // it takes a core ten times as long
		n = 2_000
	case long:
		n = 100_000
	}
	l := locker(t, one(testutil.Redis(t).Client()), core.WithOutageWait(0), core.WithMaxHold(0), core.WithTTL(time.Hour))
	ok(t, "Ping", l.Ping(t.Context()))
	start := make(chan struct{})
	var all sync.WaitGroup
	var failed atomic.Int64
	for i := range n {
		all.Go(func() {
			<-start
			if _, err := l.TryAcquire(t.Context(), fmt.Sprint("k", i)); err != nil && failed.Add(1) == 1 {
				t.Errorf("TryAcquire: %v", err)
			}
		})
	}
	close(start)
	all.Wait()
	if failed.Load() > 0 {
		t.Errorf("%d of %d calls failed", failed.Load(), n)
	}
}

// A large reply goes on after the time-out of a call, but not after its caller has left.
func TestConnections_LargeReplyEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	p := newProxy(t, testutil.Redis(t).Addr())
	c := one(newClient(t, &redis.Options{Addr: p.Addr().String()}))
	c.NodeTimeout = 2 * time.Second
	l := locker(t, c)
	k := acquire(t, l, "k", core.WithTTL(5*time.Minute))
	eventually(t, "Seal", func() bool { return k.Seal(t.Context(), make([]byte, 16<<20), 5*time.Minute) == nil })
	p.late.Store(int64(50 * time.Millisecond))       // for each 64 KiB: 13 s
	eventually(t, "the caller leaves", func() bool { // on a busy machine, a reply may pause for too long before
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		_, err := l.TryAcquire(ctx, "k")
		if took := time.Since(began); took > 3*time.Second+hung {
			t.Errorf("the call took %v", took)
		}
		return errors.Is(err, context.DeadlineExceeded)
	})
}
