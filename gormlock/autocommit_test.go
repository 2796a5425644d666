package gormlock_test

import (
	"errors"
	"testing"
	"time"

	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// withoutAutocommit opens the MariaDB database of db again, with autocommit off in each session.
func withoutAutocommit(t *testing.T, db *gorm.DB) *gorm.DB {
	t.Helper()
	return withSetting(t, db, "autocommit", "0")
}

// withSetting opens the MariaDB database of db again, with a variable set in each session.
func withSetting(t *testing.T, db *gorm.DB, variable, value string) *gorm.DB {
	t.Helper()
	return openMode(t, db, func(my *gomysql.Config, _ *pgx.ConnConfig) {
		my.Params = map[string]string{variable: value}
	})
}

// TestAutocommitOff_GuardsAndPurge: a transaction does not need autocommit.
func TestAutocommitOff_GuardsAndPurge(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() != "mysql" {
			return
		}
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
		off := withoutAutocommit(t, db)
		ok(t, "Migrate", gormlock.Migrate(off))
		put(t, db, 42, 10)
		l := locker(t, backendtest.Memory())
		ok(t, "Use", off.Use(gormlock.New(l)))
		ok(t, "single", take(off.Scopes(gormlock.Guard("k")), 42))
		ok(t, "block", off.Scopes(gormlock.Guard("k")).Transaction(func(tx *gorm.DB) error { return take(tx, 42) }))
		ok(t, "fenced", gormlock.Transaction(off, "k", func(tx *gorm.DB) error { return take(tx, 42) }, gormlock.Fenced()))
		wantLeft(t, db, 42, 7)
		first, err := gormlock.Once(t.Context(), off, "pay", charge)
		ok(t, "Once", err)
		again, err := gormlock.Once(t.Context(), off, "pay", charge)
		if ok(t, "Once again", err); again != first || orders(t, db) != 1 {
			t.Errorf("%+v, then %+v, in %d orders", first, again, orders(t, db))
		}
		// The key is locked, and a read has left a transaction open on the only connection. No level can be
		// set there.
		pool(t, off).SetMaxOpenConns(1)
		k, err := l.Acquire(t.Context(), "pay")
		ok(t, "Acquire", err)
		ok(t, "read", off.Take(&Stock{}).Error)
		unlocked, err := gormlock.Once(t.Context(), off, "pay", charge, gormlock.WithWait(time.Millisecond))
		if ok(t, "Once without the lock", err); unlocked != first {
			t.Errorf("%+v, want %+v", unlocked, first)
		}
		ok(t, "Release", k.Release(t.Context()))
		ok(t, "old rows", db.Transaction(func(tx *gorm.DB) (err error) {
			for i := range 1100 {
				err = errors.Join(err, tx.Exec("INSERT INTO onelane_once (name, attempt, created_at) VALUES (?, 'a', 1)", i).Error)
			}
			return err
		}))
		n, err := gormlock.Purge(t.Context(), off, time.Hour)
		ok(t, "Purge", err)
		if left := rows(t, db); n != 1100 || left != 1 {
			t.Errorf("%d were purged, and there are %d", n, left)
		}
	})
}
