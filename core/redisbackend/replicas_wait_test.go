package redisbackend_test

import (
	"context"
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

// cutOff has a master behind the rule of WAIT, and a replica that can be cut off from it.
type cutOff struct {
	*waitRule
	replica *testutil.Node
	link    *proxy
}

func newCutOff(t *testing.T) *cutOff {
	t.Helper()
	master := testutil.Redis(t, "--repl-diskless-sync-delay", "0")
	c := &cutOff{waitRule: newWaitRule(t, master), link: newProxy(t, master.Addr())}
	host, port, _ := strings.Cut(c.link.Addr().String(), ":")
	c.replica = testutil.Redis(t, "--replicaof", host+" "+port)
	confirms(t, master, 1)
	return c
}

// locker returns a Locker whose locks the replica confirms.
func (c *cutOff) locker(t *testing.T, client *redis.Client, opts ...core.Option) *core.Locker {
	t.Helper()
	return locker(t, confirmed(client, 1, replicaTimeout), append([]core.Option{core.WithTTL(10 * time.Minute), core.WithMaxHold(0)}, opts...)...)
}

// closeConnections makes the next call use a connection that wrote nothing.
func (c *cutOff) closeConnections(t *testing.T) {
	t.Helper()
	ok(t, "CLIENT KILL", c.admin.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err())
}

// hasSeal reports whether the replica has the seal of a key.
func (c *cutOff) hasSeal(t *testing.T, key string) bool {
	t.Helper()
	return strings.HasPrefix(c.replica.Client().Get(t.Context(), "onelane:{"+key+"}").Val(), "\x00")
}

var patiently = core.WithOutageWait(30 * time.Second) // on a busy machine

// A Seal that no replica confirmed is tried again on another connection. The script finds its own
// seal there.
func TestReplicas_SealAgain(t *testing.T) {
	t.Parallel()
	c := newCutOff(t)
	k := acquire(t, c.locker(t, c.client(t)), "k", patiently)
	c.link.dark.Store(true)
	want(t, "Seal", k.Seal(t.Context(), []byte("paid"), time.Hour), core.ErrUnavailable)
	c.closeConnections(t)
	want(t, "Seal again", k.Seal(t.Context(), []byte("paid"), time.Hour), core.ErrUnavailable)
	if c.hasSeal(t, "k") {
		t.Error("the link is not cut")
	}
}

// The same while all connections are alive, and another call of this process uses the one that
// wrote.
func TestReplicas_SealAgainBesideAnother(t *testing.T) {
	t.Parallel()
	c := newCutOff(t)
	l := c.locker(t, c.client(t))
	k := acquire(t, l, "k", patiently)
	var all sync.WaitGroup
	for i := range 50 { // they make connections
		all.Go(func() { _, _ = l.TryAcquire(t.Context(), fmt.Sprint("other", i)) })
	}
	all.Wait()
	confirms(t, c.node, 1)
	c.link.dark.Store(true)
	want(t, "Seal", k.Seal(t.Context(), []byte("paid"), time.Hour), core.ErrUnavailable)
	var ended atomic.Bool
	all.Go(func() {
		_, _ = l.TryAcquire(t.Context(), "another")
		ended.Store(true)
	})
	eventually(t, "another call waits for the replica", func() bool { return blocked(t, c.node) == 1 || ended.Load() })
	want(t, "Seal again", k.Seal(t.Context(), []byte("paid"), time.Hour), core.ErrUnavailable)
	all.Wait()
}

// DoOnce tries to seal again by itself.
func TestReplicas_DoOnce(t *testing.T) {
	t.Parallel()
	c := newCutOff(t)
	l := c.locker(t, c.client(t))
	ok(t, "Release", acquire(t, l, "warm", patiently).Release(t.Context()))
	ran, err := l.DoOnce(t.Context(), "job", time.Hour, func(context.Context) error {
		c.link.dark.Store(true)
		time.AfterFunc(3*replicaTimeout, func() { c.closeConnections(t) })
		return nil
	}, core.WithOutageWait(6*replicaTimeout))
	if want(t, "DoOnce", err, core.ErrUnavailable); !ran {
		t.Error("it did not run")
	}
	if c.hasSeal(t, "job") {
		t.Error("the link is not cut")
	}
}

// An Extend that no replica confirmed has extended the lease on the master. Neither a shorter one
// nor a renewal may then be confirmed by nobody.
func TestReplicas_ExtendAgain(t *testing.T) {
	t.Parallel()
	c := newCutOff(t)
	k := acquire(t, c.locker(t, c.client(t), core.WithTTL(8*replicaTimeout)), "k", patiently)
	c.link.dark.Store(true)
	want(t, "Extend", k.Extend(t.Context(), time.Hour), core.ErrUnavailable)
	c.closeConnections(t)
	want(t, "Extend again", k.Extend(t.Context(), time.Second), core.ErrUnavailable)
	<-k.Context().Done()
	want(t, "cause", context.Cause(k.Context()), core.ErrLost)
}

// A connection ends under Seal, and the call is sent again.
func TestReplicas_SealSentAgain(t *testing.T) {
	t.Parallel()
	c := newCutOff(t)
	p := newProxy(t, c.Addr().String())
	l := c.locker(t, newClient(t, &redis.Options{Addr: p.Addr().String()}))
	ok(t, "Seal", acquire(t, l, "warm", patiently).Seal(t.Context(), []byte("v"), time.Hour)) // the server knows the script
	k := acquire(t, l, "k", patiently)
	c.link.dark.Store(true)
	p.cut.Store(1)
	want(t, "Seal", k.Seal(t.Context(), []byte("paid"), time.Hour), core.ErrUnavailable)
}

// WAIT confirms what its connection wrote. So every call that succeeds has to write.
func TestReplicas_EachSuccessWrites(t *testing.T) {
	t.Parallel()
	master, _ := replicated(t, 1)
	w := newWaitRule(t, master)
	b := open(t, confirmed(w.client(t), 1, time.Second))
	day := 24 * time.Hour
	request := func(key string) core.Request {
		return core.Request{Key: key, Owner: "shop/" + key + ";60000", TTL: day, Orphan: time.Minute}
	}
	// grant acquires, and again for a shorter and a longer lease, as after a lost reply.
	grant := func(q core.Request) (g core.Grant) {
		t.Helper()
		for _, ttl := range []time.Duration{day, time.Second, 2 * day} {
			q.TTL = ttl
			var err error
			g, err = b.Acquire(t.Context(), q)
			ok(t, "Acquire", err)
		}
		return g
	}
	for name, call := range map[string]func(key string){
		"plain": func(key string) { grant(request(key)) },
		"token": func(key string) {
			q := request(key)
			q.Token = true
			grant(q)
		},
		"adopt": func(key string) {
			first := grant(request(key))
			ok(t, "PEXPIRE", master.Client().PExpire(t.Context(), key, 30*time.Second).Err()) // orphaned
			q := request(key)
			q.Owner, q.Adopt = "shop/another;60000", first.Owner
			grant(q)
		},
		"extend": func(key string) {
			g := grant(request(key))
			for _, ttl := range []time.Duration{time.Second, 3 * day} {
				_, err := b.Extend(t.Context(), g, ttl)
				ok(t, "Extend", err)
			}
			ok(t, "PERSIST", master.Client().Persist(t.Context(), key).Err())
			_, err := b.Extend(t.Context(), g, time.Second)
			ok(t, "Extend of a key without expiry", err)
		},
		"seal": func(key string) {
			g := grant(request(key))
			for _, retention := range []time.Duration{time.Minute, time.Second, day} {
				ok(t, "Seal", b.(core.Sealer).Seal(t.Context(), g, []byte("v"), retention))
			}
			if left := master.Client().PTTL(t.Context(), key).Val(); left < day-time.Hour {
				t.Errorf("the seal stays for %v", left)
			}
		},
	} {
		before := len(w.wroteNothing())
		call("{" + name + "}")
		for _, c := range w.wroteNothing()[before:] {
			t.Errorf("%s: success without a write: %s", name, c)
		}
	}
}
