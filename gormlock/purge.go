package gormlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"gorm.io/gorm"
)

const (
	purgeBatch = 500
	// A fence is needed as long as a process may still believe in an older lock. The clock that
	// tokens are made of may have been put back.
	fenceLife = 24 * time.Hour
)

// purged names the rows of a table that Purge deletes. {before} is the time before which a row is
// old.
type purged struct {
	table, old string
	atLeast    time.Duration
	byKey      bool // walk the table; else there is an index
}

var purgedTables = []purged{
	{table: "onelane_once", old: "created_at < {before}"},
	{table: "onelane_fences", old: "registered_at < {before}", atLeast: fenceLife, byKey: true},
	{table: "onelane_locks", old: "(state = 0 OR expires_at + orphan <= {now}) AND fence < {before}", atLeast: time.Hour, byKey: true},
}

// Purge deletes old rows of the kit's own tables and returns how many it deleted:
//
//   - results of [Once] that are older than olderThan; such a key runs anew if it is asked for
//     again;
//   - fences at which no transaction has registered for olderThan, and for at least a day;
//   - free rows of [Table] that were acquired longer ago than olderThan, and at least an hour ago.
//     Held, sealed and orphaned keys stay.
//
// Fencing tokens go on increasing after it. Ages are by the database's clock.
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
		conns, err := writerOf(db, p.table)
		if err != nil {
			return total, fmt.Errorf("gormlock: Purge: %w", err)
		}
		n, err := p.purge(ctx, conns, d, micros(max(olderThan, p.atLeast)))
		total += n
		if err != nil {
			return total, fmt.Errorf("gormlock: Purge: table %s, which gormlock.Migrate makes: %w", p.table, err)
		}
	}
	return total, nil
}

// purge finds old rows without locking them, and deletes them by their keys if they are still old.
// One DELETE by age would lock all rows it looks at.
func (p purged) purge(ctx context.Context, db *sql.DB, d dialect, age int64) (total int64, err error) {
	old := strings.ReplaceAll(p.old, "{before}", fmt.Sprintf("({now} - %d)", age))
	find := fmt.Sprintf("SELECT name FROM %s WHERE name > ? AND %s ORDER BY name LIMIT %d", p.table, old, purgeBatch)
	if !p.byKey {
		find = fmt.Sprintf("SELECT name FROM %s WHERE name >= ? AND %s ORDER BY created_at LIMIT %d", p.table, old, purgeBatch)
	}
	last := []byte{}
	for {
		var names []any
		err := inTransaction(ctx, db, d, &sql.TxOptions{ReadOnly: true}, func(tx gorm.Tx) (err error) {
			names, err = namesOf(ctx, tx, d.sql(find), last)
			return err
		})
		if err != nil || len(names) == 0 {
			return total, err
		}
		if p.byKey {
			last = names[len(names)-1].([]byte)
		}
		remove := fmt.Sprintf("DELETE FROM %s WHERE name IN (?%s) AND %s", p.table, strings.Repeat(", ?", len(names)-1), old)
		var n int64
		err = retry(ctx, func() error {
			return inTransaction(ctx, db, d, nil, func(tx gorm.Tx) error {
				result, err := tx.ExecContext(ctx, d.sql(remove), names...)
				if err != nil {
					return err
				}
				n, err = result.RowsAffected()
				return err
			})
		})
		if err != nil {
			return total, err
		}
		total += n
		if len(names) < purgeBatch || n == 0 && !p.byKey { // else somebody else purges
			return total, nil
		}
	}
}

// inTransaction runs fn in a transaction, which commits also if autocommit is off. If it fails, it
// is not committed later: see pinnedTx.
func inTransaction(ctx context.Context, db *sql.DB, d dialect, opts *sql.TxOptions, fn func(gorm.Tx) error) error {
	tx, err := begin(ctx, db, d, opts, true)
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}

func namesOf(ctx context.Context, tx gorm.Tx, query string, last []byte) (names []any, err error) {
	rows, err := tx.QueryContext(ctx, query, last)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var name []byte
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, rows.Err()
}
