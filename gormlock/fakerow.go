package gormlock

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"io"
)

// answer is a driver whose statements all have one answer: an error, one row, or none. A sql.Row or
// sql.Stmt cannot be made otherwise, and GORM would call a method of a nil one.
type answer struct {
	err     error
	columns []string
	values  []any // nil: there is no row, or it was read
}

func (a *answer) Connect(context.Context) (driver.Conn, error) { return a, nil }
func (a *answer) Driver() driver.Driver                        { return nil }
func (a *answer) Prepare(string) (driver.Stmt, error)          { return a, nil }
func (a *answer) Begin() (driver.Tx, error)                    { return nil, a.err }
func (a *answer) Close() error                                 { return nil }
func (a *answer) NumInput() int                                { return -1 }
func (a *answer) Exec([]driver.Value) (driver.Result, error)   { return nil, a.err }
func (a *answer) Query([]driver.Value) (driver.Rows, error)    { return a, a.err }
func (a *answer) Columns() []string                            { return a.columns }

// CheckNamedValue accepts every argument, so that the statement fails with err.
func (a *answer) CheckNamedValue(*driver.NamedValue) error { return nil }

func (a *answer) Next(into []driver.Value) error {
	if a.values == nil {
		return io.EOF
	}
	for i, v := range a.values {
		into[i] = v
	}
	a.values = nil
	return nil
}

func (a *answer) row() *sql.Row {
	db := sql.OpenDB(a)
	defer db.Close()
	return db.QueryRowContext(context.Background(), "")
}

// failedRow returns a row whose Scan returns err.
func failedRow(err error) *sql.Row { return (&answer{err: err}).row() }

// failedStmt returns a statement that always fails with err.
func failedStmt(err error) *sql.Stmt {
	db := sql.OpenDB(&answer{err: err})
	defer db.Close() // ends its goroutine; the connection of the statement holds nothing
	// Connect and Prepare do not fail.
	conn, _ := db.Conn(context.Background())
	stmt, _ := conn.PrepareContext(context.Background(), "")
	return stmt
}

// firstRow returns the first of rows, already read, and closes them.
func firstRow(rows *sql.Rows) *sql.Row {
	columns, err := rows.Columns()
	if err != nil {
		return failedRow(err)
	}
	a := &answer{columns: columns}
	if rows.Next() {
		a.values = make([]any, len(columns))
		into := make([]any, len(columns))
		for i := range into {
			into[i] = &a.values[i]
		}
		err = rows.Scan(into...)
	}
	a.err = cmp.Or(err, rows.Err(), rows.Close())
	return a.row()
}
