package redisbackend_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil"
)

// The smallest user that works, as doc.go has it. Without one of the needed commands something does
// not work. With the others something works better.
var (
	neededCommands = []string{"evalsha", "eval", "get", "set", "del", "pttl", "pexpire", "time"}
	betterCommands = []string{"hello", "ping", "publish", "subscribe", "unsubscribe", "spublish", "ssubscribe", "sunsubscribe",
		"sadd", "spop", "lastsave", "info"}
	clusterCommands = []string{"cluster|slots", "asking"}
)

// restricted returns a client of a user that may do nothing else, on onelane's keys and channels only.
func restricted(t *testing.T, n *testutil.Node, commands []string) *redis.Client {
	t.Helper()
	rules := []any{"ACL", "SETUSER", "onelane", "reset", "on", ">secret", "~onelane:*", "&onelane:*"}
	for _, c := range commands {
		rules = append(rules, "+"+c)
	}
	ok(t, "ACL SETUSER", n.Client().Do(t.Context(), rules...).Err())
	return newClient(t, &redis.Options{Addr: n.Addr(), Username: "onelane", Password: "secret"})
}

// everyVerb does everything that a Locker does.
func everyVerb(t *testing.T, l *core.Locker, key string) error {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := l.Ping(ctx); err != nil {
		return err
	}
	k, err := l.Acquire(ctx, key)
	if err != nil {
		return err
	}
	_, minted := k.Token(ctx)
	_, inspected := l.Inspect(ctx, key)
	if err := errors.Join(minted, inspected, k.Extend(ctx, 20*time.Second), k.Release(ctx)); err != nil || !l.Seals() {
		return err
	}
	if k, err = l.Acquire(ctx, key, core.WithToken()); err != nil {
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

func TestACL_SmallestUser(t *testing.T) {
	t.Parallel()
	all := append(slices.Clone(neededCommands), betterCommands...)
	for name, commands := range map[string][]string{"all": all, "needed": neededCommands} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := restricted(t, testutil.Redis(t), commands)
			ok(t, "every verb", everyVerb(t, locker(t, one(client)), "k"))

			var clients []redis.UniversalClient
			for range 3 {
				clients = append(clients, restricted(t, testutil.Redis(t), commands))
			}
			quorum := redisbackend.New(clients...)
			quorum.NewInstallation, quorum.NodeTimeout = true, 5*time.Second
			ok(t, "every verb on a quorum", everyVerb(t, locker(t, quorum), "k"))
		})
	}
	for _, missing := range neededCommands {
		t.Run("without "+missing, func(t *testing.T) {
			t.Parallel()
			commands := slices.DeleteFunc(slices.Clone(all), func(c string) bool { return c == missing })
			err := everyVerb(t, locker(t, one(restricted(t, testutil.Redis(t), commands))), "k")
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
	text, err := os.ReadFile("doc.go")
	ok(t, "ReadFile", err)
	for _, command := range slices.Concat(neededCommands, betterCommands, clusterCommands) {
		if !strings.Contains(string(text), "+"+command) {
			t.Errorf("doc.go does not name +%s", command)
		}
	}
}

// restrictedCluster returns a client of a user that may do nothing else on a Redis Cluster.
func restrictedCluster(t *testing.T, cluster *testutil.Sharded, commands []string) *redis.ClusterClient {
	t.Helper()
	for _, n := range cluster.Nodes {
		restricted(t, n, commands)
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{cluster.Nodes[0].Addr()}, Username: "onelane", Password: "secret"})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// A lock that is held while its slot moves needs ASKING.
func TestACL_RedisCluster(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 2)
	client := restrictedCluster(t, cluster, slices.Concat(neededCommands, betterCommands, clusterCommands))
	l, other := locker(t, one(client)), locker(t, one(client))
	ok(t, "every verb", everyVerb(t, l, "k"))
	k := acquire(t, l, "k", core.WithTTL(time.Minute))
	move := cluster.BeginMove("k", 1-cluster.Owner("k"))
	move.MoveKey("onelane:{k}")
	ok(t, "Extend while the slot moves", k.Extend(t.Context(), time.Hour))
	_, err := other.TryAcquire(t.Context(), "k")
	want(t, "TryAcquire while the slot moves", err, core.ErrTaken)
	move.EndMove()
	ok(t, "Release", k.Release(t.Context()))
}

// Without it, Ping says so before a slot moves.
func TestACL_AskingForbidden(t *testing.T) {
	t.Parallel()
	cluster := testutil.RedisCluster(t, 2)
	l := locker(t, one(restrictedCluster(t, cluster, slices.Concat(neededCommands, betterCommands, clusterCommands[:1]))))
	err := l.Ping(t.Context())
	if want(t, "Ping", err, core.ErrUnavailable); !strings.Contains(err.Error(), "asking") {
		t.Errorf("Ping does not name the command: %v", err)
	}
}

func TestACL_WakeUps(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	client := restricted(t, n, append(slices.Clone(neededCommands), betterCommands...))
	holder, waiter := locker(t, one(client)), locker(t, one(client))
	k := acquire(t, holder, "k")
	got := acquiring(t, waiter, "k")
	eventually(t, "the waiter is subscribed", func() bool { return subscribers(t, n, "k") == 1 })
	ok(t, "Release", k.Release(t.Context()))
	ok(t, "Release", (<-got).Release(t.Context()))
}

// A forbidden call fails closed: at once, with the server's words, and without another try.
func TestNode_Forbidden(t *testing.T) {
	t.Parallel()
	password := func(t *testing.T, n *testutil.Node) {
		ok(t, "ACL", n.Client().Do(t.Context(), "ACL", "SETUSER", "default", "resetpass", ">secret").Err())
	}
	for name, prepare := range map[string]func(t *testing.T, n *testutil.Node) *redis.Client{
		"NOPERM for a command": func(t *testing.T, n *testutil.Node) *redis.Client {
			return restricted(t, n, []string{"hello", "get"})
		},
		"NOPERM for a key": func(t *testing.T, n *testutil.Node) *redis.Client {
			c := restricted(t, n, neededCommands)
			ok(t, "ACL", n.Client().Do(t.Context(), "ACL", "SETUSER", "onelane", "resetkeys", "~other:*").Err())
			return c
		},
		"NOAUTH": func(t *testing.T, n *testutil.Node) *redis.Client {
			password(t, n)
			return n.Client()
		},
		"WRONGPASS": func(t *testing.T, n *testutil.Node) *redis.Client {
			password(t, n)
			return newClient(t, &redis.Options{Addr: n.Addr(), Username: "default", Password: "wrong"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := testutil.Redis(t)
			admin := n.Client()
			ok(t, "PING", admin.Ping(t.Context()).Err()) // before its password is changed
			client := prepare(t, n)
			var err error
			calls := 0
			for range 3 { // on a busy machine, checks of the backend's own may come in between
				before := rejected(t, admin)
				_, err = locker(t, one(client)).Acquire(t.Context(), "k")
				if calls = rejected(t, admin) - before; calls <= 3 {
					break
				}
			}
			want(t, "Acquire", err, core.ErrUnavailable)
			var unavailable *core.UnavailableError
			if !errors.As(err, &unavailable) || !unavailable.Permanent {
				t.Errorf("the error is not permanent: %v", err)
			}
			code, _, _ := strings.Cut(name, " ")
			if !strings.Contains(err.Error(), code) || !strings.Contains(err.Error(), n.Addr()) {
				t.Errorf("the error hides the server's %s or its address: %v", code, err)
			}
			// One call. On a connection that is not let in, HELLO and AUTH, too.
			if calls > 3 {
				t.Errorf("%d calls were rejected for one Acquire", calls)
			}
		})
	}
}

// rejected counts the calls that a server forbade.
func rejected(t *testing.T, admin *redis.Client) (calls int) {
	t.Helper()
	info, err := admin.InfoMap(t.Context(), "errorstats").Result()
	ok(t, "INFO", err)
	for code, stats := range info["Errorstats"] {
		if slices.Contains([]string{"errorstat_NOPERM", "errorstat_NOAUTH", "errorstat_WRONGPASS"}, code) {
			n, err := strconv.Atoi(strings.TrimPrefix(stats, "count="))
			ok(t, "the count", err)
			calls += n
		}
	}
	return calls
}

func TestNode_EvictionWarning(t *testing.T) {
	t.Parallel()
	all := append(slices.Clone(neededCommands), betterCommands...)
	for name, c := range map[string]struct {
		args, commands []string
		warnings       int
	}{
		"noeviction":   {nil, all, 0},
		"volatile-lru": {[]string{"--maxmemory-policy", "volatile-lru"}, all, 1},
		"forbidden":    {[]string{"--maxmemory-policy", "volatile-lru"}, neededCommands, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log logbook
			n := testutil.Redis(t, c.args...)
			l := locker(t, one(restricted(t, n, c.commands)), core.WithLogger(log.logger(slog.LevelWarn)))
			ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
			admin := n.Client()
			eventually(t, "the node was asked", func() bool {
				info := admin.Info(t.Context(), "commandstats").Val()
				return strings.Contains(info, "cmdstat_info") || rejected(t, admin) > 0
			})
			eventually(t, "the warnings", func() bool { return log.count("noeviction") == c.warnings })
		})
	}
}

// logbook keeps what is logged.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logbook) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

func (l *logbook) logger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: level}))
}

