package gormlock

import (
	"context"
	"database/sql"
	"database/sql/driver"
)

// failing is a driver whose statements all fail with one error. A sql.Row or sql.Stmt cannot carry
// an error otherwise, and GORM would call a method of a nil one.
type failing struct{ err error }

func (f failing) Connect(context.Context) (driver.Conn, error) { return f, nil }
func (f failing) Driver() driver.Driver                        { return f }
func (f failing) Open(string) (driver.Conn, error)             { return f, nil }
func (f failing) Prepare(string) (driver.Stmt, error)          { return f, nil }
func (f failing) Begin() (driver.Tx, error)                    { return nil, f.err }
func (f failing) Close() error                                 { return nil }
func (f failing) NumInput() int                                { return -1 }
func (f failing) Exec([]driver.Value) (driver.Result, error)   { return nil, f.err }
func (f failing) Query([]driver.Value) (driver.Rows, error)    { return nil, f.err }

// CheckNamedValue accepts every argument, so that the statement fails with err.
func (f failing) CheckNamedValue(*driver.NamedValue) error { return nil }

// failedRow returns a row whose Scan returns err.
func failedRow(err error) *sql.Row {
	db := sql.OpenDB(failing{err})
	defer db.Close()
	return db.QueryRowContext(context.Background(), "")
}

// failedStmt returns a statement that always fails with err.
func failedStmt(err error) *sql.Stmt {
	db := sql.OpenDB(failing{err})
	defer db.Close() // ends its goroutine; the connection of the statement holds nothing
	conn, connErr := db.Conn(context.Background())
	if connErr != nil {
		panic(connErr) // unreachable: Connect does not fail
	}
	stmt, prepareErr := conn.PrepareContext(context.Background(), "")
	if prepareErr != nil {
		panic(prepareErr) // unreachable: Prepare does not fail
	}
	return stmt
}
