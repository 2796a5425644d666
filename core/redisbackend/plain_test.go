package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// A lock without a token is one SET and one script, and leaves no second key.
func TestCommands_OfALock(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	l, admin := locker(t, one(node.Client())), node.Client()
	ok(t, "Release", acquire(t, l, "warm").Release(t.Context()))
	ok(t, "PING", admin.Ping(t.Context()).Err())
	var counts map[string]int64
	eventually(t, "a lock on a connection that was there", func() bool {
		counts = node.Commands(t, func() {
			k := acquire(t, l, "k")
			if keys := admin.Keys(t.Context(), "*").Val(); len(keys) != 1 {
				t.Errorf("a held lock without a token has the keys %q", keys)
			}
			ok(t, "Release", k.Release(t.Context()))
		})
		return counts["hello"] == 0 // a busy machine may lose one
	})
	delete(counts, "keys")
	// The counts include the commands that the script calls. Redis 8.4 and Valkey 9 need no script.
	wantCounts := map[string]int64{"set": 1, "evalsha": 1, "get": 1, "del": 1, "publish": 1}
	for _, plain := range []string{"delex", "delifeq"} {
		if counts[plain] > 0 {
			wantCounts = map[string]int64{"set": 1, plain: 1, "publish": 1}
		}
	}
	if !maps.Equal(counts, wantCounts) {
		t.Errorf("a lock took %v, want %v", counts, wantCounts)
	}
	if keys := admin.Keys(t.Context(), "*").Val(); len(keys) != 0 {
		t.Errorf("a lock left the keys %q", keys)
	}
	for name, seal := range map[string]func(k *core.Lock) error{
		"sealed and unsealed": func(k *core.Lock) error {
			return errors.Join(k.Seal(t.Context(), []byte("v"), time.Minute), l.Unseal(t.Context(), k.Key()))
		},
		"extended": func(k *core.Lock) error {
			return errors.Join(k.Extend(t.Context(), time.Minute), k.Release(t.Context()))
		},
	} {
		ok(t, name, seal(acquire(t, l, "k")))
		if keys := admin.Keys(t.Context(), "*").Val(); len(keys) != 0 {
			t.Errorf("%s: a lock left the keys %q", name, keys)
		}
	}
}

// A replay is one command and one round trip.
func TestCommands_OfAReplay(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	l := locker(t, one(node.Client()))
	ok(t, "Seal", acquire(t, l, "k").Seal(t.Context(), []byte("v"), time.Minute))
	counts := node.Commands(t, func() {
		_, err := l.Acquire(t.Context(), "k")
		want(t, "Acquire", err, core.ErrSealed)
	})
	if !maps.Equal(counts, map[string]int64{"set": 1}) {
		t.Errorf("a replay took %v, want one SET", counts)
	}
}

// Tokens increase in every order of locks with a token, without one, with a late one, and of seals.
func TestTokens_IncreaseInEveryOrder(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	admin, l := node.Client(), locker(t, one(node.Client()))
	var last uint64
	note := func(k *core.Lock, step string) {
		t.Helper()
		n := token(t, k)
		if n <= last {
			t.Errorf("%s: token %d after %d", step, n, last)
		}
		last = n
	}
	for range 3 {
		for name, step := range map[string]func(step string){
			"with": func(s string) {
				k := acquire(t, l, "k", core.WithToken())
				note(k, s)
				ok(t, "Release", k.Release(t.Context()))
			},
			"without": func(string) { ok(t, "Release", acquire(t, l, "k").Release(t.Context())) },
			"late": func(s string) {
				k := acquire(t, l, "k")
				note(k, s)
				ok(t, "Release", k.Release(t.Context()))
			},
			"sealed with": func(s string) {
				k := acquire(t, l, "k", core.WithToken())
				note(k, s)
				ok(t, "Seal", k.Seal(t.Context(), nil, time.Minute))
				// The counter is gone by the time of Unseal, and the clock was set back.
				ok(t, "DEL", admin.Del(t.Context(), "onelane:{k}:fence").Err())
				ahead := fmt.Sprintf("\x00%d:v", last+uint64(time.Hour/time.Microsecond))
				ok(t, "SET", admin.Set(t.Context(), "onelane:{k}", ahead, time.Minute).Err())
				last += uint64(time.Hour / time.Microsecond)
				ok(t, "Unseal", l.Unseal(t.Context(), "k"))
			},
			"sealed without": func(string) {
				ok(t, "Seal", acquire(t, l, "k").Seal(t.Context(), nil, time.Minute))
				ok(t, "Unseal", l.Unseal(t.Context(), "k"))
			},
		} {
			step(name)
		}
	}
}

