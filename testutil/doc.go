// Package testutil is for tests, ours and our users': an in-memory core.Backend, private Redis processes and databases,
// and the conformance suite that every core.Backend passes.
//
// [Memory] needs nothing installed, and neither do [Locker], [Redis] and [Cluster], which start
// redis-server where it is installed and an embedded miniredis elsewhere. Functions that act on
// processes ([Node.Stop], [RedisCluster], [Sentinel]) need redis-server. MariaDB and PostgreSQL are
// found by two environment variables, see [Databases].
//
// Real servers are started for a whole run of tests by
//
//	go run github.com/onelane/onelane/testutil/servers go test ./...
//
// With CI or ONELANE_REQUIRE_SERVERS set, a server that is missing is a failure instead of a replacement.
package testutil
