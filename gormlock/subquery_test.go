package gormlock_test

import (
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// TestGuard_Subquery: a query that is part of a guarded statement, and made of the same session, is in its SQL. GORM
// builds it as a DryRun, and drops its error.
func TestGuard_Subquery(t *testing.T) {
	t.Parallel()
	sessions := map[string]func(db *gorm.DB, fn func(tx *gorm.DB) error) error{
		"block": func(db *gorm.DB, fn func(tx *gorm.DB) error) error {
			return db.Scopes(gormlock.Guard("k")).Transaction(fn)
		},
		"Transaction": func(db *gorm.DB, fn func(tx *gorm.DB) error) error {
			return gormlock.Transaction(db.WithContext(gormlock.WithGuard(db.Statement.Context, "k")), "k", fn)
		},
		"context": func(db *gorm.DB, fn func(tx *gorm.DB) error) error {
			return fn(db.WithContext(gormlock.WithGuard(db.Statement.Context, "k")))
		},
		"scope": func(db *gorm.DB, fn func(tx *gorm.DB) error) error {
			return fn(db.Scopes(gormlock.Guard("k")).Session(&gorm.Session{}))
		},
	}
	type write func(db *gorm.DB, idle *gorm.DB) error
	writes := map[string]write{
		"NOT IN": func(db, idle *gorm.DB) error { return db.Where("id NOT IN (?)", idle).Delete(&Stock{}).Error },
		"condition": func(db, idle *gorm.DB) error {
			return db.Where("id <> (?)", idle.Limit(1)).Delete(&Stock{}).Error
		},
		"raw": func(db, idle *gorm.DB) error {
			return db.Exec("DELETE FROM stocks WHERE id NOT IN (?)", idle).Error
		},
	}
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		var kept Stock
		ok(t, "Take", db.Take(&kept, "sku = 42").Error)
		ok(t, "Create", db.Create(&Item{StockID: kept.ID, Name: "kept"}).Error)
		for how, session := range sessions {
			for name, write := range writes {
				put(t, db, 43, 10)
				ok(t, how+", "+name, session(db, func(tx *gorm.DB) error {
					return write(tx, tx.Model(&Item{}).Select("stock_id"))
				}))
				var left []int
				ok(t, "Pluck", db.Model(&Stock{}).Pluck("sku", &left).Error)
				if len(left) != 1 || left[0] != 42 {
					t.Fatalf("%s, %s: stocks %v are left, want the one that has items", how, name, left)
				}
				wantIdle(t, db, l, "k")
			}
		}
	})
}
