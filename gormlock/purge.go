package gormlock

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/internal/sqltable"
)

// A fence is needed as long as a process may still believe in an older lock. The clock that
// tokens are made of may have been put back.
const fenceLife = 24 * time.Hour

var purgedTables = []sqltable.Purged{
	{Table: "onelane_once", Old: "created_at < {before}", CreatedAt: true},
	{Table: "onelane_fences", Old: "registered_at < {before}", AtLeast: fenceLife},
}

// Purge deletes old rows of this package's tables and returns how many it deleted:
//
//   - results of [Once] that are older than olderThan; such a key runs anew if it is asked for
//     again;
//   - fences at which no transaction has registered for olderThan, and for at least a day.
//
// Ages are by the database's clock.
//
// Call Purge from time to time, from one process or several. It deletes 500 rows per transaction.
// If ctx ends, Purge returns how many it had deleted and ctx's error. A missing table is an error:
// see [Migrate]. olderThan must be positive.
func Purge(ctx context.Context, db *gorm.DB, olderThan time.Duration) (int64, error) {
	d, err := dialectOf(db)
	if err != nil {
		return 0, err
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
