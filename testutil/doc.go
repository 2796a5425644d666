// Package testutil starts private Redis, ZooKeeper and etcd processes for tests, and has databases
// for them. It registers drivers with database/sql. Tests that need no server import package
// backendtest alone, which has an in-memory core.Backend.
//
// [Locker], [Redis] and [Cluster] need nothing installed. They start redis-server if it is
// installed, and an embedded miniredis otherwise. Functions that act on processes ([Node.Stop],
// [RedisCluster], [Sentinel]) need redis-server. Without etcd, [Etcd] returns nil. Without
// ZooKeeper, [ZooKeeper] fails the test. Two environment variables name MariaDB and PostgreSQL, see
// [Databases].
//
// This command starts real servers for a whole run of tests:
//
//	go run github.com/onelane/onelane/testutil/servers go test ./...
//
// If CI or ONELANE_REQUIRE_SERVERS is set, a missing server fails the test. Nothing replaces it
// then.
package testutil
