package rueidisdriver_test

import (
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// The smallest user of package redisbackend works with rueidis, too, and may wait by pub/sub.
func TestACL(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	rules := []any{"ACL", "SETUSER", "onelane", "on", ">secret", "~onelane:*", "&onelane:*"}
	for _, c := range []string{"eval", "evalsha", "get", "set", "del", "pttl", "pexpire", "time", "hello", "ping", "publish", "subscribe",
		"unsubscribe", "spublish", "ssubscribe", "sunsubscribe", "sadd", "spop", "lastsave", "info"} {
		rules = append(rules, "+"+c)
	}
	ok(t, "ACL SETUSER", node.Client().Do(t.Context(), rules...).Err())
	c := client(t, rueidis.ClientOption{InitAddress: []string{node.Addr()}, Username: "onelane", Password: "secret", DisableCache: true,
		ForceSingleClient: true})
	l := locker(t, patient(c))
	k := acquire(t, l, "k", core.WithToken())
	ok(t, "Extend", k.Extend(t.Context(), time.Minute))
	changed, stop, err := open(t, patient(c)).Watch(t.Context(), "onelane:{k}")
	ok(t, "Watch", err)
	defer stop()
	ok(t, "Release", k.Release(t.Context()))
	if _, more := <-changed; !more {
		t.Error("the subscription ended")
	}
}
