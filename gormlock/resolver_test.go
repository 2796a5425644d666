package gormlock_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	"gorm.io/plugin/dbresolver"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
)

// database opens a SQLite database of its own, with one stock, and returns its dialector too.
func database(t *testing.T, prepared bool, name string, n int64) (*gorm.DB, gorm.Dialector) {
	t.Helper()
	dsn := "file:" + filepath.Join(t.TempDir(), name) + "?_pragma=busy_timeout(5000)&_txlock=immediate"
	db, err := gorm.Open(sqlite.Open(dsn), &gorm.Config{Logger: logger.Discard, PrepareStmt: prepared})
	ok(t, "Open", err)
	t.Cleanup(func() { _ = pool(t, db).Close() })
	ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
	ok(t, "Create", db.Create(&Stock{SKU: 42, Name: name, Left: n}).Error)
	return db, &sqlite.Dialector{Conn: pool(t, db)}
}

// TestDBResolver: registered after the plugin, it chooses the database, and guards hold on the one it has chosen.
func TestDBResolver(t *testing.T) {
	t.Parallel()
	for _, prepared := range []bool{false, true} {
		main, _ := database(t, prepared, "main", 10)
		source, sourceDialector := database(t, prepared, "source", 10)
		_, replica := database(t, prepared, "replica", 77)
		l := locker(t, testutil.Memory())
		ok(t, "Use", main.Use(gormlock.New(l, gormlock.Protect(&Item{}))))
		ok(t, "Use", main.Use(dbresolver.Register(dbresolver.Config{Replicas: []gorm.Dialector{replica}}).
			Register(dbresolver.Config{Sources: []gorm.Dialector{sourceDialector}}, "stocks")))
		name := func(tx *gorm.DB) string {
			t.Helper()
			var s Stock
			ok(t, "Take", tx.Take(&s, "sku = 42").Error)
			return s.Name
		}
		rest := func(db *gorm.DB, n int64) {
			t.Helper()
			var s Stock
			ok(t, "Take", db.Session(&gorm.Session{NewDB: true}).Clauses(dbresolver.Write).Take(&s, "sku = 42").Error)
			if s.Left != n {
				t.Errorf("%s: %d left, want %d", s.Name, s.Left, n)
			}
		}
		guard := gormlock.Guard("k")

		ok(t, "unguarded", take(main, 42))
		rest(source, 9)
		ok(t, "single", take(main.Scopes(guard), 42))
		ok(t, "WithGuard", take(main.WithContext(gormlock.WithGuard(t.Context(), "k")), 42))
		ok(t, "prepared session", take(main.Session(&gorm.Session{PrepareStmt: true}).Scopes(guard), 42))
		ok(t, "Decrement", gormlock.Decrement(main.Model(&Stock{}).Scopes(guard).Where("sku = 42"), "left", 1))
		rest(source, 5)
		ok(t, "a block is on the main database, as without the plugin", main.Scopes(guard).Transaction(func(tx *gorm.DB) error {
			if got := name(tx); got != "main" {
				t.Errorf("a read in a guarded transaction is from %q", got)
			}
			return take(tx, 42)
		}))
		ok(t, "Transaction", gormlock.Transaction(main, "k", func(tx *gorm.DB) error { return take(tx, 42) }))
		ok(t, "Grouped", gormlock.Transaction(main, "k", func(tx *gorm.DB) error { return take(tx, 42) }, gormlock.Grouped(4)))
		rest(source, 5)
		var left int64
		ok(t, "main", pool(t, main).QueryRow("SELECT left FROM stocks").Scan(&left))
		if left != 7 {
			t.Errorf("main: %d left, want 7", left)
		}
		want(t, "Protect", main.Create(&Item{Name: "a"}).Error, gormlock.ErrUnguarded)
		ok(t, "another table is read from the replica", main.Find(&[]Item{}).Error)

		// The look before a seal is on the database of the decrement, not on a replica that lags.
		ok(t, "sold out", pool(t, source).QueryRowContext(context.Background(), "UPDATE stocks SET left = 0 RETURNING left").Scan(&left))
		err := gormlock.Decrement(main.Model(&Stock{}).Scopes(guard).Where("sku = 42"), "left", 1, gormlock.SealWhenOut(time.Minute))
		want(t, "Decrement", err, gormlock.ErrInsufficient)
		if !sealed(t, l, "k") {
			t.Error("it is not sealed")
		}
		if err := take(main.Scopes(guard), 42); !errors.Is(err, core.ErrSealed) {
			t.Errorf("got %v", err)
		}
	}
}
