package core_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
	"github.com/redis/go-redis/v9"
)

// smallestACL is what doc.go says that a user of the kit needs: without one of the needed commands something does not work, and with
// the others something is better.
var (
	neededCommands = []string{"evalsha", "eval", "get", "set", "del", "pttl", "pexpire", "time"}
	betterCommands = []string{"hello", "ping", "publish", "subscribe", "unsubscribe", "spublish", "ssubscribe", "sunsubscribe", "lastsave", "info"}
)

// restricted is a client of a user that may do nothing else, on onelane's keys and channels only.
func restricted(t *testing.T, n *testutil.Node, commands []string) *redis.Client {
	t.Helper()
	rules := []any{"ACL", "SETUSER", "onelane", "reset", "on", ">secret", "~onelane:*", "&onelane:*"}
	for _, c := range commands {
		rules = append(rules, "+"+c)
	}
	ok(t, "ACL SETUSER", n.Client().Do(t.Context(), rules...).Err())
	client := redis.NewClient(&redis.Options{Addr: n.Addr(), Username: "onelane", Password: "secret"})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// everyVerb does everything that a Locker does.
func everyVerb(t *testing.T, l *core.Locker, key string) error {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	k, err := l.Acquire(ctx, key)
	if err != nil {
		return err
	}
	if err := k.Extend(ctx, time.Minute); err != nil {
		return err
	}
	if _, err := l.Inspect(ctx, key); err != nil {
		return err
	}
	if err := k.Release(ctx); err != nil {
		return err
	}
	if k, err = l.Acquire(ctx, key); err != nil {
		return err
	}
	if err := k.Seal(ctx, []byte("v"), time.Minute); err != nil {
		return err
	}
	if _, err := l.TryAcquire(ctx, key); !errors.Is(err, core.ErrSealed) {
		return err
	}
	return l.Unseal(ctx, key)
}

func TestACL_TheSmallestUserThatWorks(t *testing.T) {
	t.Parallel()
	all := append(slices.Clone(neededCommands), betterCommands...)
	for name, commands := range map[string][]string{"with what makes it better": all, "with what is needed": neededCommands} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, masters := range []int{1, 3} {
				nodes := testutil.Cluster(t, masters)
				var clients []redis.UniversalClient
				for _, n := range nodes {
					clients = append(clients, restricted(t, n, commands))
				}
				ok(t, "every verb", everyVerb(t, locker(t, core.Clients(clients...), patient), "k"))
			}
		})
	}
	for _, missing := range neededCommands {
		t.Run("without "+missing, func(t *testing.T) {
			t.Parallel()
			commands := slices.DeleteFunc(slices.Clone(all), func(c string) bool { return c == missing })
			err := everyVerb(t, locker(t, core.Clients(restricted(t, testutil.Redis(t), commands))), "k")
			if err == nil {
				t.Errorf("%s is not needed", missing)
			} else {
				want(t, "it fails closed", err, core.ErrUnavailable)
			}
		})
	}
}

func TestACL_IsDocumented(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"doc.go", "../README.md"} {
		text, err := os.ReadFile(file)
		ok(t, "ReadFile", err)
		for _, command := range append(slices.Clone(neededCommands), betterCommands...) {
			if !strings.Contains(string(text), "+"+command) {
				t.Errorf("%s does not say that +%s is needed or better", file, command)
			}
		}
	}
}

// On a Redis Cluster the client asks for the slots too.
func TestACL_OnARedisCluster(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 3)
	for _, n := range cluster.Nodes {
		restricted(t, n, append(append(slices.Clone(neededCommands), betterCommands...), "cluster|slots"))
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{cluster.Nodes[0].Addr()}, Username: "onelane", Password: "secret"})
	t.Cleanup(func() { _ = client.Close() })
	ok(t, "every verb", everyVerb(t, locker(t, core.Clients(client)), "k"))
}

