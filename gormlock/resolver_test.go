package gormlock_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/glebarez/sqlite"
	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	"gorm.io/plugin/dbresolver"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// beside opens another database, of the same kind as db and without plugins, that has one stock.
func beside(t *testing.T, db *gorm.DB, name string, n int64) *gorm.DB {
	t.Helper()
	var other *gorm.DB
	if db.Name() == "sqlite" {
		var err error
		dsn := "file:" + filepath.Join(t.TempDir(), name) + "?_pragma=busy_timeout(5000)&_txlock=immediate"
		other, err = gorm.Open(sqlite.Open(dsn), &gorm.Config{Logger: logger.Discard})
		ok(t, "Open", err)
		t.Cleanup(func() { _ = pool(t, other).Close() })
		other.Dialector = &sqlite.Dialector{Conn: pool(t, other)}
	} else {
		full, server := db.Migrator().CurrentDatabase()+"_"+name, pool(t, db)
		_, err := server.ExecContext(t.Context(), "CREATE DATABASE "+full)
		ok(t, "CREATE DATABASE", err)
		t.Cleanup(func() {
			if _, err := server.Exec("DROP DATABASE " + full); err != nil {
				t.Errorf("DROP DATABASE: %v", err)
			}
		})
		other = openMode(t, db, func(my *gomysql.Config, pg *pgx.ConnConfig) {
			if my != nil {
				my.DBName = full
			} else {
				pg.Database = full
			}
		})
	}
	ok(t, "AutoMigrate", other.AutoMigrate(&Stock{}, &Item{}))
	ok(t, "Create", other.Create(&Stock{SKU: 42, Name: name, Left: n}).Error)
	return other
}

// TestDBResolver: registered after the plugin, it chooses the database, and guards hold on the one it has chosen.
func TestDBResolver(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, main *gorm.DB) {
		ok(t, "Create", main.Create(&Stock{SKU: 42, Name: "main", Left: 10}).Error)
		plain, source, replica := reopen(t, main), beside(t, main, "source", 10), beside(t, main, "replica", 77)
		readers := func() gorm.Plugin {
			return dbresolver.Register(dbresolver.Config{Replicas: []gorm.Dialector{replica.Dialector}}).
				Register(dbresolver.Config{Sources: []gorm.Dialector{source.Dialector}, Replicas: []gorm.Dialector{replica.Dialector}}, "stocks")
		}
		first := reopen(t, main)
		ok(t, "Use", first.Use(readers()))
		if err := first.Use(gormlock.New(nil)); err == nil || !strings.Contains(err.Error(), "register gormlock before it") {
			t.Errorf("Use after dbresolver: %v", err)
		}

		l := locker(t, backendtest.Memory())
		ok(t, "Use", main.Use(gormlock.New(l, gormlock.Protect(&Item{}))))
		ok(t, "Use", main.Use(readers()))
		from := func(what, name string, tx *gorm.DB) {
			t.Helper()
			var s Stock
			ok(t, what, tx.Take(&s, "sku = 42").Error)
			if s.Name != name {
				t.Errorf("%s: it is from %q, not %q", what, s.Name, name)
			}
		}
		guard := gormlock.Guard("k")

		from("an unguarded read", "replica", main)
		ok(t, "unguarded", take(main, 42))
		wantLeft(t, source, 42, 9)
		ok(t, "single", take(main.Scopes(guard), 42))
		ok(t, "WithGuard", take(main.WithContext(gormlock.WithGuard(t.Context(), "k")), 42))
		ok(t, "prepared session", take(main.Session(&gorm.Session{PrepareStmt: true}).Scopes(guard), 42))
		ok(t, "Decrement", decrement(main.Model(&Stock{}).Scopes(guard).Where("sku = 42"), "left", 1))
		wantLeft(t, source, 42, 5)
		ok(t, "a block is on the main database, as without the plugin", main.Scopes(guard).Transaction(func(tx *gorm.DB) error {
			from("a read in a guarded block", "main", tx)
			from("a locking read", "main", tx.Scopes(gormlock.ForUpdate()))
			return take(tx, 42)
		}))
		ok(t, "Transaction", gormlock.Transaction(main, "k", func(tx *gorm.DB) error {
			from("a read in Transaction", "main", tx)
			return take(tx, 42)
		}))
		wantLeft(t, source, 42, 5)
		wantLeft(t, plain, 42, 8)
		wantLeft(t, replica, 42, 77)
		want(t, "Protect", main.Create(&Item{Name: "a"}).Error, gormlock.ErrUnguarded)
		ok(t, "another table is read from the replica", main.Find(&[]Item{}).Error)
		wantIdle(t, plain, l, "k")
	})
}
