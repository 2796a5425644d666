package server

import "os"

// The environment variables by which testutil/servers tells a command where the servers are.
const (
	EnvRedis       = "ONELANE_REDIS"        // host:port
	EnvRedisServer = "ONELANE_REDIS_SERVER" // path of redis-server, or of valkey-server
	EnvMySQL       = "ONELANE_MYSQL_DSN"    // for go-sql-driver/mysql
	EnvMySQLServer = "ONELANE_MYSQL_SERVER" // path of mariadbd, or of MySQL's mysqld
	EnvPostgres    = "ONELANE_POSTGRES_DSN" // for pgx
	EnvEtcd        = "ONELANE_ETCD"         // host:port
	EnvZooKeeper   = "ONELANE_ZOOKEEPER"    // host:port
	EnvRequire     = "ONELANE_REQUIRE_SERVERS"
)

// Advice says how a test gets its servers.
const Advice = "go run github.com/onelane/onelane/testutil/servers go test ./... finds or installs what the tests need"

// Required reports whether a missing server is a failure of the test. That is so under CI, and
// under testutil/servers.
func Required() bool { return set(EnvRequire) || set("CI") }

func set(name string) bool {
	switch os.Getenv(name) {
	case "", "0", "false":
		return false
	}
	return true
}
