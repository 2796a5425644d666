package gormlock_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glebarez/sqlite"
	gomysql "github.com/go-sql-driver/mysql"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// A BEGIN on a dead connection is sent on another one, as database/sql does. The driver here does not
// look at a connection before it is used.
func TestPinned_DeadConnectionAtBegin(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() != "mysql" {
			return
		}
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
		put(t, db, 42, 10)
		cfg, err := gomysql.ParseDSN(os.Getenv("ONELANE_MYSQL_DSN"))
		ok(t, "ParseDSN", err)
		p := startProxy(t, cfg.Addr)
		cfg.Addr, cfg.DBName, cfg.Logger = p.listener.Addr().String(), db.Migrator().CurrentDatabase(), &gomysql.NopLogger{}
		cfg.CheckConnLiveness = false
		connector, err := gomysql.NewConnector(cfg)
		ok(t, "NewConnector", err)
		conns := sql.OpenDB(connector)
		defer conns.Close()
		proxied, err := gorm.Open(mysql.New(mysql.Config{Conn: conns}), &gorm.Config{Logger: logger.Discard})
		ok(t, "Open", err)
		ok(t, "Use", proxied.Use(gormlock.New(locker(t, backendtest.Memory()))))
		conns.SetMaxIdleConns(8)
		stale := func() {
			var open []*sql.Conn
			for range 8 {
				c, err := conns.Conn(t.Context())
				ok(t, "Conn", err)
				_ = c.PingContext(t.Context())
				open = append(open, c)
			}
			for _, c := range open {
				_ = c.Close()
			}
			p.cutAll()
		}
		stale()
		if err := proxied.Transaction(func(tx *gorm.DB) error { return take(tx, 42) }); err != nil {
			t.Errorf("without a guard: %v", err)
		}
		stale()
		if err := gormlock.Transaction(proxied, "k", func(tx *gorm.DB) error { return take(tx, 42) }); err != nil {
			t.Errorf("Transaction: %v", err)
		}
		stale()
		if err := take(proxied.Scopes(gormlock.Guard("k")), 42); err != nil {
			t.Errorf("Guard: %v", err)
		}
	})
}

// SQLite interrupts COMMIT and ROLLBACK after a statement that was interrupted, while rows that were
// opened before BEGIN are read on the same connection. Nothing stays open in the pool then.
func TestPinned_SQLiteInterrupts(t *testing.T) {
	t.Parallel()
	for name, ignores := range map[string]bool{"ROLLBACK": false, "COMMIT": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			open := func() *gorm.DB {
				file := "file:" + filepath.Join(dir, "shop.db") + "?_pragma=busy_timeout(20000)&_txlock=immediate&_pragma=journal_mode(wal)"
				db, err := gorm.Open(sqlite.Open(file), &gorm.Config{Logger: logger.Discard})
				ok(t, "Open", err)
				t.Cleanup(func() { _ = pool(t, db).Close() })
				return db
			}
			db, other := open(), open()
			ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
			ok(t, "Use", db.Use(gormlock.New(locker(t, backendtest.Memory()))))
			for sku := range 200 {
				put(t, db, sku, 10)
			}
			err := db.Connection(func(conn *gorm.DB) error {
				conn = conn.Session(&gorm.Session{})
				rows, err := conn.Model(&Stock{}).Rows()
				ok(t, "Rows", err)
				defer rows.Close()
				rows.Next()
				return gormlock.Transaction(conn, "k", func(tx *gorm.DB) error {
					ok(t, "take", take(tx, 42))
					if err := execCanceled(tx, "", "SELECT max(x) FROM n"); !ignores {
						return err
					}
					return nil
				})
			})
			if err == nil {
				t.Error("the transaction succeeds")
			}
			pool(t, db).SetMaxOpenConns(1)
			ok(t, "another process writes", take(other, 41))
			ok(t, "the next one", gormlock.Transaction(db, "next", func(tx *gorm.DB) error { return take(tx, 42) }))
			if n := left(t, other, 42); n != 9 {
				t.Errorf("%d left, want 9", n)
			}
		})
	}
}

