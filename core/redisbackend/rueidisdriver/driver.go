// Package rueidisdriver is the Redis backend on the client library rueidis.
//
//	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"localhost:6379"}})
//	…
//	locker, err := core.New(rueidisdriver.New(client))
//
// Use it in a service that uses rueidis. Everything is as in package redisbackend, whose Config New
// returns: change a field of it, such as NodeTimeout. Services on rueidis and on go-redis can share
// keys, and wake each other's waiters.
//
// For each Redis, the backend has connections of its own from the client's pool for blocking
// commands. Up to four are for calls, or one to each master of a quorum. Up to two are for renewals,
// and one is for wake-ups. Over a slow link, calls and renewals get up to four times as many.
// Config.Replicas doubles their number. ClientOption.BlockingPoolSize must leave room for them beside
// the application's blocking commands, or else locks are lost. They are made in the background, with
// the client's options. The application's other commands do not hold them up, DisableAutoPipelining
// does not matter, and rueidis sends nothing twice. Calls that find all connections busy share a
// pipeline. ClientOption.ConnLifetime does not end them: rueidis counts it only for connections that
// nobody uses. Those of a Sentinel client are replaced every 3 s.
//
// Locks do not need client-side caching. DisableCache spares its memory, and its command in the
// ACL. For a Redis Cluster the ACL needs "+cluster|slots" and +asking. From Redis 8 on rueidis also
// sends CLUSTER SHARDS, which needs "+cluster|shards". No call takes longer than
// ClientOption.ConnWriteTimeout, which is 10 s by default. To read a seal of megabytes over a slow
// link, set a longer NodeTimeout: rueidis does not show that a reply is on its way.
package rueidisdriver

import (
	"fmt"
	"reflect"

	"github.com/redis/rueidis"

	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

// New returns the backend on rueidis clients: one of a Redis, Sentinel or Redis Cluster, or a
// quorum of 3, 5 or 7 independent masters. The caller closes the clients, after the Locker.
func New(clients ...rueidis.Client) redisbackend.Config {
	return redisbackend.Drive(newDriver(clients))
}

func newDriver(clients []rueidis.Client) (d driver.Driver) {
	for i, client := range clients {
		if v := reflect.ValueOf(client); client == nil || v.Kind() == reflect.Pointer && v.IsNil() {
			return driver.Driver{Err: fmt.Errorf("client %d is nil", i+1)}
		}
		switch {
		case client.Mode() != rueidis.ClientModeCluster:
			d.Nodes = append(d.Nodes, func() driver.Node { return newNode(client) })
		case len(clients) == 1:
			d.Cluster = newCluster(client)
		default:
			return driver.Driver{Err: fmt.Errorf("client %d is of a Redis Cluster; pass a client of one Redis for each master of a quorum, or one of a Redis Cluster alone", i+1)}
		}
	}
	return d
}
