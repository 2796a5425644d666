package gormlock_test

import (
	"maps"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/internal/gormkeys"
)

// mariaDB reports whether a database is MariaDB. GORM calls it "mysql", as it calls MySQL.
func mariaDB(t testing.TB, db *gorm.DB) bool {
	t.Helper()
	if db.Name() != "mysql" {
		return false
	}
	var version string
	ok(t, "VERSION", pool(t, db).QueryRowContext(t.Context(), "SELECT VERSION()").Scan(&version))
	return strings.Contains(version, "MariaDB")
}

// unprepared returns a session that prepares no statement: MySQL cannot prepare SIGNAL and
// CREATE FUNCTION.
func unprepared(db *gorm.DB) *gorm.DB {
	db = db.Session(&gorm.Session{Context: db.Statement.Context})
	if prepared, ok := db.Statement.ConnPool.(*gorm.PreparedStmtDB); ok {
		db.Statement.ConnPool = prepared.ConnPool
	}
	db.Statement.ConnPool = gormkeys.InnerTx(db.Statement.ConnPool)
	return db
}

// processlist is the table of the connections of a MySQL or MariaDB. That of MySQL's information_schema
// cannot show statements with binary arguments.
func processlist(t testing.TB, db *gorm.DB) string {
	t.Helper()
	if mariaDB(t, db) {
		return "information_schema.processlist"
	}
	return "performance_schema.processlist"
}

// settings returns session variables by the names that the server knows.
func settings(t testing.TB, db *gorm.DB, all map[string]string) map[string]string {
	t.Helper()
	const name, old = "transaction_isolation", "tx_isolation" // until MariaDB 11.1
	all = maps.Clone(all)
	if level, found := all[name]; found && mariaDB(t, db) {
		all[old] = level
		delete(all, name)
	}
	return all
}