// acquiring acquires a key in the background.
func acquiring(t testing.TB, l *core.Locker, key string, opts ...core.AcquireOption) <-chan *core.Lock {
	got := make(chan *core.Lock, 1)
	go func() {
		k, err := l.Acquire(context.Background(), key, opts...)
		if err != nil {
			t.Errorf("Acquire(%q): %v", key, err)
		}
		got <- k
	}()
	return got
}

// subscribers returns how many connections listen for the release of a key.
func subscribers(t testing.TB, n *testutil.Node, key string) int64 {
	t.Helper()
	name := "onelane:{" + key + "}:free"
	counts, err := n.Client().PubSubNumSub(context.Background(), name).Result()
	ok(t, "PUBSUB NUMSUB", err)
	return counts[name]
}

// A connection on which SELECT failed is in database 0, where the holder's key is not.
func TestConnection_DatabaseNotSelected(t *testing.T) {
	t.Parallel()
	t.Run("forbidden", func(t *testing.T) {
		t.Parallel()
		n := testutil.Redis(t)
		restricted(t, n, append(slices.Clone(neededCommands), "hello", "ping"))
		client := newClient(t, &redis.Options{Addr: n.Addr(), Username: "onelane", Password: "secret", DB: 5})
		_, err := locker(t, one(client), core.WithOutageWait(0)).Acquire(t.Context(), "k")
		if n.Client().Exists(t.Context(), "onelane:{k}").Val() == 1 {
			t.Error("the lock is in database 0")
		}
		want(t, "Acquire", err, core.ErrUnavailable)
	})
	t.Run("busy", func(t *testing.T) {
		t.Parallel()
		n := testutil.Redis(t, "--busy-reply-threshold", "20")
		five := func() redisbackend.Config { return one(newClient(t, &redis.Options{Addr: n.Addr(), DB: 5})) }
		acquire(t, locker(t, five()), "k", core.WithTTL(10*time.Minute))
		admin := n.Client()
		busy(t, n)
		other := locker(t, five(), core.WithOutageWait(0))
		_, err := other.Acquire(t.Context(), "connects")
		want(t, "Acquire on a busy server", err, core.ErrUnavailable)
		ok(t, "SCRIPT KILL", admin.ScriptKill(t.Context()).Err())
		eventually(t, "the script is over", func() bool { return admin.Ping(t.Context()).Err() == nil })
		_, err = other.Acquire(t.Context(), "k", core.WithWait(0), core.WithOutageWait(time.Minute))
		want(t, "Acquire of a held key", err, core.ErrTaken)
	})
}

// A command that is forbidden within a script is forbidden, too: Acquire does not try again.
func TestACL_ForbiddenInAScript(t *testing.T) {
	t.Parallel()
	commands := slices.DeleteFunc(slices.Clone(neededCommands), func(c string) bool { return c == "time" })
	l := locker(t, one(restricted(t, testutil.Redis(t), commands)), core.WithOutageWait(0))
	_, err := l.Acquire(t.Context(), "k", core.WithToken())
	var unavailable *core.UnavailableError
	if !errors.As(err, &unavailable) || !unavailable.Permanent {
		t.Errorf("the error is not permanent: %v", err)
	}
}
