package gormlock_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"testing"

	gomysql "github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/gormlock/stock"
	"github.com/onelane/onelane/testutil/backendtest"
)

type cancelKey struct{} // in a context: what a Coaster's hook cancels

// Coaster has a hook that ends the context between two rows of a cart.
type Coaster struct {
	ID   uint
	SKU  int
	Left int64
}

func (*Coaster) AfterUpdate(tx *gorm.DB) error {
	if cancel, found := tx.Statement.Context.Value(cancelKey{}).(context.CancelFunc); found {
		cancel()
	}
	return nil
}

// TestDecrementAll_Canceled: a context that ends in the middle leaves no part of a cart.
func TestDecrementAll_Canceled(t *testing.T) {
	t.Parallel()
	block := func(db *gorm.DB, fn func(tx *gorm.DB) error) error { return db.Transaction(fn) }
	connection := func(db *gorm.DB, fn func(tx *gorm.DB) error) error {
		return db.Connection(func(c *gorm.DB) error { return c.Session(&gorm.Session{}).Transaction(fn) })
	}
	for name, way := range map[string]struct {
		plugin bool
		run    func(db *gorm.DB, fn func(tx *gorm.DB) error) error
	}{"plain": {false, block}, "plugin": {true, block}, "Connection": {true, connection}} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, db *gorm.DB) {
				if way.plugin {
					ok(t, "Use", db.Use(gormlock.New(locker(t, backendtest.Memory()))))
				}
				ok(t, "AutoMigrate", db.AutoMigrate(&Coaster{}))
				ok(t, "Create", db.Create(&[]Coaster{{SKU: 1, Left: 5}, {SKU: 2, Left: 5}}).Error)
				put(t, db, 42, 5)
				ok(t, "the transaction", way.run(db, func(tx *gorm.DB) error {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					ctx = context.WithValue(ctx, cancelKey{}, cancel)
					row := tx.WithContext(ctx).Model(&Coaster{})
					_, err := stock.DecrementAll(row, "sku", "left", map[int]int64{1: 1, 2: 1})
					want(t, "DecrementAll", err, context.Canceled)
					return tx.Create(&Item{StockID: 1, Name: "order"}).Error // this cart is skipped
				}))
				var orders, taken int64
				ok(t, "orders", db.Model(&Item{}).Count(&orders).Error)
				ok(t, "taken", db.Model(&Coaster{}).Select("10 - SUM(?)", column("left")).Scan(&taken).Error)
				if orders != 1 || taken != 0 {
					t.Errorf("%d orders are committed, want 1; %d units are taken, want 0", orders, taken)
				}
			})
		})
	}
}

// Peg has a key without its own index.
type Peg struct {
	ID   uint
	Code int
	Left int64
}

// TestDecrementAll_ReadDeadlock: MySQL rolls back if the read of what is left is in a deadlock, and
// no part of the transaction is committed then.
func TestDecrementAll_ReadDeadlock(t *testing.T) {
	t.Parallel()
	for name, plugin := range map[string]bool{"plain": false, "plugin": true} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, db *gorm.DB) {
				if db.Name() != "mysql" {
					return
				}
				if plugin {
					ok(t, "Use", db.Use(gormlock.New(locker(t, backendtest.Memory()))))
				}
				ok(t, "AutoMigrate", db.AutoMigrate(&Peg{}))
				ok(t, "Create", db.Create(&[]Peg{{Code: 1, Left: 5}, {Code: 2, Left: 0}}).Error)
				put(t, db, 42, 10)
				put(t, db, 43, 10)
				other := db.Begin()
				ok(t, "other", other.Exec("SELECT * FROM pegs WHERE id = 2 FOR UPDATE").Error)
				for range 50 { // heavier, so that it is not the victim
					ok(t, "other", other.Create(&Item{StockID: 2, Name: "heavy"}).Error)
				}
				done := make(chan error, 1)
				err := db.Transaction(func(tx *gorm.DB) error {
					ok(t, "order", tx.Create(&Item{StockID: 1, Name: "order"}).Error)
					ok(t, "take", take(tx, 42))
					go func() { done <- errors.Join(take(other, 42), other.Rollback().Error) }()
					awaitLockWait(t, db)
					_, err := stock.DecrementAll(tx.Model(&Peg{}), "code", "left", map[int]int64{2: 1})
					var deadlock *gomysql.MySQLError
					if !errors.As(err, &deadlock) || deadlock.Number != 1213 {
						t.Errorf("DecrementAll: %v, want the deadlock", err)
					}
					_ = decrement(tx.Model(&Stock{}).Where("sku = 43"), "left", 1) // instead
					return nil
				}, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
				ok(t, "other", <-done)
				var orders int64
				ok(t, "Count", db.Model(&Item{}).Where("name = ?", "order").Count(&orders).Error)
				if taken := 10 - left(t, db, 43); err == nil || orders != 0 || taken != 0 {
					t.Errorf("the transaction returned %v: %d orders are committed, %d units are taken", err, orders, taken)
				}
			})
		})
	}
}

// Ware has a key that is a text and one that is a number.
type Ware struct {
	Code string `gorm:"size:16;primaryKey"`
	Num  int    `gorm:"uniqueIndex"`
	Left int64
}

// TestDecrementAll_KeyOfOtherKind: MySQL would compare "2nd shelf" with a number as 2.
func TestDecrementAll_KeyOfOtherKind(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Ware{}))
		ok(t, "Create", db.Create(&[]Ware{{"42", 1, 3}, {"42-red", 2, 5}}).Error)
		_, err := stock.DecrementAll(db.Model(&Ware{}), "code", "left", map[int]int64{42: 1})
		want(t, "a number for a text", err, gorm.ErrInvalidData)
		_, err = stock.DecrementAll(db.Model(&Ware{}), "num", "left", map[string]int64{"2nd shelf": 1})
		want(t, "a text for a number", err, gorm.ErrInvalidData)
		var rest []int64
		ok(t, "Pluck", db.Model(&Ware{}).Order("num").Pluck("left", &rest).Error)
		if rest[0] != 3 || rest[1] != 5 {
			t.Errorf("left are %v, want 3 and 5", rest)
		}
		_, err = stock.DecrementAll(db.Model(&Ware{}), "code", "left", map[string]int64{"42": 1})
		ok(t, "a text", err)
		_, err = stock.DecrementAll(db.Model(&Ware{}), "num", "left", map[uint16]int64{2: 1})
		ok(t, "another number", err)
	})
}

// TestDecrementAll_PartOfTheKey: the model has one part of the primary key, and the cart the other.
func TestDecrementAll_PartOfTheKey(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Bin{}))
		ok(t, "Create", db.Create(&[]Bin{{7, 0, 5}, {7, 1, 5}, {8, 1, 9}}).Error)
		_, err := stock.DecrementAll(db.Model(&Bin{Row: 7}), "number", "units", map[int]int64{0: 2, 1: 1})
		ok(t, "DecrementAll", err)
		var rest []int64
		ok(t, "Pluck", db.Model(&Bin{}).Order("units").Pluck("units", &rest).Error)
		if !slices.Equal(rest, []int64{3, 4, 9}) {
			t.Errorf("left are %v, want 3, 4 and 9", rest)
		}
	})
}
