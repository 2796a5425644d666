package gormlock

import (
	"embed"
	"fmt"

	"gorm.io/gorm"

	"github.com/onelane/onelane/internal/sqltable"
)

//go:embed schema/*.sql
var schemas embed.FS

const maxOwner = 512

// Migrate creates the tables that [Fenced] and [Once] need, if they do not exist: onelane_fences and
// onelane_once. Call it at every start, outside a transaction. Several processes may call it at
// once. If you use a migration tool, give it the same statements: they are in the files
// schema/mysql.sql, schema/postgres.sql and schema/sqlite.sql of this package.
//
// A table of that name with another primary key is an error, and so is a key that is compared as
// text. A collation that treats two keys as one would refuse the wrong holder. A column that is
// missing or too short is an error too, because MySQL may truncate silently. On databases other than
// MySQL, MariaDB, PostgreSQL and SQLite it returns [ErrDialect].
//
// With dbresolver, Migrate and [Purge] use the source, where writes outside a transaction go.
// Transactions begin on the database of gorm.Open. If that is another database, also call Migrate
// and Purge with a gorm.DB without dbresolver.
func Migrate(db *gorm.DB) error {
	d, err := dialectOf(db)
	if err != nil {
		return err
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
