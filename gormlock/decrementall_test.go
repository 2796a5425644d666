package gormlock_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/gormlock/stock"
)

func TestDecrementAll(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 5)
		put(t, db, 43, 10)
		put(t, db, 44, 99)
		for i, take := range []func() (map[int]int64, error){
			func() (map[int]int64, error) {
				return stock.DecrementAll(db.Model(&Stock{}), "sku", "left", map[int]int64{42: 1, 43: 2})
			},
			func() (map[int]int64, error) {
				return stock.DecrementAll(db.Model(&Stock{}), "SKU", "Left", map[int]int64{43: 2, 42: 1})
			},
			func() (map[int]int64, error) {
				return stock.DecrementAll(db.Table("stocks"), "sku", "left", map[int]int64{43: 2, 42: 1})
			},
			func() (left map[int]int64, err error) {
				guard := db.Scopes(gormlock.Guard("stock:42"), gormlock.Guard("stock:43"))
				return stock.DecrementAll(guard.Model(&Stock{}), "sku", "left", map[int]int64{43: 2, 42: 1})
			},
			func() (left map[int]int64, err error) {
				err = gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
					left, err = stock.DecrementAll(tx.Model(&Stock{}).Where("name = ? OR 1 = 1", ""), "sku", "left", map[int]int64{43: 2, 42: 1})
					return err
				})
				return left, err
			},
		} {
			left, err := take()
			ok(t, fmt.Sprint(i), err)
			if expected := map[int]int64{42: int64(4 - i), 43: int64(8 - 2*i)}; !maps.Equal(left, expected) {
				t.Errorf("%d: left is %v, want %v", i, left, expected)
			}
		}
		wantLeft(t, db, 42, 0)
		wantLeft(t, db, 43, 0)
		wantLeft(t, db, 44, 99)
		left, err := stock.DecrementAll(db.Model(&Stock{}), "sku", "left", map[int]int64{})
		if ok(t, "an empty cart", err); len(left) != 0 {
			t.Errorf("an empty cart left %v", left)
		}
		byName, err := stock.DecrementAll(db.Model(&Stock{}).Where("sku = 44"), "name", "left", map[string]int64{"thing": 9})
		if ok(t, "a text", err); byName["thing"] != 90 {
			t.Errorf("a text: left is %v", byName)
		}
	})
}

// TestDecrementAll_AllOrNone: one that is short takes back the others, and says what it has.
func TestDecrementAll_AllOrNone(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		for sku := range 3 {
			put(t, db, 40+sku, int64(5+sku))
		}
		cart := func(db *gorm.DB, quantities map[int]int64) error {
			_, err := stock.DecrementAll(db.Model(&Stock{}), "sku", "left", quantities)
			return err
		}
		goesOn := func(quantities map[int]int64) func(tx *gorm.DB) error {
			return func(tx *gorm.DB) error {
				ok(t, "Update", tx.Model(&Stock{}).Where("sku = 40").Update("name", "other").Error)
				err := cart(tx, quantities)
				want(t, "in a transaction", err, stock.ErrInsufficient)
				return nil
			}
		}
		short := map[int]int64{40: 1, 41: 7, 42: 1}
		unnested := db.Session(&gorm.Session{DisableNestedTransaction: true})
		for name, take := range map[string]func() error{
			"alone":       func() error { return cart(db, short) },
			"transaction": func() error { return db.Transaction(goesOn(short)) },
			"unnested":    func() error { return unnested.Transaction(goesOn(short)) },
			"Transaction": func() error { return gormlock.Transaction(db, "k", goesOn(short)) },
		} {
			err := take()
			if name != "alone" {
				ok(t, name, err) // the transaction goes on
			}
			for sku := range 3 {
				wantLeft(t, db, 40+sku, int64(5+sku))
			}
		}
		err := cart(db, short)
		e, _ := errors.AsType[*stock.InsufficientError](err)
		if e == nil || e.N != 7 || e.Left != 6 || e.Table != "stocks" || !strings.Contains(e.Row, "= 41") || !strings.Contains(err.Error(), "there is 6") {
			t.Errorf("short of 41: %v, %+v", err, e)
		}
		err = cart(db, map[int]int64{40: 1, 99: 1})
		if e, _ := errors.AsType[*stock.InsufficientError](err); e == nil || e.Left != -1 || !strings.Contains(e.Row, "= 99") {
			t.Errorf("no such row: %v, %+v", err, e)
		}
		if err := cart(db, map[int]int64{40: 1, 41: 0}); err == nil || errors.Is(err, stock.ErrInsufficient) {
			t.Errorf("a quantity of 0: %v", err)
		}
		_, err = stock.DecrementAll(db.Model(&Stock{}), "name", "left", map[string]int64{"thing": 1})
		if err == nil || errors.Is(err, stock.ErrInsufficient) {
			t.Errorf("a key of several rows: %v", err)
		}
		for sku := range 3 {
			wantLeft(t, db, 40+sku, int64(5+sku))
		}
	})
}

