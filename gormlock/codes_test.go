package gormlock_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"path/filepath"
	"testing"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/gormlock/testdata/sqlite3"
	"github.com/onelane/onelane/testutil/backendtest"
)

// codedDriver is SQLite's, with errors that have a field Code instead of a method.
type codedDriver struct {
	sqlite driver.Driver
	dsn    string
}

func (d codedDriver) Driver() driver.Driver { return d.sqlite }

func (d codedDriver) Connect(context.Context) (driver.Conn, error) {
	c, err := d.sqlite.Open(d.dsn)
	return codedConn{c}, err
}

type codedConn struct{ driver.Conn }

func (c codedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	result, err := c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
	if coded, ok := err.(interface{ Code() int }); ok {
		return nil, sqlite3.Error{Code: sqlite3.ErrNo(coded.Code() & 0xff)}
	}
	return result, err
}

// TestTransaction_CodeInAField: a violated constraint does not block the rest of the function.
func TestTransaction_CodeInAField(t *testing.T) {
	t.Parallel()
	registered, err := sql.Open(sqlite.DriverName, ":memory:")
	ok(t, "sql.Open", err)
	defer registered.Close()
	dsn := "file:" + filepath.Join(t.TempDir(), "coded") + "?_pragma=busy_timeout(5000)&_txlock=immediate"
	conns := sql.OpenDB(codedDriver{registered.Driver(), dsn})
	defer conns.Close()
	db, err := gorm.Open(&sqlite.Dialector{Conn: conns}, &gorm.Config{Logger: logger.Discard})
	ok(t, "Open", err)
	ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
	put(t, db, 42, 10)
	ok(t, "Use", db.Use(gormlock.New(locker(t, backendtest.Memory()))))
	ok(t, "Transaction", gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
		want(t, "Exec", tx.Exec("INSERT INTO stocks (id) SELECT id FROM stocks").Error, sqlite3.Error{Code: 19})
		return take(tx, 42)
	}))
	wantLeft(t, db, 42, 9)
}
