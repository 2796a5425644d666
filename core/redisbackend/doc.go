// Package redisbackend keeps the leases of package core in Redis: one server, Sentinel, a Redis
// Cluster, or a quorum of independent masters.
//
//	locker, err := core.New(redisbackend.New(client))
//
// New accepts:
//
//   - A *redis.Client is one Redis, or the master that Sentinel names. A fail-over can lose a lock
//     that was not replicated yet; fencing tokens reveal it. Config.Replicas makes that unlikely.
//   - A *redis.ClusterClient is a Redis Cluster. Each shard has connections of its own, so a hung
//     shard does not touch the others.
//   - 3, 5 or 7 *redis.Client are a quorum, on which a majority decides.
//
// [Pools] takes redsync pools instead: redigo, rueidis, valkey. Their waiters poll. The module
// rueidisdriver takes rueidis clients. The next paragraph applies to neither of these two.
//
// The backend makes a few connections of its own with the client's options; docs/backends.md says what
// becomes of each. Up to four are for calls, or one to each master of a quorum. Up to two are for
// renewals, and one is for wake-ups. Over a slow link, calls and renewals get up to four times as many.
// Config.Replicas doubles their number. The backend does not use the client's pool or hooks, so it
// never waits behind the application's commands. Only a ClusterClient is asked for slots, and for a
// slot that moves. Connections are made in the background, within the client's DialTimeout. A call
// that finds all connections busy shares a pipeline with others, and waits as long as Redis answers.
//
// A lock without a token is one SET and one script. Instead of the script, Redis 8.4 gets DELEX and
// Valkey 9 DELIFEQ, with a PUBLISH. The lock leaves no second key behind. Old servers work; Redis
// 7.0 or later is faster. docs/format.md is for services in other languages.
//
// Set maxmemory-policy to noeviction. Otherwise Redis may evict locks that are held.
//
// A Redis user needs access to the keys and the channels of the prefix, and these commands:
//
//	ACL SETUSER onelane on >secret ~onelane:* &onelane:* +eval +evalsha +get +set +del +pttl +pexpire
//	    +time +hello +ping +publish +subscribe +unsubscribe +spublish +ssubscribe +sunsubscribe
//	    +sadd +spop +lastsave +info
//
// The commands from +hello on are recommended. Without publish and subscribe, waiters poll. Without
// sadd and spop, processes take no turns. A quorum needs lastsave and info: a master that does not
// tell when it started grants nothing. Redis 8.4 needs +delex, Valkey 9 +delifeq, a Redis Cluster
// +asking and "+cluster|slots", Config.Replicas +wait, a DB +select, a ClientName "+client|setname".
package redisbackend