func TestACL_WakeUps(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	client := restricted(t, n, append(slices.Clone(neededCommands), betterCommands...))
	holder, waiter := locker(t, core.Clients(client)), locker(t, core.Clients(client))
	k := acquire(t, holder, "k")
	got := make(chan *core.Lock, 1)
	go func() {
		k, err := waiter.Acquire(context.Background(), "k")
		if err != nil {
			t.Error(err)
		}
		got <- k
	}()
	eventually(t, "the waiter is subscribed", func() bool {
		return n.Client().PubSubNumSub(t.Context(), "onelane:{k}:free").Val()["onelane:{k}:free"] == 1
	})
	time.Sleep(1500 * time.Millisecond)
	ok(t, "Release", k.Release(t.Context()))
	start := time.Now()
	ok(t, "Release", (<-got).Release(t.Context()))
	if took := time.Since(start); took > 300*time.Millisecond {
		t.Errorf("woken %v after the release", took)
	}
}

// What a user must not do fails closed: at once, with the server's words, and without another try.
func TestFault_NoPermission(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(t *testing.T, n *testutil.Node) *redis.Client{
		"NOPERM for a command": func(t *testing.T, n *testutil.Node) *redis.Client { return restricted(t, n, []string{"hello", "get"}) },
		"NOPERM for a key": func(t *testing.T, n *testutil.Node) *redis.Client {
			c := restricted(t, n, neededCommands)
			ok(t, "ACL", n.Client().Do(t.Context(), "ACL", "SETUSER", "onelane", "resetkeys", "~other:*").Err())
			return c
		},
		"NOAUTH": func(t *testing.T, n *testutil.Node) *redis.Client {
			admin := n.Client()
			ok(t, "ACL", admin.Do(t.Context(), "ACL", "SETUSER", "default", "resetpass", ">secret").Err())
			return n.Client()
		},
		"WRONGPASS": func(t *testing.T, n *testutil.Node) *redis.Client {
			c := redis.NewClient(&redis.Options{Addr: n.Addr(), Username: "default", Password: "wrong"})
			t.Cleanup(func() { _ = c.Close() })
			ok(t, "ACL", n.Client().Do(t.Context(), "ACL", "SETUSER", "default", "resetpass", ">secret").Err())
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := testutil.Redis(t)
			admin := n.Client()
			ok(t, "PING", admin.Ping(t.Context()).Err()) // before its password is changed
			l := locker(t, core.Clients(prepare(t, n)))
			rejected := func() (calls int64) {
				info, err := admin.InfoMap(t.Context(), "errorstats").Result()
				ok(t, "INFO", err)
				for code, stats := range info["Errorstats"] {
					if strings.Contains("errorstat_NOPERM errorstat_NOAUTH errorstat_WRONGPASS", code) {
						calls += number(strings.TrimPrefix(stats, "count="))
					}
				}
				return calls
			}
			before := rejected()
			_, err := l.Acquire(t.Context(), "k")
			want(t, "Acquire", err, core.ErrUnavailable)
			code, _, _ := strings.Cut(name, " ")
			if !strings.Contains(err.Error(), code) {
				t.Errorf("the error hides the server's %s: %v", code, err)
			}
			if n := rejected() - before; n > 3 { // one call; where the connection is not let in, HELLO and AUTH too
				t.Errorf("%d calls were rejected for one Acquire", n)
			}
		})
	}
}

func TestEviction_IsWarnedOfOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args     []string
		commands []string
		warnings int
	}{
		"noeviction":       {nil, append(slices.Clone(neededCommands), betterCommands...), 0},
		"volatile-lru":     {[]string{"--maxmemory-policy", "volatile-lru"}, append(slices.Clone(neededCommands), betterCommands...), 1},
		"may not be asked": {[]string{"--maxmemory-policy", "volatile-lru"}, neededCommands, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log logs
			l := locker(t, core.Clients(restricted(t, testutil.Redis(t, c.args...), c.commands)), log.option())
			for range 3 {
				ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
				if c.warnings == 1 {
					eventually(t, "it is said", func() bool { return log.count("noeviction") > 0 })
				} else {
					time.Sleep(700 * time.Millisecond)
				}
			}
			if n := log.count("level=WARN"); n != c.warnings {
				t.Errorf("%d warnings, want %d", n, c.warnings)
			}
		})
	}
}
