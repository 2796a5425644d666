package redisbackend_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// INFO alone tells that a master has just started, if LASTSAVE is forbidden. A master that tells
// neither grants nothing, and the error names the ACL.
func TestACL_RestartedNodeAbstains(t *testing.T) {
	t.Parallel()
	for forbidden, says := range map[string]string{
		"": "just started", "lastsave": "just started", "info": "its ACL must allow LASTSAVE and INFO",
	} {
		commands := slices.DeleteFunc(append(slices.Clone(neededCommands), betterCommands...), func(c string) bool {
			return c != "" && c == forbidden
		})
		nodes := testutil.Cluster(t, 3)
		if !nodes[0].Real() {
			return // a miniredis has no users
		}
		var clients []redis.UniversalClient
		for _, n := range nodes {
			clients = append(clients, restricted(t, n, commands))
		}
		c := restarted(nodes)
		c.Clients = clients
		b := openQuorum(t, c, time.Second)
		_, err := b.Acquire(t.Context(), attempt("onelane:{k}", time.Second, 0))
		want(t, "Acquire", err, core.ErrUnavailable)
		if !strings.Contains(err.Error(), says) {
			t.Errorf("without %q: %v, want %q", forbidden, err, says)
		}
	}
}
