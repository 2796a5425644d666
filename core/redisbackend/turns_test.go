package redisbackend_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// A release tells of the other backends whose waiters asked in vain since the last one, and not of
// subscribers.
func TestRelease_TellsOfWaiters(t *testing.T) {
	t.Parallel()
	for name, clients := range map[string]func(t *testing.T) redis.UniversalClient{
		"one Redis":     func(t *testing.T) redis.UniversalClient { return testutil.Redis(t).Client() },
		"Redis Cluster": func(t *testing.T) redis.UniversalClient { return testutil.RedisCluster(t, 1).Client() },
		"DELEX": func(t *testing.T) redis.UniversalClient {
			f := withDelex(t)
			sub := f.redis.Subscribe(t.Context(), "onelane:{k}:free") // the fake has no SUBSCRIBE
			t.Cleanup(func() { _ = sub.Close() })
			_, err := sub.Receive(t.Context())
			ok(t, "SUBSCRIBE", err)
			return f.client(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := clients(t)
			a, b, c := open(t, one(client)), open(t, one(client)), open(t, one(client))
			request := func() core.Request {
				return core.Request{Key: "onelane:{k}", Owner: "a/" + strconv.Itoa(int(time.Now().UnixNano())), TTL: time.Minute}
			}
			released := func(waiting ...core.Backend) core.Waiters {
				g, err := a.Acquire(t.Context(), request())
				ok(t, "Acquire", err)
				for i, w := range waiting {
					r := request()
					r.Needs = time.Duration(i+1) * time.Millisecond
					_, err := w.Acquire(t.Context(), r)
					want(t, "Acquire of a taken key", err, core.ErrTaken)
				}
				w, err := a.Release(t.Context(), g)
				ok(t, "Release", err)
				return w
			}
			if name != "DELEX" {
				signals, stop := watch(t, b, "onelane:{k}")
				defer stop()
				eventually(t, "b listens", func() bool { released(); return signals() > 0 })
			}
			for range 2 {
				if w := released(); w != (core.Waiters{}) {
					t.Errorf("nobody waits: %+v", w)
				}
				// On a busy machine they may be forgotten before the release: after 2 s.
				eventually(t, "b and c wait", func() bool {
					w := released(a, b, c, b)
					if w.Others > 2 || w.Need > 4*time.Millisecond {
						t.Fatalf("b and c wait: %+v", w)
					}
					return w == core.Waiters{Others: 2, Need: 4 * time.Millisecond}
				})
			}
		})
	}
}

// A listener that does not wait is no waiter. Nobody leaves it a free key.
func TestRelease_ListenersAreNoWaiters(t *testing.T) {
	t.Parallel()
	for name, listen := range map[string]func(t *testing.T, node *testutil.Node, others ...*core.Locker){
		"a waiter that got the key and went": func(t *testing.T, node *testutil.Node, others ...*core.Locker) {
			k := acquire(t, others[0], "k")
			got := acquiring(t, others[1], "k")
			eventually(t, "it waits", func() bool { return node.Client().SCard(t.Context(), "onelane:{k}:wait").Val() == 1 })
			ok(t, "Release", k.Release(t.Context()))
			ok(t, "Release", (<-got).Release(t.Context()))
		},
		"PSUBSCRIBE": func(t *testing.T, node *testutil.Node, _ ...*core.Locker) {
			sub := node.Client().PSubscribe(t.Context(), "*")
			t.Cleanup(func() { _ = sub.Close() })
			_, err := sub.Receive(t.Context())
			ok(t, "PSUBSCRIBE", err)
		},
		"a waiter in another database": func(t *testing.T, node *testutil.Node, _ ...*core.Locker) {
			other := newClient(t, &redis.Options{Addr: node.Addr(), DB: 1})
			k, waiter := acquire(t, locker(t, one(other)), "k"), locker(t, one(other))
			got := acquiring(t, waiter, "k")
			eventually(t, "it waits", func() bool { return other.SCard(t.Context(), "onelane:{k}:wait").Val() == 1 })
			t.Cleanup(func() {
				ok(t, "Release", k.Release(context.Background()))
				ok(t, "Release", (<-got).Release(context.Background()))
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := testutil.Redis(t)
			b := open(t, one(node.Client()))
			listen(t, node, locker(t, one(node.Client())), locker(t, one(node.Client())))
			for i := range 3 {
				g, err := b.Acquire(t.Context(), core.Request{Key: "onelane:{k}", Owner: "me/" + strconv.Itoa(i), TTL: time.Minute})
				ok(t, "Acquire", err)
				w, err := b.Release(t.Context(), g)
				if err != nil || w != (core.Waiters{}) {
					t.Errorf("release %d: %+v, %v", i, w, err)
				}
			}
		})
	}
}

// A release names one of the waiters, who goes first, if somebody listened to the release before.
func TestRelease_NamesAWaiter(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	a, b := open(t, one(client)), open(t, one(client))
	g, err := a.Acquire(t.Context(), core.Request{Key: "onelane:{k}", Owner: "a/", TTL: time.Minute})
	ok(t, "Acquire", err)
	_, err = a.Release(t.Context(), g) // finds out what the server can do
	ok(t, "Release", err)
	sub := client.Subscribe(t.Context(), "onelane:{k}:free")
	t.Cleanup(func() { _ = sub.Close() })
	_, err = sub.Receive(t.Context())
	ok(t, "SUBSCRIBE", err)
	for i, named := range []bool{false, true, true} {
		r := core.Request{Key: "onelane:{k}", Owner: "a/" + strconv.Itoa(i), TTL: time.Minute}
		g, err := a.Acquire(t.Context(), r)
		ok(t, "Acquire", err)
		r.Owner, r.Needs = "b/1", 3*time.Millisecond
		_, err = b.Acquire(t.Context(), r)
		want(t, "Acquire of a taken key", err, core.ErrTaken)
		waiter := client.SMembers(t.Context(), "onelane:{k}:wait").Val()
		_, err = a.Release(t.Context(), g)
		ok(t, "Release", err)
		m, err := sub.ReceiveMessage(t.Context())
		ok(t, "a message", err)
		_, first, found := strings.Cut(m.Payload, " ")
		if found != named || named && first != waiter[0] {
			t.Errorf("release %d: message %q, the waiter is %q", i, m.Payload, waiter)
		}
	}
}

// A waiter finds the key taken by one SET, subscribes, and asks by one script, which notes it. It does
// not ask first how long the holder has the key.
func TestCommands_OfAWait(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	holder, waiter, admin := locker(t, one(node.Client())), locker(t, one(node.Client())), node.Client()
	counts := node.Commands(t, func() {
		k := acquire(t, holder, "k")
		got := acquiring(t, waiter, "k")
		eventually(t, "it waits", func() bool { return admin.SCard(t.Context(), "onelane:{k}:wait").Val() == 1 })
		ok(t, "Release", k.Release(t.Context()))
		ok(t, "Release", (<-got).Release(t.Context()))
	})
	// The counts include the commands of scripts. The question would be one more PTTL.
	if counts["sadd"] == 0 || counts["pttl"] != counts["sadd"] {
		t.Errorf("a wait took %v", counts)
	}
}
