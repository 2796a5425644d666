package gormlock_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/gormlock/stock"
	"github.com/onelane/onelane/testutil"
)

var errSoldOut = errors.New("sold out")

// buy is the naive read, check, write that a guard is for.
func buy(tx *gorm.DB, sku int) error {
	var s Stock
	if err := tx.Take(&s, "sku = ?", sku).Error; err != nil {
		return err
	}
	if s.Left <= 0 {
		return errSoldOut
	}
	return tx.Model(&s).Update("left", s.Left-1).Error
}

// rush lets n buyers buy at once and returns how many got something.
func rush(t *testing.T, n int, buy func() error) (sold int64) {
	t.Helper()
	var count atomic.Int64
	var all sync.WaitGroup
	start := make(chan struct{})
	for range n {
		all.Go(func() {
			<-start
			switch err := buy(); {
			case err == nil:
				count.Add(1)
			case !errors.Is(err, errSoldOut):
				t.Errorf("buy: %v", err)
			}
		})
	}
	close(start)
	all.Wait()
	return count.Load()
}

// TestOversell_Guarded is invariant I7 for 64 buyers of 10 units: on a real Redis, in each form of the guard.
func TestOversell_Guarded(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	forms := map[string]func(db *gorm.DB) error{
		"Guard": func(db *gorm.DB) error {
			return db.Scopes(gormlock.Guard("stock:42", gormlock.WithWait(time.Minute))).Transaction(func(tx *gorm.DB) error { return buy(tx, 42) })
		},
		"Transaction": func(db *gorm.DB) error {
			return gormlock.Transaction(db, "stock:42", func(tx *gorm.DB) error { return buy(tx, 42) }, gormlock.WithWait(time.Minute))
		},
	}
	each(t, func(t *testing.T, db *gorm.DB) {
		pool(t, db).SetMaxOpenConns(16)
		ok(t, "Use", db.Use(gormlock.New(l)))
		for name, form := range forms {
			ok(t, "Delete", db.Delete(&Stock{}, "sku = ?", 42).Error)
			put(t, db, 42, 10)
			if sold := rush(t, 64, func() error { return form(db) }); sold != 10 {
				t.Errorf("%s: %d sold of 10", name, sold)
			}
			wantLeft(t, db, 42, 0)
			wantIdle(t, db, l, "stock:42")
		}
	})
}

// TestOversell_Unguarded shows that the buyers above do oversell where nothing keeps them from it; otherwise that test
// could not fail. MariaDB keeps them from it since 11.6.2: a transaction that writes a row which changed since it read
// gets error 1020 (innodb_snapshot_isolation).
func TestOversell_Unguarded(t *testing.T) {
	t.Parallel()
	servers, oversold := 0, 0
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() == "sqlite" {
			return // BEGIN IMMEDIATE keeps out others there
		}
		var refused atomic.Bool
		servers++
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}))
		pool(t, db).SetMaxOpenConns(16)
		ok(t, "Use", db.Use(gormlock.New(testutil.Locker(t))))
		for range 20 {
			ok(t, "Delete", db.Delete(&Stock{}, "sku = ?", 42).Error)
			put(t, db, 42, 10)
			sold := rush(t, 64, func() error {
				err := db.Transaction(func(tx *gorm.DB) error { return buy(tx, 42) })
				if changed, found := errors.AsType[*mysql.MySQLError](err); found && changed.Number == 1020 {
					refused.Store(true)
					return errSoldOut
				}
				return err
			})
			if sold > 10 {
				oversold++
				return
			}
		}
		if refused.Load() {
			servers--
		}
	})
	if servers > 0 && oversold == 0 {
		t.Error("nothing was oversold in 20 rounds on any database")
	}
}

// TestOversell_Decrement: the conditional decrement needs no guard. Each buyer sees a different
// number left.
func TestOversell_Decrement(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		pool(t, db).SetMaxOpenConns(16)
		put(t, db, 42, 10)
		var rests sync.Map
		sold := rush(t, 64, func() error {
			left, err := stock.Decrement(db.Model(&Stock{}).Where("sku = ?", 42), "left", 1)
			if errors.Is(err, stock.ErrInsufficient) {
				return errSoldOut
			}
			rests.Store(left, true)
			return err
		})
		if sold != 10 {
			t.Errorf("%d sold of 10", sold)
		}
		for left := range int64(10) {
			if _, found := rests.Load(left); !found {
				t.Errorf("no buyer was told that %d are left", left)
			}
		}
		wantLeft(t, db, 42, 0)
	})
}

type Phone struct {
	Number string `gorm:"primaryKey;size:32"`
	User   string `gorm:"size:64"`
}

// TestPhonePool is a shared pool of phone numbers: several callers, each gets a different idle one: read, pick, mark.
func TestPhonePool(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Phone{}))
		ok(t, "Use", db.Use(gormlock.New(l)))
		pool(t, db).SetMaxOpenConns(16)
		for _, n := range []string{"100", "101", "102", "103", "104", "105", "106", "107"} {
			ok(t, "Create", db.Create(&Phone{Number: n}).Error)
		}
		var mu sync.Mutex
		got := make(map[string]bool)
		served := rush(t, 20, func() error {
			var p Phone
			err := db.Scopes(gormlock.Guard("phones", gormlock.WithWait(time.Minute))).Transaction(func(tx *gorm.DB) error {
				if err := tx.Where(map[string]any{"user": ""}).First(&p).Error; err != nil {
					return err
				}
				return tx.Model(&p).Update("user", "somebody").Error
			})
			if errors.Is(err, gorm.ErrRecordNotFound) {
				return errSoldOut
			}
			mu.Lock()
			defer mu.Unlock()
			got[p.Number] = true
			return err
		})
		if served != 8 || len(got) != 8 {
			t.Errorf("%d callers got %d different numbers of 8", served, len(got))
		}
	})
}
