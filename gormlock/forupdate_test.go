package gormlock_test

import (
	"database/sql"
	"errors"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// TestForUpdate_LocksTheRow: read, decide, write, without a guard: nothing is lost on any database.
func TestForUpdate_LocksTheRow(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		put(t, db, 42, 0)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 5 {
					err := db.Transaction(func(tx *gorm.DB) error {
						var s Stock
						if err := tx.Scopes(gormlock.ForUpdate()).Preload("Items").Take(&s, "sku = 42").Error; err != nil {
							return err
						}
						return tx.Model(&s).Update("left", s.Left+1).Error
					})
					if err != nil {
						t.Errorf("Transaction: %v", err)
					}
				}
			})
		}
		all.Wait()
		wantLeft(t, db, 42, 40)
	})
}

// TestForUpdate_SQLite: a transaction that begins as a reader becomes the only writer before it reads.
func TestForUpdate_SQLite(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		if db.Name() != "sqlite" {
			return
		}
		put(t, db, 42, 10)
		ctx := t.Context()
		first, err := pool(t, db).Conn(ctx)
		ok(t, "Conn", err)
		defer first.Close()
		_, err = first.ExecContext(ctx, "BEGIN DEFERRED")
		ok(t, "BEGIN", err)
		ok(t, "read", first.QueryRowContext(ctx, "SELECT 1 FROM stocks").Scan(new(int)))
		ok(t, "others write", take(db, 42)) // a reader does not keep them from it
		_, err = first.ExecContext(ctx, "ROLLBACK")
		ok(t, "ROLLBACK", err)

		tx := db.Begin(&sql.TxOptions{})
		ok(t, "read", tx.Scopes(gormlock.ForUpdate()).Take(&Stock{}, "sku = 42").Error)
		second, err := pool(t, db).Conn(ctx)
		ok(t, "Conn", err)
		defer second.Close()
		_, err = second.ExecContext(ctx, "PRAGMA busy_timeout = 50")
		ok(t, "PRAGMA", err)
		if _, err = second.ExecContext(ctx, "UPDATE stocks SET sku = 43"); err == nil {
			t.Error("another transaction wrote")
		}
		ok(t, "Commit", tx.Commit().Error)
		_, err = second.ExecContext(ctx, "PRAGMA busy_timeout = 5000")
		ok(t, "PRAGMA", err)
	})
}

func TestForUpdate_Options(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		put(t, db, 42, 10)
		put(t, db, 43, 10)
		if db.Name() == "sqlite" {
			return
		}
		tx := db.Begin()
		ok(t, "Take", tx.Scopes(gormlock.ForUpdate()).Take(&Stock{}, "sku = 42").Error)
		start := time.Now()
		err := db.Transaction(func(tx *gorm.DB) error {
			var one Stock
			if err := tx.Scopes(gormlock.ForUpdate(nil, gormlock.SkipLocked())).Order("sku").Take(&one).Error; err != nil {
				return err
			}
			if one.SKU != 43 {
				t.Errorf("SkipLocked read %d", one.SKU)
			}
			return tx.Scopes(gormlock.ForUpdate(gormlock.NoWait())).Take(&Stock{}, "sku = 42").Error
		})
		if err == nil || errors.Is(err, gorm.ErrRecordNotFound) || time.Since(start) > 20*time.Second {
			t.Errorf("NoWait: %v after %v", err, time.Since(start))
		}
		ok(t, "Rollback", tx.Rollback().Error)
	})
}

func TestForUpdate_Refusals(t *testing.T) {
	t.Parallel()
	scope := gormlock.ForUpdate()
	each(t, func(t *testing.T, db *gorm.DB) {
		put(t, db, 42, 10)
		want(t, "no plugin", db.Scopes(scope).Take(&Stock{}).Error, gormlock.ErrNotRegistered)
		ok(t, "Use", db.Use(gormlock.New(nil)))
		want(t, "outside a transaction", db.Scopes(scope).Take(&Stock{}).Error, gormlock.ErrNoTransaction)
		want(t, "a Row outside", db.Model(&Stock{}).Scopes(scope).Select("left").Row().Scan(new(int)), gormlock.ErrNoTransaction)
		raw := func(tx *gorm.DB) error { return tx.Raw("SELECT * FROM stocks").Scopes(scope).Scan(&[]Stock{}).Error }
		want(t, "raw SQL", db.Transaction(raw), gorm.ErrNotImplemented)
		dry := db.Session(&gorm.Session{DryRun: true}).Scopes(scope).Take(&Stock{})
		ok(t, "DryRun", dry.Error)
		ok(t, "in a transaction", db.Transaction(func(tx *gorm.DB) error {
			rows, err := tx.Model(&Stock{}).Scopes(scope).Rows()
			if err != nil {
				return err
			}
			return rows.Close()
		}))
		ok(t, "in a guarded one", gormlock.Transaction(reregister(t, db), "k", func(tx *gorm.DB) error { return tx.Scopes(scope).Take(&Stock{}).Error }))
	})
}

// reregister is another gorm.DB on the same connections, with the plugin and a Locker.
func reregister(t testing.TB, db *gorm.DB) *gorm.DB { return holder(t, db, 1) }
