// Package redisbackend keeps the leases of package core in Redis: one server, Sentinel, a Redis
// Cluster, or a quorum of independent masters.
//
//	locker, err := core.New(redisbackend.New(client))
//
// New accepts:
//
//   - A *redis.Client is one Redis, or the master that Sentinel names. A fail-over can lose a lock
//     that was not replicated yet; its fencing token tells. Config.Replicas makes that unlikely.
//   - A *redis.ClusterClient is a Redis Cluster. Each shard has connections of its own, so a hung
//     shard does not touch the others.
//   - Three or more *redis.Client are a quorum, on which a majority decides.
//
// [Pools] takes redsync pools instead: redigo, rueidis, valkey. Their waiters poll. Package
// rueidisdriver, a module of its own, takes rueidis clients; what follows about connections is not so
// there.
//
// The backend makes a few connections of its own with the client's options. There are up to four
// for calls, or one to each master of a quorum. Two are for renewals and one is for wake-ups. Over
// a slow link there are four times as many for calls and renewals. It does not use the client's
// pool or hooks, so it never waits behind the application's commands. Connections are made in the
// background, within the client's DialTimeout. A call that finds all connections busy shares a
// pipeline with others.
//
// A lock without a token is one SET and one script, or one DELEX on Redis 8.4 and one DELIFEQ on
// Valkey 9. It leaves no second key behind. Old servers work; Redis 7.0 or later is faster. See
// docs/quorum.md, docs/backends.md, and docs/format.md for services in other languages.
//
// Set maxmemory-policy to noeviction: Redis may evict locks that are held otherwise.
//
// The smallest user that works needs the keys' prefix for reading and writing, and the channels':
//
//	ACL SETUSER onelane on >secret ~onelane:* &onelane:* +eval +evalsha +get +set +del +pttl +pexpire
//	    +time +hello +ping +publish +subscribe +unsubscribe +spublish +ssubscribe +sunsubscribe
//	    +lastsave +info
//
// The commands from +hello on are not needed, but better. Without publish and subscribe, waiters
// poll. Without lastsave and info, a quorum cannot recognize a node that restarted. Redis 8.4 adds
// +delex, Valkey 9 +delifeq, a Redis Cluster needs "+cluster|slots", and Config.Replicas +wait.
package redisbackend
