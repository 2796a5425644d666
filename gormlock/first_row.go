package gormlock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
)

// firstRow returns the first of rows, already read.
func firstRow(rows *sql.Rows) *sql.Row {
	columns, err := rows.Columns()
	if err != nil {
		return failedRow(err)
	}
	r := oneRow{columns: columns}
	if rows.Next() {
		r.values = make([]any, len(columns))
		into := make([]any, len(columns))
		for i := range into {
			into[i] = &r.values[i]
		}
		err = rows.Scan(into...)
	}
	if err = errors.Join(err, rows.Err()); err != nil {
		return failedRow(err)
	}
	db := sql.OpenDB(r)
	defer db.Close()
	return db.QueryRowContext(context.Background(), "")
}

// oneRow is a driver that answers every query with one row, or none. A *sql.Row cannot be made
// otherwise.
type oneRow struct {
	failing
	columns []string
	values  []any // nil: there is no row
}

func (r oneRow) Connect(context.Context) (driver.Conn, error) { return r, nil }
func (r oneRow) Prepare(string) (driver.Stmt, error)          { return r, nil }
func (r oneRow) Query([]driver.Value) (driver.Rows, error)    { return &cursor{oneRow: r}, nil }

type cursor struct {
	oneRow
	read bool
}

func (c *cursor) Columns() []string { return c.columns }

func (c *cursor) Next(into []driver.Value) error {
	if c.read || c.values == nil {
		return io.EOF
	}
	c.read = true
	for i, v := range c.values {
		into[i] = v
	}
	return nil
}