// TestDecrementAll_NoDeadlock: carts with the same rows in any order, at once. The books balance.
func TestDecrementAll_NoDeadlock(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		pool(t, db).SetMaxOpenConns(16)
		const rows, each = 5, 60
		for sku := range rows {
			put(t, db, sku, each)
		}
		sold := rush(t, 150, func() error {
			cart := make(map[int]int64)
			for _, sku := range rand.Perm(rows)[:3] {
				cart[sku] = 1
			}
			_, err := stock.DecrementAll(db.Model(&Stock{}), "sku", "left", cart)
			if errors.Is(err, stock.ErrInsufficient) {
				return errSoldOut
			}
			return err // a deadlock would be one
		})
		var taken int64
		for sku := range rows {
			taken += each - left(t, db, sku)
		}
		if taken != 3*sold || sold == 0 {
			t.Errorf("%d carts of 3 were sold, and %d units were taken", sold, taken)
		}
	})
}

type Cubby struct {
	ID        uint
	Warehouse int
	SKU       int
	Left      int64
}

// TestDecrementAll_Or: an Or of the caller does not go around the cart's key.
func TestDecrementAll_Or(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Cubby{}))
		for name, conditions := range map[string]*gorm.DB{
			"chain": db.Model(&Cubby{}).Where("warehouse = ?", 1).Or("warehouse = ?", 2),
			"text":  db.Model(&Cubby{}).Where("warehouse = 1 OR\nwarehouse = 2"),
			"scope": db.Model(&Cubby{}).Scopes(func(d *gorm.DB) *gorm.DB { return d.Where("warehouse = ?", 2).Or("warehouse = ?", 1) }),
		} {
			ok(t, "Delete", db.Exec("DELETE FROM cubbies").Error)
			ok(t, "Create", db.Create(&[]Cubby{{Warehouse: 1, SKU: 40, Left: 9}, {Warehouse: 2, SKU: 41, Left: 0}}).Error)
			left, err := stock.DecrementAll(conditions.Session(&gorm.Session{}), "sku", "left", map[int]int64{41: 1})
			var s40 Cubby
			ok(t, "Take", db.Take(&s40, "sku = 40").Error)
			if !errors.Is(err, stock.ErrInsufficient) || s40.Left != 9 {
				t.Errorf("%s: 1 of sku 41, of which there is 0: left %v, err %v; sku 40 has %d, want 9", name, left, err, s40.Left)
			}
		}
	})
}

// TestDecrementAll_OrWithSoftDelete: the same with a soft delete.
func TestDecrementAll_OrWithSoftDelete(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		trays(t, db) // 42: 3, 43: 100
		_, err := stock.DecrementAll(db.Model(&Tray{}).Where("sku = ?", 43).Or("name = ?", "nobody"), "sku", "left", map[int]int64{42: 1})
		var rest []int64
		ok(t, "Pluck", db.Model(&Tray{}).Order("sku").Pluck("left", &rest).Error)
		if !errors.Is(err, stock.ErrInsufficient) || rest[1] != 100 {
			t.Errorf("cart of sku 42 with conditions that exclude it: %v; left %v", err, rest)
		}
	})
}

// TestDecrementAll_ErrorNamesTheKey: any error names the key that it is about.
func TestDecrementAll_ErrorNamesTheKey(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		put(t, db, 40, 5)
		put(t, db, 41, 5)
		_, err := stock.DecrementAll(db.Model(&Stock{}), "sku", "left", map[int]int64{40: 1, 41: 0})
		t.Log(err)
		_, err2 := stock.DecrementAll(db.Model(&Stock{}), "sku", "left", map[int]int64{40: 0, 41: 1})
		if err.Error() == err2.Error() {
			t.Errorf("which of the two skus is it? %v", err)
		}
	})
}

// A cart on a gorm.DB that failed already takes no lock that nobody would release.
func TestDecrementAll_FailedBefore(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		failed := db.WithContext(gormlock.WithGuard(t.Context(), "k")).Model(&Stock{})
		_ = failed.AddError(gorm.ErrInvalidField)
		_, err := stock.DecrementAll(failed, "sku", "left", map[int]int64{42: 1})
		want(t, "DecrementAll", err, gorm.ErrInvalidField)
		if held(t, l, "k") {
			t.Error("the key stays held")
		}
	})
}
