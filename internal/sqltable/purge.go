package sqltable

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"
)

const purgeBatch = 500

// Purged names the rows of a table that are deleted. {before} is the time before which a row is old.
type Purged struct {
	Table, Old string
	AtLeast    time.Duration
	// CreatedAt means that there is an index on created_at. Otherwise the table is walked by its key.
	CreatedAt bool
}

// Purge deletes rows that are older than an age and returns how many. It finds old rows without
// locking them. Then it deletes those that are still old, by key. One DELETE by age would lock all
// rows it looks at.
func (p Purged) Purge(ctx context.Context, db *sql.DB, d Dialect, age time.Duration) (total int64, err error) {
	old := strings.ReplaceAll(p.Old, "{before}", fmt.Sprintf("({now} - %d)", Micros(max(age, p.AtLeast))))
	find := fmt.Sprintf("SELECT name FROM %s WHERE name > ? AND %s ORDER BY name LIMIT %d", p.Table, old, purgeBatch)
	if p.CreatedAt {
		find = fmt.Sprintf("SELECT name FROM %s WHERE name >= ? AND %s ORDER BY created_at LIMIT %d", p.Table, old, purgeBatch)
	}
	look := &sql.TxOptions{ReadOnly: true}
	if d.Name == MySQL { // which locks what it reads if the sessions are serializable
		look.Isolation = sql.LevelReadCommitted
	}
	last := []byte{}
	for {
		var names []any
		err := inTransaction(ctx, db, look, func(tx *sql.Tx) (err error) {
			names, err = namesOf(ctx, tx, d.SQL(find), last)
			return err
		})
		if err != nil || len(names) == 0 {
			return total, err
		}
		if !p.CreatedAt {
			last = names[len(names)-1].([]byte)
		}
		remove := fmt.Sprintf("DELETE FROM %s WHERE name IN (?%s) AND %s", p.Table, strings.Repeat(", ?", len(names)-1), old)
		var n int64
		err = Retry(ctx, func() error {
			return inTransaction(ctx, db, nil, func(tx *sql.Tx) error {
				result, err := tx.ExecContext(ctx, d.SQL(remove), names...)
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
		if len(names) < purgeBatch || n == 0 && p.CreatedAt { // else somebody else purges
			return total, nil
		}
	}
}

// inTransaction runs fn in a transaction, which commits even if autocommit is off. A COMMIT or
// ROLLBACK that fails may leave the transaction open: its connection is closed then, so that nothing
// is committed later.
func inTransaction(ctx context.Context, db *sql.DB, opts *sql.TxOptions, fn func(*sql.Tx) error) error {
	conn, tx, err := begin(ctx, db, opts)
	if err != nil {
		return err
	}
	defer conn.Close()
	err = fn(tx)
	end := tx.Commit
	if err != nil {
		end = tx.Rollback
	}
	if failed := end(); failed != nil {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		if err == nil {
			err = failed
		}
	}
	return err
}

// begin begins a transaction on a separate connection. As database/sql does, it takes another
// connection if the driver reports a bad connection. Each bad one leaves the pool.
func begin(ctx context.Context, db *sql.DB, opts *sql.TxOptions) (*sql.Conn, *sql.Tx, error) {
	for tries := 3 + db.Stats().Idle; ; tries-- {
		conn, err := db.Conn(ctx)
		if err != nil {
			return nil, nil, err
		}
		if opts != nil && opts.Isolation != sql.LevelDefault {
			// If autocommit is off, a read has left a transaction open, in which no level can be set. Any BEGIN
			// commits it.
			_, err = conn.ExecContext(ctx, "COMMIT")
		}
		if err == nil {
			var tx *sql.Tx
			if tx, err = conn.BeginTx(ctx, opts); err == nil {
				return conn, tx, nil
			}
		}
		_ = conn.Close()
		if !errors.Is(err, driver.ErrBadConn) || tries <= 1 {
			return nil, nil, err
		}
	}
}

func namesOf(ctx context.Context, tx *sql.Tx, query string, last []byte) (names []any, err error) {
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
