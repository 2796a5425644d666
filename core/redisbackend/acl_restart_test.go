package redisbackend_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil"
)

// INFO alone tells that a master has just started. Some services forbid LASTSAVE.
func TestACL_RestartedNodeAbstainsWithoutLastsave(t *testing.T) {
	t.Parallel()
	const ttl = 20 * time.Second
	commands := slices.DeleteFunc(append(slices.Clone(neededCommands), betterCommands...), func(c string) bool { return c == "lastsave" })
	nodes := testutil.Cluster(t, 3)
	if !nodes[0].Real() {
		return // a miniredis has no users
	}
	var clients []redis.UniversalClient
	for _, n := range nodes {
		clients = append(clients, restricted(t, n, commands))
	}
	fresh := redisbackend.New(clients...)
	fresh.NewInstallation, fresh.NodeTimeout = true, 5*time.Second // the first grant need not wait
	first := openQuorum(t, fresh, ttl)
	c := redisbackend.New(clients...)
	c.NodeTimeout = time.Second
	b := openQuorum(t, c, ttl)

	g, err := first.Acquire(t.Context(), core.Request{Key: "onelane:{k}", Owner: "a/1", TTL: ttl})
	ok(t, "Acquire", err)
	// The third one misses the grant, and the second one forgets it.
	eventually(t, "the third node had the lease", func() bool {
		return nodes[2].Client().Del(t.Context(), "onelane:{k}").Val() == 1
	})
	nodes[1].Restart()
	restricted(t, nodes[1], commands) // the user is gone, too
	for i := range 10 {
		other, err := b.Acquire(t.Context(), core.Request{Key: "onelane:{k}", Owner: fmt.Sprint("b/", i), TTL: ttl})
		if err == nil && time.Now().Before(g.Deadline) {
			t.Fatalf("two hold the key: tokens %d and %d", g.Token, other.Token)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
