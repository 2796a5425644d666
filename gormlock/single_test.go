package gormlock_test

import (
	"errors"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/callbacks"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// TestGuard_InHookOfUnguarded: the transaction that GORM begins around a statement has begun when
// its hooks run. However they ask for a guard then, it comes too late, and nothing is committed,
// even if the hook keeps the error to itself.
func TestGuard_InHookOfUnguarded(t *testing.T) {
	t.Parallel()
	asks := map[string]func(tx *gorm.DB) error{
		"Guard": func(tx *gorm.DB) error { return tx.Scopes(gormlock.Guard("k")).Create(&Item{ID: 2}).Error },
		"WithGuard": func(tx *gorm.DB) error {
			return tx.Session(&gorm.Session{NewDB: true, Context: gormlock.WithGuard(t.Context(), "k")}).Create(&Item{ID: 2}).Error
		},
		"Transaction": func(tx *gorm.DB) error {
			return gormlock.Transaction(tx, "k", func(tx *gorm.DB) error { return tx.Create(&Item{ID: 2}).Error })
		},
	}
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		ask, hides := asks["Guard"], false
		err := db.Callback().Create().Before("gorm:create").Register("hook", func(db *gorm.DB) {
			if db.Statement.Table != "stocks" {
				return
			}
			if _, err := gormlock.SQLTx(db); err != nil {
				t.Errorf("SQLTx: %v", err)
			}
			err := ask(db.Session(&gorm.Session{NewDB: true}))
			want(t, "in the hook", err, gormlock.ErrGuardTooLate)
			if !hides {
				_ = db.AddError(err)
			}
		})
		ok(t, "Register", err)
		for name, how := range asks {
			for _, hides = range []bool{false, true} {
				ask = how
				err, rows := db.Create(&Stock{SKU: 42}).Error, int64(0)
				if hides {
					ok(t, name, err)
					rows = 1
				} else {
					want(t, name, err, gormlock.ErrGuardTooLate)
				}
				var n, items int64
				ok(t, "Count", errors.Join(db.Model(&Stock{}).Count(&n).Error, db.Model(&Item{}).Count(&items).Error))
				if n != rows || items != 0 || held(t, l, "k") {
					t.Errorf("%s, the hook hides its error is %v: %d rows, %d items, the key is held is %v", name, hides, n, items, held(t, l, "k"))
				}
				ok(t, "Delete", db.Where("sku = 42").Delete(&Stock{}).Error)
			}
		}
	})
}

// TestNew_BeginCallbackReplaced: a callback in the place of GORM's that begins a transaction runs
// as before.
func TestNew_BeginCallbackReplaced(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		n := 0
		ok(t, "Replace", db.Callback().Create().Replace("gorm:begin_transaction", func(db *gorm.DB) {
			n++
			callbacks.BeginTransaction(db)
		}))
		ok(t, "Use", db.Use(gormlock.New(locker(t, backendtest.Memory()))))
		ok(t, "Create", db.Create(&Stock{SKU: 42, Left: 1}).Error)
		ok(t, "Transaction", db.Transaction(func(tx *gorm.DB) error { return tx.Create(&Stock{SKU: 43}).Error }))
		ok(t, "Guard", db.Scopes(gormlock.Guard("k")).Create(&Stock{SKU: 44}).Error)
		if n != 3 {
			t.Errorf("it ran %d times, want 3", n)
		}
		var rows int64
		ok(t, "Count", db.Model(&Stock{}).Count(&rows).Error)
		if rows != 3 || inUse(t, db) != 0 {
			t.Errorf("%d rows, %d connections in use", rows, inUse(t, db))
		}
	})
}