// SQLite rolls back by itself if a write is interrupted, and refuses ROLLBACK then. The connection stays:
// a database in memory ends with it.
func TestPinned_DatabaseInMemoryStays(t *testing.T) {
	t.Parallel()
	db, err := gorm.Open(sqlite.Open(":memory:"), &gorm.Config{Logger: logger.Discard})
	ok(t, "Open", err)
	defer pool(t, db).Close()
	pool(t, db).SetMaxOpenConns(1)
	ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
	put(t, db, 42, 10)
	ok(t, "Use", db.Use(gormlock.New(locker(t, backendtest.Memory()))))
	err = execCanceled(db.Scopes(gormlock.Guard("k")), "", "INSERT INTO items (id) SELECT x FROM n WHERE x < 1000")
	if err == nil { // the driver returns the context's error, or SQLite's "interrupted"
		t.Error("the INSERT ended")
	}
	wantLeft(t, db, 42, 10)
}

// panicConnector is a driver that panics at COMMIT or ROLLBACK, as the hook of an instrumented driver may.
type panicConnector struct {
	drv driver.Driver
	dsn string
	at  *atomic.Value
}

func (p panicConnector) Driver() driver.Driver { return p.drv }
func (p panicConnector) Connect(context.Context) (driver.Conn, error) {
	c, err := p.drv.Open(p.dsn)
	return panicConn{c, p.at}, err
}

type panicConn struct {
	driver.Conn
	at *atomic.Value
}

func (c panicConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	tx, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
	return panicTx{tx, c.at}, err
}

type panicTx struct {
	driver.Tx
	at *atomic.Value
}

func (t panicTx) Commit() error {
	if t.at.Load() == "COMMIT" {
		panic("hook of COMMIT")
	}
	return t.Tx.Commit()
}

func (t panicTx) Rollback() error {
	if t.at.Load() == "ROLLBACK" {
		panic("hook of ROLLBACK")
	}
	return t.Tx.Rollback()
}

// A panic of the driver at COMMIT or ROLLBACK reaches the caller. Nobody knows the outcome of that
// COMMIT, so the key stays locked for its lease. The Rollback that follows on a panic frees the
// other.
func TestPinned_DriverPanics(t *testing.T) {
	t.Parallel()
	registered, err := sql.Open(sqlite.DriverName, ":memory:")
	ok(t, "sql.Open", err)
	defer registered.Close()
	for _, at := range []string{"COMMIT", "ROLLBACK"} {
		var now atomic.Value
		now.Store("")
		file := "file:" + filepath.Join(t.TempDir(), "panics.db") + "?_pragma=busy_timeout(500)&_txlock=immediate"
		conns := sql.OpenDB(panicConnector{registered.Driver(), file, &now})
		defer conns.Close()
		db, err := gorm.Open(&sqlite.Dialector{Conn: conns}, &gorm.Config{Logger: logger.Discard})
		ok(t, "Open", err)
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
		put(t, db, 42, 10)
		l := locker(t, backendtest.Memory())
		ok(t, "Use", db.Use(gormlock.New(l)))
		done := make(chan any, 1)
		tx := db.Scopes(gormlock.Guard("k")).Begin()
		go func() {
			defer func() { done <- recover() }()
			if err := take(tx, 42); err != nil {
				t.Errorf("take: %v", err)
			}
			now.Store(at)
			if at == "COMMIT" {
				tx.Commit()
			} else {
				tx.Rollback()
			}
		}()
		select {
		case got := <-done:
			if got != "hook of "+at {
				t.Errorf("%s: %v", at, got)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: the panic became a hang", at)
		}
		tx.Rollback()
		if got, want := held(t, l, "k"), at == "COMMIT"; got != want {
			t.Errorf("%s: the key is locked: %v, want %v", at, got, want)
		}
		if at == "COMMIT" {
			want(t, "Commit", tx.Commit().Error, gormlock.ErrCommitUnknown)
		}
	}
}