// The server's clock takes over from a counter that expired.
func TestTokens_CounterExpired(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	admin, l := node.Client(), locker(t, one(node.Client()), core.WithToken())
	var last uint64
	for range 5 {
		k := acquire(t, l, "k")
		if n := token(t, k); n <= last {
			t.Errorf("token %d after %d", n, last)
		}
		last = token(t, k)
		ok(t, "Release", k.Release(t.Context()))
		ok(t, "DEL", admin.Del(t.Context(), "onelane:{k}:fence").Err())
	}
	// A counter ahead of the clock lives until the clock has passed it.
	ahead := last + uint64(24*time.Hour/time.Microsecond)
	ok(t, "SET", admin.Set(t.Context(), "onelane:{k}:fence", ahead, time.Minute).Err())
	k := acquire(t, l, "k")
	if n := token(t, k); n <= ahead {
		t.Errorf("token %d after the counter %d", n, ahead)
	}
	if left := admin.PTTL(t.Context(), "onelane:{k}:fence").Val(); left < 24*time.Hour {
		t.Errorf("the counter is a day ahead of the clock and expires in %v", left)
	}
}

// A seal without a token is recognized by its owner: the seal of another owner is no success of ours.
func TestSeal_WithoutTokenIsKnownByItsOwner(t *testing.T) {
	t.Parallel()
	b := open(t, one(testutil.Redis(t).Client()))
	mine, err := b.Acquire(t.Context(), core.Request{Key: "{k}", Owner: "me/1", TTL: time.Minute})
	ok(t, "Acquire", err)
	ok(t, "Seal", b.(core.Sealer).Seal(t.Context(), mine, []byte("0/:v"), time.Minute))
	ok(t, "Seal again", b.(core.Sealer).Seal(t.Context(), mine, []byte("0/:v"), time.Minute))
	_, err = b.Release(t.Context(), mine)
	ok(t, "Release of what I sealed", err)
	other := mine
	other.Owner = "other/2"
	_, err = b.Release(t.Context(), other)
	want(t, "Release of what another sealed", err, core.ErrLost)
	want(t, "Seal of what another sealed", b.(core.Sealer).Seal(t.Context(), other, []byte("0/:v"), time.Minute), core.ErrLost)
	st, err := b.Inspect(t.Context(), "{k}")
	if err != nil || st.Token != 0 || string(st.Value) != "0/:v" {
		t.Errorf("Inspect = %+v, %v", st, err)
	}
}

// fake is a server that passes commands on to a Redis, but answers some by itself.
type fake struct {
	*server.Server
	redis *redis.Client
	mu    sync.Mutex
	calls map[string]int
	odd   map[string]func(args []string) (any, error) // nil for what is not odd
}

func newFake(t *testing.T, target *redis.Client) *fake {
	t.Helper()
	s, err := server.NewServer("127.0.0.1:0")
	ok(t, "NewServer", err)
	t.Cleanup(s.Close)
	f := &fake{Server: s, redis: target, calls: make(map[string]int), odd: make(map[string]func([]string) (any, error))}
	for _, verb := range []string{"SET", "EVAL", "EVALSHA", "PUBLISH", "PING", "INFO", "DELEX", "DELIFEQ", "SPOP"} {
		ok(t, verb, s.Register(verb, f.answer))
	}
	return f
}

func (f *fake) answer(p *server.Peer, verb string, args []string) {
	f.mu.Lock()
	f.calls[verb]++
	do := f.odd[verb]
	f.mu.Unlock()
	var v any
	var err error
	if do != nil {
		v, err = do(args)
	} else {
		all := []any{verb}
		for _, a := range args {
			all = append(all, a)
		}
		v, err = f.redis.Do(context.Background(), all...).Result()
	}
	if err != nil && !errors.Is(err, redis.Nil) {
		p.WriteError(err.Error())
		return
	}
	p.Block(func(w *server.Writer) { write(w, v) })
}

func (f *fake) count(verb string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[verb]
}

func (f *fake) counts() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.calls)
}

// write answers with what a Redis answered.
func write(w *server.Writer, v any) {
	switch v := v.(type) {
	case int64:
		w.WriteInt(int(v))
	case string:
		w.WriteBulk(v)
	case []any:
		w.WriteLen(len(v))
		for _, e := range v {
			write(w, e)
		}
	case nil:
		w.WriteNull()
	}
}

func (f *fake) client(t *testing.T) *redis.Client {
	return newClient(t, &redis.Options{Addr: f.Addr().String(), Protocol: 2})
}

// unknown is a server's answer to a command that it does not have.
func unknown(verb string) func([]string) (any, error) {
	return func(args []string) (any, error) {
		return nil, fmt.Errorf("ERR unknown command '%s', with args beginning with: '%s'", strings.ToLower(verb), args[0])
	}
}

