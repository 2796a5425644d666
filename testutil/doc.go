// Package testutil is for our tests and for those of our users. It has an in-memory core.Backend,
// private Redis processes and databases, and the conformance suite that every core.Backend passes.
//
// [Memory], [Locker], [Redis] and [Cluster] need nothing installed. The last three start
// redis-server if it is installed, and an embedded miniredis otherwise. Functions that act on
// processes ([Node.Stop], [RedisCluster], [Sentinel]) need redis-server. Without etcd, [Etcd]
// returns nil. Without ZooKeeper, [ZooKeeper] fails the test. Two environment variables name
// MariaDB and PostgreSQL, see [Databases].
//
// This command starts real servers for a whole run of tests:
//
//	go run github.com/onelane/onelane/testutil/servers go test ./...
//
// If CI or ONELANE_REQUIRE_SERVERS is set, a missing server fails the test. Nothing replaces it
// then.
package testutil
