package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/etcdbackend"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/core/zkbackend"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/metric/noop"
)

// ctl runs the command and returns what it says.
func ctl(t *testing.T, wantCode int, args ...string) (stdout, stderr string) {
	t.Helper()
	for end := time.Now().Add(check.Patience); ; {
		var out, errs bytes.Buffer
		code := run(t.Context(), args, &out, &errs)
		if code == wantCode {
			return out.String(), errs.String()
		}
		busy := code == 2 && strings.Contains(errs.String(), core.ErrUnavailable.Error()) // the machine
		if !busy || time.Now().After(end) {
			t.Fatalf("%q: exit status %d, want %d: %s%s", args, code, wantCode, out.String(), errs.String())
		}
		t.Logf("%q again after %s", args, errs.String())
	}
}

// surely repeats a call that a busy server did not answer.
func surely(t *testing.T, what string, call func() error) {
	t.Helper()
	check.Eventually(t, what, func() bool {
		err := call()
		if !errors.Is(err, core.ErrUnavailable) {
			check.OK(t, what, err)
		}
		return err == nil
	})
}

// orphan leaves an orphan of a key. The TTL is longer if the machine is too slow for a short one.
func orphan(t *testing.T, locker *core.Locker, key string, opts ...core.AcquireOption) {
	t.Helper()
	for ttl := 50 * time.Millisecond; ; ttl *= 2 {
		k, err := locker.Acquire(t.Context(), key, append(opts, core.WithTTL(ttl), core.WithOrphan(time.Hour))...)
		if err == nil {
			k.Lapse()
			break
		}
		if ttl > time.Minute {
			t.Fatal(err)
		}
		surely(t, "Unseal", func() error { return locker.Unseal(t.Context(), key) })
	}
	check.Eventually(t, "the orphan", func() bool {
		st, err := locker.Inspect(t.Context(), key)
		return err == nil && st.Status == core.Orphaned
	})
}

// on is the backend on one Redis. It waits long for a busy machine.
func on(client redis.UniversalClient) core.Opener {
	b := redisbackend.New(client)
	b.NodeTimeout = 10 * time.Second
	return b
}

func contains(t *testing.T, said string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(said, part) {
			t.Errorf("%q is not in %q", part, said)
		}
	}
}

// containsDay checks that a text has the day of began, or today's: midnight may have passed
// meanwhile.
func containsDay(t *testing.T, said string, began time.Time) {
	t.Helper()
	if !strings.Contains(said, began.Format(time.DateOnly)) {
		contains(t, said, time.Now().Format(time.DateOnly))
	}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// backends are what the command can talk to, with the flags that say so.
func backends(t *testing.T) map[string]struct {
	clients []redis.UniversalClient
	flags   []string
} {
	one, cluster := testutil.Redis(t), testutil.RedisCluster(t, 3)
	sentinel := testutil.Sentinel(t)
	return map[string]struct {
		clients []redis.UniversalClient
		flags   []string
	}{
		"one Redis": {[]redis.UniversalClient{one.Client()}, []string{"-redis", "redis://" + one.Addr() + "/0"}},
		"cluster":   {[]redis.UniversalClient{cluster.Client()}, []string{"-redis", cluster.Nodes[0].Addr(), "-cluster"}},
		"Sentinel": {[]redis.UniversalClient{sentinel.Client()},
			[]string{"-redis", sentinel.Options().SentinelAddrs[0], "-sentinel", sentinel.Options().MasterName}},
	}
}

func TestCommands(t *testing.T) {
	t.Parallel()
	for name, b := range backends(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backend := redisbackend.New(b.clients...)
			backend.NodeTimeout = 10 * time.Second
			commands(t, backend, b.flags...)
		})
	}
}

func TestCommands_Etcd(t *testing.T) {
	t.Parallel()
	etcd := testutil.Etcd(t)
	if etcd == nil {
		return
	}
	opener, flags := etcdbackend.New(etcd.Client(), etcdbackend.WithTimeout(20*time.Second)), []string{"-etcd", etcd.Addr()}
	commands(t, opener, flags...)
	listsOddKeys(t, opener, flags...)
}

func TestCommands_ZooKeeper(t *testing.T) {
	t.Parallel()
	node := testutil.ZooKeeper(t)
	if node == nil {
		return
	}
	servers := []string{node.Addr()}
	opener := zkbackend.New(servers, zkbackend.WithRoot("/shops/one"), zkbackend.WithTimeout(20*time.Second))
	flags := []string{"-zookeeper", servers[0], "-root", "/shops/one"}
	commands(t, opener, flags...)
	listsOddKeys(t, opener, flags...)
}

