// Package sqltable has what the kit's own tables have in common. That is the SQL of each database, the
// migration, and the deletion of old rows. It works on database/sql alone.
package sqltable

import (
	"context"
	"database/sql"
	"strconv"
	"strings"
	"time"
)

// The names of the dialects, as GORM calls them. MySQL is also MariaDB.
const (
	MySQL    = "mysql"
	Postgres = "postgres"
	SQLite   = "sqlite"
)

// Dialect is what differs between databases in the statements of the kit.
type Dialect struct {
	Name     string
	now      string // microseconds since 1970 by the database's clock, in any time zone
	greatest string
	conflict string // ends an INSERT whose row may be there already
	locking  string // makes a SELECT lock and read the newest row
}

var dialects = map[string]Dialect{
	MySQL: {
		// UNIX_TIMESTAMP is wrong in the hour in which clocks are put back.
		now:      "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
		greatest: "GREATEST",
		// INSERT IGNORE would ignore other errors too.
		conflict: "ON DUPLICATE KEY UPDATE name = VALUES(name)",
		locking:  "FOR UPDATE",
	},
	Postgres: {
		// now() is the time of BEGIN.
		now:      "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)",
		greatest: "GREATEST",
		conflict: "ON CONFLICT (name) DO NOTHING",
		locking:  "FOR UPDATE",
	},
	SQLite: {
		now:      "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000",
		greatest: "MAX",
		conflict: "ON CONFLICT (name) DO NOTHING",
	},
}

// Of returns the dialect of a name, and whether there is one.
func Of(name string) (Dialect, bool) {
	d, ok := dialects[name]
	if ok {
		d.Name = name
	}
	return d, ok
}

// SQL writes a statement of the kit for the database. It replaces {now}, {greatest}, {conflict} and
// {locking}, and ? for each argument.
func (d Dialect) SQL(text string) string {
	text = strings.NewReplacer("{now}", d.now, "{greatest}", d.greatest,
		"{conflict}", d.conflict, "{locking}", d.locking).Replace(text)
	for i := 1; d.Name == Postgres && strings.Contains(text, "?"); i++ {
		text = strings.Replace(text, "?", "$"+strconv.Itoa(i), 1)
	}
	return text
}

// AtWriter returns a SELECT that reads what was committed last, also behind a proxy that sends
// other SELECTs to replicas. On PostgreSQL a common table expression that could write says so: it
// locks nothing, and costs no write. On MySQL it is a locking read, which waits for a transaction
// that has the row. SQLite has no replicas.
func (d Dialect) AtWriter(query, table string) string {
	switch d.Name {
	case Postgres:
		return "WITH writer AS (UPDATE " + table + " SET name = name WHERE FALSE RETURNING 1) " + query
	case MySQL:
		return strings.TrimSpace(query) + " FOR UPDATE"
	}
	return query
}

// Micros returns d as the tables count it, rounded up.
func Micros(d time.Duration) int64 {
	n := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		n++
	}
	return n
}

// Conn runs statements: a *sql.DB, a *sql.Conn, or a pool of GORM.
type Conn interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}
