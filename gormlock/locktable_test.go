package gormlock_test

import (
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core/sqlbackend"
	"github.com/onelane/onelane/gormlock"
)

// TestGuard_LocksInTheSameDatabase: the table of the locks is beside the rows that they guard.
func TestGuard_LocksInTheSameDatabase(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() == "sqlite" { // a transaction keeps the lock from being renewed: see sqlbackend
			return
		}
		ok(t, "Migrate", gormlock.Migrate(db))
		ok(t, "Migrate", sqlbackend.Migrate(t.Context(), pool(t, db)))
		l := locker(t, sqlbackend.New(pool(t, db), sqlbackend.WithTimeout(time.Minute)))
		ok(t, "Use", db.Use(gormlock.New(l, gormlock.Fenced())))
		put(t, db, 42, 50)
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				for range 4 {
					err := db.Scopes(gormlock.Guard("stock:42", gormlock.WithWait(time.Minute))).Transaction(func(tx *gorm.DB) error {
						var s Stock
						if err := tx.Take(&s, "sku = 42").Error; err != nil {
							return err
						}
						return tx.Model(&s).Update("left", s.Left-1).Error
					})
					if err != nil {
						t.Errorf("Transaction: %v", err)
					}
				}
			})
		}
		all.Wait()
		wantLeft(t, db, 42, 10)
	})
}