// commands runs each command. The flags say where opener's locks are.
func commands(t *testing.T, opener core.Opener, flags ...string) {
	locker := must[*core.Locker](t)(core.New(opener, core.WithInstance("shop-1"), core.WithTTL(time.Minute)))
	defer locker.Close()
	do := func(wantCode int, args ...string) (string, string) {
		return ctl(t, wantCode, append(args, flags...)...)
	}
	began := time.Now()
	out, _ := do(1, "inspect", "order:42")
	contains(t, out, "order:42", "free")
	held := must[*core.Lock](t)(locker.Acquire(t.Context(), "order:42", core.WithTag("till 3")))
	out, _ = do(0, "inspect", "order:42")
	contains(t, out, "held", "shop-1/", "till 3", "expires")
	sealed := must[*core.Lock](t)(locker.Acquire(t.Context(), "order:43"))
	surely(t, "Seal", func() error { return sealed.Seal(t.Context(), []byte("secret"), time.Hour) })
	out, _ = do(0, "inspect", "order:43")
	contains(t, out, "sealed", "6 bytes", "expires")
	if strings.Contains(out, "secret") {
		t.Error("the value is shown without -value")
	}
	out, _ = do(0, "-value", "inspect", "order:43")
	contains(t, out, "secret")

	out, _ = do(0, "ls", "order:")
	contains(t, out, "order:42", "order:43", "held", "sealed")

	out, _ = do(0, "ls", "order:", "-held", "-limit", "1")
	contains(t, out, "order:42", "held")
	containsDay(t, out, began)
	if strings.Contains(out, "order:43") {
		t.Errorf("ls -held says %q", out)
	}
	out, _ = do(0, "inspect", "order:42")
	contains(t, out, "held since")

	_, errs := do(1, "release", "order:42", "-owner", "somebody else")
	contains(t, errs, "order:42", "held by", held.Owner())
	_, errs = do(1, "unseal", "order:42")
	contains(t, errs, "not sealed")
	out, _ = do(0, "release", "order:42", "-owner", held.Owner())
	contains(t, out, "released order:42")
	out, _ = do(0, "unseal", "order:43")
	contains(t, out, "unsealed order:43")
	for _, key := range []string{"order:42", "order:43"} {
		var st core.State
		surely(t, "Inspect", func() (err error) { st, err = locker.Inspect(t.Context(), key); return err })
		if st.Status != core.Free {
			t.Errorf("%s is %v", key, st.Status)
		}
	}
	if out, _ = do(0, "ls"); out != "" {
		t.Errorf("ls of nothing says %q", out)
	}
}

// listsOddKeys checks that ls prints keys as the services named them, with a prefix and without
// one.
func listsOddKeys(t *testing.T, opener core.Opener, flags ...string) {
	for _, prefix := range []string{"shop*:", ""} {
		locker := must[*core.Locker](t)(core.New(opener, core.WithPrefix(prefix), core.WithTTL(time.Minute)))
		defer locker.Close()
		want := []string{"a", "a b\"", "a%25", "a/b", "a:fence", "a订单"}
		if prefix != "" {
			want = append(want, "a{b}", "a}{")
		}
		for _, key := range append([]string{"b", "c"}, want...) {
			must[*core.Lock](t)(locker.Acquire(t.Context(), key))
		}
		out, _ := ctl(t, 0, append(flags, "-json", "ls", "a", "-prefix", prefix)...)
		var got []string
		for line := range strings.Lines(out) {
			var s state
			if err := json.Unmarshal([]byte(line), &s); err != nil || s.Status != "held" {
				t.Errorf("%v in %q", err, line)
			}
			got = append(got, s.Key)
		}
		if slices.Sort(want); !slices.Equal(got, want) {
			t.Errorf("prefix %q: ls says %q, want %q", prefix, got, want)
		}
		out, errs := ctl(t, 2, append(flags, "ls", "-limit", "3", "-prefix", prefix)...)
		contains(t, errs, "more than 3 keys")
		if strings.Count(out, "\n") != 4 {
			t.Errorf("a heading and three keys, not %q", out)
		}
	}
}

