package gormlock

import (
	"database/sql"
	"strings"

	"gorm.io/gorm"
)

// writeSetting is what dbresolver's clause Write leaves in a statement. This package does not
// import dbresolver.
const writeSetting = resolverName + ":write"

// writerOf returns the connections that writes to a table go to. With dbresolver these are not
// always db's own.
func writerOf(db *gorm.DB, table string) (*sql.DB, error) {
	if _, ok := db.Plugins[resolverName]; !ok {
		return db.DB()
	}
	dry := unguarded(db).Session(&gorm.Session{DryRun: true}).Table(table).Exec("DELETE FROM " + table)
	if dry.Error != nil {
		return nil, dry.Error
	}
	return dry.DB()
}

// atWriter returns a SELECT that reads what was committed last, also behind a proxy that sends
// other SELECTs to replicas. On PostgreSQL a common table expression that could write says so: it
// locks nothing, and costs no write. On MySQL it is a locking read, which waits for a transaction
// that has the row. SQLite has no replicas.
func (d dialect) atWriter(query, table string) string {
	switch d.name {
	case "postgres":
		return "WITH writer AS (UPDATE " + table + " SET name = name WHERE FALSE RETURNING 1) " + query
	case "mysql":
		return strings.TrimSpace(query) + " FOR UPDATE"
	}
	return query
}
