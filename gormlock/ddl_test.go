package gormlock_test

import (
	"context"
	"errors"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// TestTransaction_DDL: on MySQL it would commit in the middle, so it is not sent. As a single
// statement it would go on after its key is free. Elsewhere it is sent.
func TestTransaction_DDL(t *testing.T) {
	t.Parallel()
	onceDB(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		statements := []string{
			"CREATE TABLE extra (id INT)", " create or replace table extra (id INT)", "DROP TABLE items",
			"ALTER TABLE items ADD extra INT", "TRUNCATE TABLE items", "RENAME TABLE items TO extra",
			"LOCK TABLES items READ", "START TRANSACTION",
		}
		forms := map[string]func(fn func(tx *gorm.DB) error) error{
			"block": func(fn func(tx *gorm.DB) error) error {
				return db.Scopes(gormlock.Guard("k")).Transaction(fn)
			},
			"fenced": func(fn func(tx *gorm.DB) error) error {
				return gormlock.Transaction(db, "k", fn, gormlock.Fenced())
			},
			"nested": func(fn func(tx *gorm.DB) error) error {
				return gormlock.Transaction(db, "k", func(tx *gorm.DB) error { return tx.Transaction(fn) })
			},
			"Once": func(fn func(tx *gorm.DB) error) error {
				_, err := gormlock.Once(t.Context(), db, "k", func(tx *gorm.DB) (int, error) { return 0, fn(tx) })
				return err
			},
		}
		boom := errors.New("boom")
		replaces := mariaDB(t, db)
		for name, form := range forms {
			if db.Name() != "mysql" {
				want(t, name, form(func(tx *gorm.DB) error {
					ok(t, name, tx.Exec("CREATE TABLE extra (id INT)").Error)
					return boom
				}), boom)
				continue
			}
			want(t, name, form(func(tx *gorm.DB) error {
				ok(t, "take", take(tx, 42))
				for _, statement := range statements {
					ok(t, name, says(tx.Exec(statement).Error, "run it without one", nil))
				}
				ok(t, "Migrator", says(tx.Migrator().CreateTable(&struct{ ID uint }{}), "", nil))
				if replaces {
					ok(t, "temporary", tx.Exec("CREATE OR REPLACE TEMPORARY TABLE extra (id INT)").Error)
					ok(t, "temporary", tx.Exec("DROP TEMPORARY TABLE extra").Error)
				}
				ok(t, "temporary", tx.Exec("CREATE TEMPORARY TABLE extra (id INT)").Error)
				ok(t, "temporary", tx.Exec("DROP TEMPORARY TABLE extra").Error)
				ok(t, "it goes on", take(tx, 42))
				return boom
			}), boom)
			wantLeft(t, db, 42, 10)
			eventually(t, "the key is free", func() bool { return !held(t, l, "k") })
			wantIdle(t, db, l, "k")
		}
		single := db.Scopes(gormlock.Guard("k")).Exec("CREATE TABLE extra (id INT)").Error
		if db.Name() == "mysql" {
			ok(t, "single", says(single, "run it without one", nil))
			ok(t, "under a lock", l.Do(t.Context(), "k", func(ctx context.Context) error {
				return db.WithContext(ctx).Exec("CREATE TABLE extra (id INT)").Error
			}))
		} else {
			ok(t, "single", single)
		}
		ok(t, "unguarded", db.Transaction(func(tx *gorm.DB) error { return tx.Exec("DROP TABLE extra").Error }))
	})
}