func TestOrphan_ShownAndUnsealed(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	locker := must[*core.Locker](t)(core.New(on(node.Client()), core.WithInstance("shop-1")))
	defer locker.Close()
	orphan(t, locker, "pay:1", core.WithTag("till 3"))
	out, _ := ctl(t, 0, "-redis", node.Addr(), "inspect", "pay:1")
	contains(t, out, "orphaned", "shop-1/", "till 3", "since", "expires")
	out, _ = ctl(t, 0, "-redis", node.Addr(), "ls", "pay:")
	contains(t, out, "pay:1", "orphaned", "shop-1/")
	out, _ = ctl(t, 0, "-redis", node.Addr(), "-json", "inspect", "pay:1")
	var s state
	if err := json.Unmarshal([]byte(out), &s); err != nil || s.Status != "orphaned" || s.Tag != "till 3" || s.Since.IsZero() {
		t.Errorf("-json inspect says %q: %v", out, err)
	}
	out, _ = ctl(t, 0, "-redis", node.Addr(), "unseal", "pay:1")
	contains(t, out, "unsealed pay:1")
	if st := must[core.State](t)(locker.Inspect(t.Context(), "pay:1")); st.Status != core.Free {
		t.Errorf("after unseal the key is %v", st.Status)
	}
}

// The ls command prints the keys as the services named them, whatever they contain, and no others.
func TestList_OddKeysAndJSON(t *testing.T) {
	t.Parallel()
	for name, prefix := range map[string]string{"prefix": "shop*:", "no prefix": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := testutil.Redis(t)
			locker := must[*core.Locker](t)(core.New(on(node.Client()), core.WithPrefix(prefix), core.WithTTL(time.Minute)))
			defer locker.Close()
			want := []string{"a", "a%25", "a*b", "a?", "a[b]", `a\b`, "a:fence", "a b\"", "a订单"}
			if prefix != "" {
				want = append(want, "a{b}", "a}:fence", "a}{")
			}
			for _, key := range append([]string{"b", "c"}, want...) {
				must[*core.Lock](t)(locker.Acquire(t.Context(), key))
			}
			must[int64](t)(node.Client().LPush(t.Context(), "alist", "x").Result())
			if prefix == "" {
				must[int64](t)(node.Client().LPush(t.Context(), "{alist}", "x").Result())
			}

			out, _ := ctl(t, 0, "-redis", node.Addr(), "-json", "ls", "a", "-prefix", prefix)
			var got []string
			for line := range strings.Lines(out) {
				var s state
				if err := json.Unmarshal([]byte(line), &s); err != nil || s.Status != "held" || s.ExpiresMS <= 0 {
					t.Errorf("%v in %q", err, line)
				}
				got = append(got, s.Key)
			}
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("ls says %q, want %q", got, want)
			}
			if out, _ = ctl(t, 0, "-redis", node.Addr(), "ls", "a*", "-prefix", prefix); strings.Count(out, "\n") != 2 {
				t.Errorf("ls takes its argument for a pattern: %q", out)
			}
			out, errs := ctl(t, 2, "-redis", node.Addr(), "ls", "-limit", "3", "-prefix", prefix)
			contains(t, errs, "more than 3 keys", "-limit")
			if strings.Count(out, "\n") != 4 {
				t.Errorf("a heading and three keys, not %q", out)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"":                                 "say what to do",
		"destroy x":                        `no command "destroy"`,
		"inspect":                          "which key",
		"inspect a b":                      `unexpected argument "b"`,
		"release a":                        "-owner",
		"unseal a -owner b":                "-owner is for release",
		"inspect k -held":                  "-held is for ls",
		"ls -limit 0":                      "-limit 0",
		"ls -timeout 0s":                   "-timeout 0s",
		"ls -redis a:1,,b:2":               "empty",
		"ls -redis http://x":               "-redis",
		"ls -cluster -sentinel m":          "exclude each other",
		"inspect a -redis a:1,b:2":         "two Redis masters",
		"inspect a -redis 127.0.0.1:1":     `"a"`,
		"ls -redis 127.0.0.1:1":            "127.0.0.1:1",
		"inspect a -redis x:1 -timeout 1x": "timeout",
		"inspect a -etcd x:1 -zookeeper y": "name one kind",
		"inspect a -etcd x:1 -cluster":     "name one kind",
		"ls -zookeeper x:1 -root x":        "must be a path",
	} {
		_, errs := ctl(t, 2, strings.Fields(args)...)
		contains(t, errs, says)
	}
	out, _ := ctl(t, 0, "-h")
	contains(t, out, "inspect KEY", "release KEY", "-sentinel", "-json")
}

