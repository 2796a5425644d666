package gormlock_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// ownRollback is SQLite with a driver that rolls back by itself after a COMMIT that failed, as that
// of mattn/go-sqlite3 does.
type ownRollback struct{ drv driver.Driver }

func (o ownRollback) Driver() driver.Driver { return o.drv }
func (o ownRollback) Connect(context.Context) (driver.Conn, error) {
	c, err := o.drv.Open(":memory:")
	return ownRollbackConn{c}, err
}

type ownRollbackConn struct{ driver.Conn }

func (c ownRollbackConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	tx, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
	return ownRollbackTx{tx}, err
}

type ownRollbackTx struct{ driver.Tx }

func (t ownRollbackTx) Commit() error {
	err := t.Tx.Commit()
	if err != nil {
		_ = t.Tx.Rollback()
	}
	return err
}

// TestCommitRejected_DriverRollsBack: the outcome is known, the key is free, and the connection,
// with its database in memory, stays.
func TestCommitRejected_DriverRollsBack(t *testing.T) {
	t.Parallel()
	registered, err := sql.Open(sqlite.DriverName, ":memory:")
	ok(t, "sql.Open", err)
	defer registered.Close()
	conns := sql.OpenDB(ownRollback{registered.Driver()})
	defer conns.Close()
	conns.SetMaxOpenConns(1)
	db, err := gorm.Open(&sqlite.Dialector{Conn: conns}, &gorm.Config{Logger: logger.Discard})
	ok(t, "Open", err)
	ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
	ok(t, "PRAGMA", db.Exec("PRAGMA foreign_keys = 1").Error)
	ok(t, "CREATE", db.Exec("CREATE TABLE parts (id int PRIMARY KEY, stock_id bigint REFERENCES stocks (id) DEFERRABLE INITIALLY DEFERRED)").Error)
	put(t, db, 42, 10)
	l := locker(t, backendtest.Memory())
	ok(t, "Use", db.Use(gormlock.New(l)))
	err = gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
		return errors.Join(take(tx, 42), tx.Exec("INSERT INTO parts VALUES (1, 999)").Error)
	})
	if err == nil || errors.Is(err, gormlock.ErrCommitUnknown) {
		t.Errorf("got %v, want the database's error", err)
	}
	wantLeft(t, db, 42, 10)
	wantIdle(t, db, l, "k")
}
