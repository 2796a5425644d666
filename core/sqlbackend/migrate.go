package sqlbackend

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"maps"
	"time"

	"github.com/onelane/onelane/internal/sqltable"
)

//go:embed schema/*.sql
var schemas embed.FS

// columns are those of the table, and the bytes that they must have room for. PostgreSQL also has waited.
var columns = map[string]int64{
	"name": maxKey, "owner": maxOwner, "value": maxValue,
	"state": 0, "token": 0, "fence": 0, "acquired_at": 0, "expires_at": 0, "orphan": 0,
}

// Migrate creates the table onelane_locks if it does not exist. Call it at every start. Several
// processes may call it at once. If you use a migration tool, give it the same statement: it is in
// the files schema/mysql.sql, schema/postgres.sql and schema/sqlite.sql of this package. The user
// of the service then needs SELECT, INSERT, UPDATE and, for [Purge], DELETE.
//
// Migrate returns an error for a table of that name with:
//
//   - another primary key
//   - a key that is compared as text: a collation that treats two keys as one would refuse the
//     wrong holder
//   - a column that is missing or too short: MySQL may truncate silently
func Migrate(ctx context.Context, db *sql.DB) error {
	var s server
	err := sqltable.Retry(ctx, func() (err error) {
		s, err = ask(ctx, db)
		return err
	})
	if err != nil {
		return fmt.Errorf("sqlbackend: Migrate: %w", err)
	}
	needed := maps.Clone(columns)
	if s.Name == sqltable.Postgres {
		needed["waited"] = 0
	}
	schema, err := schemas.ReadFile("schema/" + s.Name + ".sql")
	if err == nil {
		err = sqltable.Migrate(ctx, db, s.Dialect, string(schema), "onelane_locks", needed)
	}
	if err != nil {
		return fmt.Errorf("sqlbackend: Migrate: %w", err)
	}
	return nil
}

// freeRows are the rows that nobody needs. Tokens are made of the clock, which may have been put back.
var freeRows = sqltable.Purged{
	Table:   "onelane_locks",
	Old:     "(state = 0 OR expires_at + orphan <= {now}) AND fence < {before}",
	AtLeast: time.Hour,
}

// Purge deletes free rows that were acquired longer ago than olderThan, and at least an hour ago. It
// returns how many it deleted. Held, sealed and orphaned keys stay, and fencing tokens go on increasing.
// Ages are by the database's clock.
//
// Call Purge from time to time, from one process or several. It deletes 500 rows per transaction. If ctx
// ends, Purge returns how many it had deleted and ctx's error. olderThan must be positive.
func Purge(ctx context.Context, db *sql.DB, olderThan time.Duration) (int64, error) {
	if olderThan <= 0 {
		return 0, fmt.Errorf("sqlbackend: Purge: olderThan is %v and must be positive", olderThan)
	}
	s, err := ask(ctx, db)
	if err != nil {
		return 0, fmt.Errorf("sqlbackend: Purge: %w", err)
	}
	n, err := freeRows.Purge(ctx, db, s.Dialect, olderThan)
	if err != nil {
		return n, fmt.Errorf("sqlbackend: Purge: table onelane_locks, which sqlbackend.Migrate makes: %w", err)
	}
	return n, nil
}
