package gormlock_test

import (
	"context"
	"errors"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

var errUndone = errors.New("undone")

// TestNested_ContextEnded: the context of a nested block ends, so that ROLLBACK TO cannot be sent
// with it. The block's writes must not be committed even then.
func TestNested_ContextEnded(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 100)
		nested := map[string]func(tx *gorm.DB, fn func(tx *gorm.DB) error) error{
			"Transaction": func(tx *gorm.DB, fn func(tx *gorm.DB) error) error {
				return gormlock.Transaction(tx, "k", fn)
			},
			"plain": func(tx *gorm.DB, fn func(tx *gorm.DB) error) error { return tx.Transaction(fn) },
			"by hand": func(tx *gorm.DB, fn func(tx *gorm.DB) error) error {
				ok(t, "SavePoint", tx.SavePoint("a").Error)
				err := fn(tx)
				_ = tx.RollbackTo("a") // on SQLite and PostgreSQL it returns no error
				return err
			},
		}
		for name, block := range blocks {
			for inner, nested := range nested {
				if inner == "Transaction" && (name == "plain" || name == "by hand") {
					continue // the key comes too late
				}
				called := 0
				err := block(db, func(tx *gorm.DB) error {
					ctx, cancel := context.WithCancel(tx.Statement.Context)
					defer cancel()
					want(t, name, nested(tx.WithContext(ctx), func(tx *gorm.DB) error {
						ok(t, "take", take(tx, 42))
						ok(t, "AfterCommit", gormlock.AfterCommit(tx, func(context.Context) { called++ }))
						cancel()
						return errUndone
					}), errUndone)
					return nil
				})
				if n := left(t, db, 42); n != 100 || called != 0 {
					t.Errorf("%s in %s: %d left, called %d times, %v", inner, name, n, called, err)
					ok(t, "again", db.Model(&Stock{}).Where("sku = 42").Update("left", 100).Error)
				}
				eventually(t, "idle", func() bool { return inUse(t, db) == 0 && !held(t, l, "k") })
				ok(t, "Delete", db.Exec("DELETE FROM onelane_once").Error)
			}
		}
	})
}

// TestNested_ReceiverHasAnError: a failed block is undone even if the gorm.DB that it was called on has an error.
func TestNested_ReceiverHasAnError(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 100)
		for name, block := range blocks {
			for receiver, of := range map[string]func(tx *gorm.DB) *gorm.DB{
				"tx":    func(tx *gorm.DB) *gorm.DB { return tx },
				"chain": func(tx *gorm.DB) *gorm.DB { return tx.Model(&Stock{}).Where("sku = 42") },
			} {
				called := 0
				err := block(db, func(tx *gorm.DB) error {
					outer := of(tx)
					want(t, name, outer.Transaction(func(inner *gorm.DB) error {
						fresh := inner.Session(&gorm.Session{NewDB: true})
						ok(t, "take", take(fresh, 42))
						ok(t, "AfterCommit", gormlock.AfterCommit(inner, func(context.Context) { called++ }))
						return outer.AddError(errUndone)
					}), errUndone)
					return nil
				})
				if receiver == "chain" {
					ok(t, name, err) // the other way GORM commits, and returns the error of tx
				}
				if n := left(t, db, 42); n != 100 || called != 0 {
					t.Errorf("%s in %s: %d left, called %d times, %v", receiver, name, n, called, err)
					ok(t, "again", db.Model(&Stock{}).Where("sku = 42").Update("left", 100).Error)
				}
				ok(t, "Delete", db.Exec("DELETE FROM onelane_once").Error)
			}
		}
	})
}

// TestNested_RowsLeftOpen: a nested block fails and leaves rows open.
func TestNested_RowsLeftOpen(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 100)
		put(t, db, 43, 100)
		for name, block := range blocks {
			err := block(db, func(tx *gorm.DB) error {
				err := tx.Transaction(func(tx *gorm.DB) error {
					ok(t, "take", take(tx, 42))
					rows, err := tx.Model(&Stock{}).Rows()
					ok(t, "Rows", err)
					t.Cleanup(func() { rows.Close() })
					rows.Next()
					return errUndone
				})
				want(t, name, err, errUndone)
				return nil
			})
			if n := left(t, db, 42); n != 100 {
				t.Errorf("%s: %d left, %v", name, n, err)
				ok(t, "again", db.Model(&Stock{}).Where("sku = 42").Update("left", 100).Error)
			}
			eventually(t, "idle", func() bool { return !held(t, l, "k") })
			ok(t, "Delete", db.Exec("DELETE FROM onelane_once").Error)
		}
	})
}

// TestVersion_LateGuardUndone: a nested block whose guard comes too late is rolled back, and the
// versions that it gave are taken back.
func TestVersion_LateGuardUndone(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		mine, _ := twice(t, db)
		late := gormlock.WithGuard(t.Context(), "late")
		ok(t, "Transaction", gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
			ok(t, "first", tx.Model(&mine).Update("balance", 8).Error)
			_ = tx.WithContext(late).Transaction(func(*gorm.DB) error {
				ok(t, "Update", tx.Model(&mine).Update("balance", 7).Error)
				return errUndone
			})
			var now Account
			ok(t, "Take", tx.Take(&now, mine.ID).Error)
			if now.Version != mine.Version {
				t.Errorf("the row has version %d, the model %d", now.Version, mine.Version)
			}
			return nil
		}))
	})
}
