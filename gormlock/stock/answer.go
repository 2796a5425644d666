package stock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
)

// answer is what the database said to the UPDATE of a decrement.
type answer struct {
	sent    bool
	matched int64 // rows that were changed
	left    int64 // of the last of them
}

// answerPool is the connection pool for the one statement of a decrement. It reads the answer, and
// refuses several rows before the COMMIT.
type answerPool struct {
	gorm.ConnPool
	d *decrement
}

// ExecContext implements gorm.ConnPool.
func (p *answerPool) ExecContext(
	ctx context.Context, query string, args ...any,
) (sql.Result, error) {
	d := p.d
	d.statement.ConnPool = p.ConnPool
	d.sent = true
	if err := d.exec(ctx, p.ConnPool, query, args); err != nil {
		return nil, err
	}
	if d.matched == 0 { // nothing was taken: run no hook, write no association
		d.statement.SkipHooks = true
		d.statement.Omits = append(d.statement.Omits, clause.Associations)
	}
	return driver.RowsAffected(d.matched), nil
}

// exec runs the UPDATE.
func (d *decrement) exec(ctx context.Context, c gorm.ConnPool, query string, args []any) error {
	read := d.readReturned
	if d.dialect == "mysql" {
		read = d.readInsertID
	}
	if err := read(ctx, c, query, args); err != nil {
		return err
	}
	if d.matched > 1 {
		return fmt.Errorf("stock: decrement column %q of table %q: the condition selects %d rows, "+
			"and nothing is taken: name one row by a unique key, or call DecrementAll",
			d.column.Name, d.statement.Table, d.matched)
	}
	return nil
}

// readInsertID is for MySQL and MariaDB. LAST_INSERT_ID is one more than what is left, so it is
// never 0. If a trigger of the table inserts, the answer to an UPDATE has 0. Then the connection
// knows LAST_INSERT_ID.
func (d *decrement) readInsertID(
	ctx context.Context, c gorm.ConnPool, query string, args []any,
) error {
	result, err := c.ExecContext(ctx, query, args...)
	if err != nil {
		return err
	}
	if d.matched, err = result.RowsAffected(); err != nil {
		return err
	}
	id, err := result.LastInsertId()
	if err == nil && id == 0 && d.matched == 1 {
		rows, failed := c.QueryContext(ctx, "SELECT LAST_INSERT_ID()") // GORM's Row panics if it cannot prepare
		if failed != nil {
			return failed
		}
		defer rows.Close()
		for rows.Next() {
			err = errors.Join(err, rows.Scan(&id))
		}
		err = errors.Join(err, rows.Err())
	}
	d.left = id - 1
	return err
}

// readReturned is for PostgreSQL and SQLite.
func (d *decrement) readReturned(
	ctx context.Context, c gorm.ConnPool, query string, args []any,
) error {
	rows, err := c.QueryContext(ctx, query+" RETURNING "+d.statement.Quote(d.column), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(&d.left); err != nil {
			return fmt.Errorf("the column must have an integer type: %w", err)
		}
		d.matched++
	}
	return errors.Join(rows.Err(), rows.Close())
}