func TestPasswordFromTheEnvironment(t *testing.T) {
	node := testutil.Redis(t)
	must[string](t)(node.Client().ConfigSet(t.Context(), "requirepass", "open sesame").Result())
	_, errs := ctl(t, 2, "-redis", node.Addr(), "inspect", "a")
	contains(t, errs, "NOAUTH")
	t.Setenv(passwordEnv, "open sesame")
	out, _ := ctl(t, 1, "-redis", node.Addr(), "inspect", "a")
	contains(t, out, "free")
}

// A Sentinel has its own password, and says what is wrong.
func TestSentinel_Errors(t *testing.T) {
	servers := testutil.Sentinel(t)
	at, master := servers.Options().SentinelAddrs[0], servers.Options().MasterName
	_, errs := ctl(t, 2, "-redis", at, "-sentinel", "nobody", "-timeout", "20s", "inspect", "a")
	contains(t, errs, "sentinel")
	_, errs = ctl(t, 2, "-redis", "127.0.0.1:1", "-sentinel", master, "inspect", "a")
	contains(t, errs, "127.0.0.1:1")

	client := redis.NewClient(&redis.Options{Addr: at})
	defer client.Close()
	must[any](t)(client.Do(t.Context(), "ACL", "SETUSER", "default", "resetpass", ">open sesame").Result())
	_, errs = ctl(t, 2, "-redis", at, "-sentinel", master, "inspect", "a")
	contains(t, errs, "NOAUTH")
	t.Setenv(sentinelPasswordEnv, "open sesame")
	out, _ := ctl(t, 1, "-redis", at, "-sentinel", master, "inspect", "a")
	contains(t, out, "free")
}

// mute is a backend that does not answer the first questions about keys.
type mute struct {
	core.Sealer
	questions int
}

func (b *mute) Open(core.Environment) (core.Backend, error) { return b, nil }

func (b *mute) Inspect(ctx context.Context, name string) (core.State, error) {
	if b.questions > 0 {
		b.questions--
		return core.State{}, &core.UnavailableError{Key: name}
	}
	return b.Sealer.Inspect(ctx, name)
}

// Unseal leaves a held key alone, so that nobody may read that it was unsealed.
func TestUnseal_HeldAfterNoAnswer(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	holder := must[*core.Locker](t)(core.New(on(node.Client())))
	defer holder.Close()
	must[*core.Lock](t)(holder.Acquire(t.Context(), "pay:1", core.WithTTL(time.Minute)))
	for _, args := range [][]string{{"unseal", "pay:1"}, {"forget", "pay:"}} {
		backend := must[core.Backend](t)(on(node.Client()).Open(core.Environment{TTL: time.Minute, Logger: slog.Default(), Meter: noop.Meter{}}))
		locker := must[*core.Locker](t)(core.New(&mute{backend.(core.Sealer), 1}))
		var out bytes.Buffer
		o := options{prefix: "onelane:", limit: 10, yes: true, args: args, timeout: 10 * time.Second}
		err := o.on(t.Context(), locker, clients{node.Client()}, &printer{w: &out})
		if !errors.Is(err, errNothing) || out.Len() > 0 {
			t.Errorf("%v: %v, and it says %q", args, err, &out)
		}
		if err := locker.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Without any answer about the state, it still says what it did.
func TestUnseal_NoAnswers(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	holder := must[*core.Locker](t)(core.New(on(node.Client())))
	defer holder.Close()
	if err := must[*core.Lock](t)(holder.Acquire(t.Context(), "pay:1", core.WithTTL(time.Minute))).Seal(t.Context(), nil, time.Hour); err != nil {
		t.Fatal(err)
	}
	backend := must[core.Backend](t)(on(node.Client()).Open(core.Environment{TTL: time.Minute, Logger: slog.Default(), Meter: noop.Meter{}}))
	locker := must[*core.Locker](t)(core.New(&mute{backend.(core.Sealer), 2}))
	defer locker.Close()
	var out bytes.Buffer
	o := options{prefix: "onelane:", args: []string{"unseal", "pay:1"}, timeout: 10 * time.Second}
	if err := o.on(t.Context(), locker, clients{node.Client()}, &printer{w: &out}); err != nil || !strings.Contains(out.String(), "unsealed pay:1") {
		t.Errorf("%v, and it says %q", err, &out)
	}
}
