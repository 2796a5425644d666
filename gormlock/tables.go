package gormlock

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/internal/gormkeys"
	"github.com/onelane/onelane/internal/sqltable"
)

//go:embed schema/*.sql
var schemas embed.FS

const (
	maxOwner      = 512
	maxOnceKey    = 512
	maxOnceResult = 16 << 20
)

// Migrate creates the tables that [Fenced] and [Once] need, if they do not exist: onelane_fences and
// onelane_once. Call it at every start, outside a transaction. Several processes may call it at
// once. If you use a migration tool, give it the same statements: they are in the files
// schema/mysql.sql, schema/postgres.sql and schema/sqlite.sql of this package.
//
// A table of that name with another primary key is an error. So is a key that is compared as text, and
// a column that is missing or too short. On databases other than MySQL, MariaDB, PostgreSQL and SQLite
// it returns [ErrDialect].
//
// With dbresolver, Migrate and [Purge] use the source, where writes outside a transaction go.
// Transactions begin on the database of gorm.Open. If that is another database, also call Migrate
// and Purge with a gorm.DB without dbresolver.
func Migrate(db *gorm.DB) error {
	d, err := gormkeys.DialectOf(db)
	if err != nil {
		return fmt.Errorf("gormlock: Migrate: %w", err)
	}
	if _, open := transactionOf(db.Statement.ConnPool); open {
		return fmt.Errorf("gormlock: Migrate in a transaction, which MySQL would commit: %w", gorm.ErrInvalidTransaction)
	}
	schema, err := schemas.ReadFile("schema/" + d.Name + ".sql")
	if err != nil {
		return err
	}
	for table, lengths := range columns {
		conns, err := writerConn(db, table)
		if err == nil {
			err = sqltable.Migrate(withoutGuards(db.Statement.Context), conns, d, string(schema), table, lengths)
		}
		if err != nil {
			return fmt.Errorf("gormlock: Migrate: %w", err)
		}
	}
	return nil
}

// columns are those of each table, and the bytes that they must have room for.
var columns = map[string]map[string]int64{
	"onelane_fences": {"name": maxOnceKey, "owner": maxOwner, "token": 0, "registered_at": 0},
	"onelane_once":   {"name": maxOnceKey, "attempt": 32, "fingerprint": 64, "result": maxOnceResult, "created_at": 0},
}

// A fence is needed as long as a process may still believe in an older lock. The clock that
// tokens are made of may have been put back.
const fenceLife = 24 * time.Hour

var purgedTables = []sqltable.Purged{
	{Table: "onelane_once", Old: "created_at < {before}", CreatedAt: true},
	{Table: "onelane_fences", Old: "registered_at < {before}", AtLeast: fenceLife},
}

// Purge deletes old rows of this package's tables and returns how many it deleted:
//
//   - results of [Once] that are older than olderThan; a later call with such a key runs anew;
//   - fences at which no transaction has registered for olderThan, and for at least a day.
//
// Ages are by the database's clock.
//
// Call Purge from time to time, from one process or several. It deletes 500 rows per transaction.
// If ctx ends, Purge returns how many it had deleted and ctx's error. A missing table is an error:
// see [Migrate]. olderThan must be positive.
func Purge(ctx context.Context, db *gorm.DB, olderThan time.Duration) (int64, error) {
	d, err := gormkeys.DialectOf(db)
	if err != nil {
		return 0, fmt.Errorf("gormlock: Purge: %w", err)
	}
	if olderThan <= 0 {
		return 0, fmt.Errorf("gormlock: Purge: olderThan is %v and must be positive", olderThan)
	}
	if _, open := transactionOf(db.Statement.ConnPool); open {
		return 0, fmt.Errorf("gormlock: Purge in a transaction, which would keep all it deletes locked: %w", gorm.ErrInvalidTransaction)
	}
	var total int64
	for _, p := range purgedTables {
		conns, err := writerOf(db, p.Table)
		if err != nil {
			return total, fmt.Errorf("gormlock: Purge: %w", err)
		}
		n, err := p.Purge(ctx, conns, d, olderThan)
		total += n
		if err != nil {
			return total, fmt.Errorf("gormlock: Purge: table %s, which gormlock.Migrate makes: %w", p.Table, err)
		}
	}
	return total, nil
}

// writerOf returns the connections that writes to a table go to. With dbresolver these are not
// always db's own.
func writerOf(db *gorm.DB, table string) (*sql.DB, error) {
	if _, ok := db.Plugins[gormkeys.Resolver]; !ok {
		return db.DB()
	}
	dry := unguarded(db).Session(&gorm.Session{DryRun: true}).Table(table).Exec("DELETE FROM " + table)
	if dry.Error != nil {
		return nil, dry.Error
	}
	return dry.DB()
}

// writerConn is writerOf, except that without dbresolver it may be a single connection: that of
// Connection, whose search_path or database may be another.
func writerConn(db *gorm.DB, table string) (sqltable.Conn, error) {
	if _, ok := db.Plugins[gormkeys.Resolver]; ok {
		return writerOf(db, table)
	}
	if prepared, ok := db.Statement.ConnPool.(*gorm.PreparedStmtDB); ok {
		return prepared.ConnPool, nil
	}
	return db.Statement.ConnPool, nil
}

// unguarded returns a session of db that keeps only its context, without guards. With dbresolver it
// reads from the primary.
func unguarded(db *gorm.DB) *gorm.DB {
	db = db.Session(&gorm.Session{NewDB: true, Context: withoutGuards(db.Statement.Context)})
	return db.Set(gormkeys.WriteSetting, struct{}{}).Session(&gorm.Session{})
}