// Before Redis 7.0, SET has no NX with GET. That is found out once.
func TestAcquire_BeforeRedis7(t *testing.T) {
	t.Parallel()
	f := newFake(t, testutil.Redis(t).Client())
	f.odd["SET"] = func([]string) (any, error) { return nil, errors.New("ERR syntax error") }
	f.odd["DELEX"], f.odd["DELIFEQ"] = unknown("DELEX"), unknown("DELIFEQ")
	l := locker(t, one(f.client(t)))
	for range 3 {
		ok(t, "every verb", everyVerb(t, l, "k"))
	}
	for _, verb := range []string{"SET", "DELEX", "DELIFEQ"} {
		if n := f.count(verb); n != 1 {
			t.Errorf("%s was tried %d times, want once", verb, n)
		}
	}
}

// deleteOwn deletes key if its value is owner.
func deleteOwn(client *redis.Client, key, owner string) (int64, error) {
	const script = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`
	return client.Eval(context.Background(), script, []string{key}, owner).Int64()
}

// Redis 8.4 and Valkey 9 delete a key that has a certain value with one command.
func TestRelease_CompareAndDelete(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	admin := node.Client()
	for name, c := range map[string]struct{ has, lacks string }{
		"Redis 8.4": {"DELEX", "DELIFEQ"}, "Valkey 9": {"DELIFEQ", "DELEX"}, "neither": {"", "DELEX DELIFEQ"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, admin)
			for verb := range strings.FieldsSeq(c.lacks) {
				f.odd[verb] = unknown(verb)
			}
			f.odd[c.has] = func(args []string) (any, error) {
				return deleteOwn(admin, args[0], args[len(args)-1])
			}
			b := open(t, one(f.client(t)))
			request := func(owner string) core.Request {
				return core.Request{Key: "{" + name + "}", Owner: owner, TTL: time.Minute}
			}
			for i := range 5 {
				g, err := b.Acquire(t.Context(), request(fmt.Sprint("me/", i)))
				ok(t, "Acquire", err)
				other := g
				other.Owner = "other/1"
				_, err = b.Release(t.Context(), other)
				want(t, "Release by another", err, core.ErrLost)
				w, err := b.Release(t.Context(), g)
				if err != nil || w.Others != 0 {
					t.Fatalf("Release = %v, %v", w, err)
				}
				_, err = b.Release(t.Context(), g)
				want(t, "second Release", err, core.ErrLost)
			}
			for verb := range strings.FieldsSeq(c.lacks) {
				if n := f.count(verb); n > 1 {
					t.Errorf("%s was tried %d times", verb, n)
				}
			}
			if n := f.count("SPOP"); n > 0 {
				t.Errorf("nobody listens, and %d releases asked for waiters", n)
			}
			if c.has != "" && f.count("PUBLISH") < 5 {
				t.Error("a release did not tell the waiters")
			}
			g, err := b.Acquire(t.Context(), request("me/seal"))
			ok(t, "Acquire", err)
			ok(t, "Seal", b.(core.Sealer).Seal(t.Context(), g, []byte("v"), time.Minute))
			_, err = b.Release(t.Context(), g)
			ok(t, "Release after Seal", err)
		})
	}
}

// withDelex returns a fake that knows DELEX.
func withDelex(t *testing.T) *fake {
	t.Helper()
	admin := testutil.Redis(t).Client()
	f := newFake(t, admin)
	f.odd["DELEX"] = func(args []string) (any, error) {
		return deleteOwn(admin, args[0], args[2])
	}
	return f
}

// refusing makes DELEX fail that many times.
func (f *fake) refusing(refusal string) (times *atomic.Int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	times, works := new(atomic.Int64), f.odd["DELEX"]
	f.odd["DELEX"] = func(args []string) (any, error) {
		if times.Add(-1) >= 0 {
			return nil, errors.New(refusal)
		}
		return works(args)
	}
	return times
}

// A refusal that passes is no reason to do without DELEX forever.
func TestRelease_DelexRefusedOnce(t *testing.T) {
	t.Parallel()
	for _, refusal := range []string{"BUSY Redis is busy running a script.", "LOADING Redis is loading", "READONLY You can't write"} {
		f := withDelex(t)
		f.refusing(refusal).Store(1)
		l := locker(t, one(f.client(t)))
		for range 5 {
			ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
		}
		if n := f.count("DELEX"); n != 5 {
			t.Errorf("after %q, DELEX was tried %d times in 5 releases", refusal, n)
		}
	}
}

// If the ACL forbids DELEX later, the script still works.
func TestRelease_DelexForbiddenLater(t *testing.T) {
	t.Parallel()
	f := withDelex(t)
	forbidden := f.refusing("NOPERM this user has no permissions to run the 'delex' command")
	f.odd["DELIFEQ"] = unknown("DELIFEQ")
	l := locker(t, one(f.client(t)))
	ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
	forbidden.Store(100)
	for range 3 {
		ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
	}
	if n := f.count("DELEX"); n != 2 {
		t.Errorf("DELEX was tried %d times, want 2", n)
	}
}

// A release asks for waiters only if somebody listens: in a second round trip the first time, and then
// by the script, until nobody listens.
func TestRelease_AsksForWaiters(t *testing.T) {
	t.Parallel()
	f := withDelex(t)
	l := locker(t, one(f.client(t)))
	sub := f.redis.Subscribe(t.Context())
	t.Cleanup(func() { _ = sub.Close() })
	for i, step := range []struct {
		listens bool
		sent    string
	}{{false, "DELEX"}, {false, "DELEX"}, {true, "DELEX SPOP"}, {true, "EVALSHA"}, {false, "EVALSHA"}, {false, "DELEX"}} {
		do := sub.Unsubscribe
		if step.listens {
			do = sub.Subscribe
		}
		ok(t, "SUBSCRIBE", do(t.Context(), "onelane:{k}:free"))
		eventually(t, "it listens", func() bool {
			_ = sub.Ping(t.Context())
			n := f.redis.PubSubNumSub(t.Context(), "onelane:{k}:free").Val()
			return (n["onelane:{k}:free"] == 1) == step.listens
		})
		k := acquire(t, l, "k")
		before := f.counts()
		ok(t, "Release", k.Release(t.Context()))
		var sent []string
		for _, verb := range []string{"DELEX", "SPOP", "EVALSHA"} {
			if f.counts()[verb] > before[verb] {
				sent = append(sent, verb)
			}
		}
		if got := strings.Join(sent, " "); got != step.sent {
			t.Errorf("release %d, somebody listens: %v: sent %s, want %s", i, step.listens, got, step.sent)
		}
	}
}

// A proxy that closes the connection on a command that it does not know gets the command once.
func TestRelease_ProxyClosesOnUnknownCommand(t *testing.T) {
	t.Parallel()
	f := newFake(t, testutil.Redis(t).Client())
	var closed atomic.Int64
	f.SetPreHook(func(p *server.Peer, verb string, _ ...string) bool {
		if verb == "DELEX" || verb == "DELIFEQ" {
			closed.Add(1)
			p.Close()
			return true
		}
		return false
	})
	l := locker(t, one(f.client(t)))
	for range 5 {
		ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
	}
	if n := closed.Load(); n > 3 {
		t.Errorf("%d connections were closed", n)
	}
}

// A proxy that routes keys by prefix gets each command on its own: every lock is on the right master.
func TestBatch_BehindARoutingProxy(t *testing.T) {
	t.Parallel()
	orders, stocks := testutil.Redis(t).Client(), testutil.Redis(t).Client()
	f := newFake(t, orders)
	route := func(verb string, key int) func(args []string) (any, error) {
		return func(args []string) (any, error) {
			master := orders
			if strings.HasPrefix(args[key], "onelane:{stock:") {
				master = stocks
			}
			all := []any{verb}
			for _, a := range args {
				all = append(all, a)
			}
			return master.Do(context.Background(), all...).Result()
		}
	}
	f.odd["SET"], f.odd["EVAL"], f.odd["EVALSHA"] = route("SET", 0), route("EVAL", 2), route("EVALSHA", 2)
	f.odd["DELEX"], f.odd["DELIFEQ"] = unknown("DELEX"), unknown("DELIFEQ")
	l := locker(t, one(f.client(t)))
	var wrong atomic.Int64
	var all sync.WaitGroup
	for i := range 100 {
		kind, right := "order:", orders
		if i%2 == 1 {
			kind, right = "stock:", stocks
		}
		all.Go(func() {
			for range 10 {
				key := fmt.Sprint(kind, i)
				err := l.Do(t.Context(), key, func(ctx context.Context) error {
					if right.Exists(ctx, "onelane:{"+key+"}").Val() != 1 {
						wrong.Add(1)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n := wrong.Load(); n > 0 {
		t.Errorf("%d locks are on the wrong master", n)
	}
}

// Nil alone says that nobody had the key.
func TestAcquire_OddAnswerToSet(t *testing.T) {
	t.Parallel()
	f := newFake(t, testutil.Redis(t).Client())
	f.odd["SET"] = func([]string) (any, error) { return int64(0), nil }
	b := open(t, one(f.client(t)))
	g, err := b.Acquire(t.Context(), core.Request{Key: "k", Owner: "me/1", TTL: time.Minute})
	if err == nil {
		t.Fatalf("granted until %v, although nothing was set", g.Deadline)
	}
	want(t, "Acquire", err, core.ErrUnavailable)
}
