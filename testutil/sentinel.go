package testutil

import (
	"context"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/testutil/internal/server"
)

const (
	sentinelName = "onelane"
	replUser     = "replica" // as whom the replica asks its master
)

// Replicated is a Redis master with a replica, and a Sentinel. The Sentinel makes the replica the
// master when the master does not answer for two seconds.
type Replicated struct {
	// Master is the node that was the master at first, and Replica the one that takes over.
	Master, Replica *Node
	t               testing.TB
	sentinel        *Node
}

// Sentinel starts a master, a replica and a Sentinel, each a separate process, and ends them with
// the test. It needs redis-server. If that is not installed, the test fails.
//
//	redis := testutil.Sentinel(t)
//	locker, err := core.New(redisbackend.New(redis.Client()))
//	if err != nil {
//		t.Fatal(err)
//	}
//	defer locker.Close()
//	redis.Master.Kill()
//	redis.Promoted()
//	_, err = locker.Acquire(t.Context(), "stock:42")
//	for errors.Is(err, core.ErrUnavailable) { // until the client has heard of it
//		_, err = locker.Acquire(t.Context(), "stock:42")
//	}
//	if err != nil {
//		t.Error(err)
//	}
func Sentinel(t testing.TB) *Replicated {
	t.Helper()
	r := &Replicated{t: t, Master: realNode(t, "a Sentinel"), Replica: realNode(t, "a Sentinel")}
	host, port, _ := strings.Cut(r.Master.Addr(), ":")
	r.must(r.Master.Client().ConfigSet(context.Background(), "repl-diskless-sync-delay", "0").Err())
	r.must(r.Master.Client().Do(context.Background(), "ACL", "SETUSER", replUser, "on", ">"+replUser, "+@all").Err())
	r.must(r.Replica.Client().ConfigSet(context.Background(), "masteruser", replUser).Err())
	r.must(r.Replica.Client().ConfigSet(context.Background(), "masterauth", replUser).Err())
	r.must(r.Replica.Client().ReplicaOf(context.Background(), host, port).Err())
	eventually(t, "the replica has what the master has", func() bool { return r.Replica.role(t) == "connected" })
	process, err := server.StartSentinel(context.Background(), sentinelName, r.Master.Addr())
	r.must(err)
	t.Cleanup(process.Stop)
	r.sentinel = &Node{t: t, process: process}
	// After it stood still for 2 s, a Sentinel does nothing for 30 s. Redis before 7.0 refuses to change that.
	admin := redis.NewClient(&redis.Options{Addr: process.Addr})
	_ = admin.Do(context.Background(), "SENTINEL", "DEBUG", "TILT-PERIOD", "1000").Err()
	r.must(admin.Close())
	eventually(t, "the sentinel knows the replica", func() bool {
		replicas := redis.NewSentinelClient(&redis.Options{Addr: process.Addr})
		defer replicas.Close()
		known, err := replicas.Replicas(context.Background(), sentinelName).Result()
		return err == nil && len(known) == 1 && known[0]["flags"] == "slave"
	})
	return r
}

// role is the state of a replica's link to its master, or "master".
func (n *Node) role(t testing.TB) string {
	t.Helper()
	answer, err := n.Client().Do(context.Background(), "ROLE").Slice()
	if err != nil || len(answer) == 0 {
		return ""
	}
	if answer[0] != "slave" || len(answer) < 4 {
		role, _ := answer[0].(string)
		return role
	}
	state, _ := answer[3].(string)
	return state
}

// Client returns a new client that asks the Sentinel for the master, with go-redis's defaults,
// closed at the end of the test.
func (r *Replicated) Client() *redis.Client {
	client := redis.NewFailoverClient(r.Options())
	r.t.Cleanup(func() { _ = client.Close() })
	return client
}

// Options returns options that name the Sentinel and its master. They are for a client that the
// test makes itself, or for a command.
func (r *Replicated) Options() *redis.FailoverOptions {
	return &redis.FailoverOptions{MasterName: sentinelName, SentinelAddrs: []string{r.sentinel.Addr()}}
}

// Promoted waits until the replica is the master.
func (r *Replicated) Promoted() {
	r.t.Helper()
	eventually(r.t, "the replica is promoted", func() bool { return r.Replica.role(r.t) == "master" })
}

// Lag ends the replication, so that the replica misses what is written from now on.
func (r *Replicated) Lag() {
	r.t.Helper()
	r.must(r.Master.Client().Do(context.Background(), "ACL", "SETUSER", replUser, "off").Err())
	r.must(r.Master.Client().Do(context.Background(), "CLIENT", "KILL", "TYPE", "replica").Err())
	eventually(r.t, "the replica has lost its master", func() bool {
		role := r.Replica.role(r.t)
		return role != "" && role != "connected"
	})
}

func (r *Replicated) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatalf("testutil: the master and its replica: %v", err)
	}
}
