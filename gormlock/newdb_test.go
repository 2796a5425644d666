package gormlock_test

import (
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// Delivery writes its stock in a hook.
type Delivery struct {
	ID      uint
	StockID uint
	Name    string `gorm:"size:64"`
}

func (d *Delivery) AfterCreate(tx *gorm.DB) error {
	return gormlock.Transaction(tx, "k", func(tx *gorm.DB) error {
		return tx.Model(&Stock{}).Where("id = ?", d.StockID).Update("name", "delivered").Error
	})
}

// TestTransaction_OnNewDB: GORM gives hooks and FindInBatches a session with NewDB. The clauses
// before it are not in the block.
func TestTransaction_OnNewDB(t *testing.T) {
	t.Parallel()
	ways := map[string]func(tx *gorm.DB, fn func(tx *gorm.DB) error) error{
		"GORM":        func(tx *gorm.DB, fn func(tx *gorm.DB) error) error { return tx.Transaction(fn) },
		"Transaction": func(tx *gorm.DB, fn func(tx *gorm.DB) error) error { return gormlock.Transaction(tx, "k", fn) },
		"Once": func(tx *gorm.DB, fn func(tx *gorm.DB) error) error {
			_, err := gormlock.Once(tx.Statement.Context, tx, "once", func(tx *gorm.DB) (int, error) { return 1, fn(tx) })
			return err
		},
	}
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Delivery{}))
		ok(t, "Migrate", gormlock.Migrate(db))
		for name, way := range ways {
			ok(t, "Delete", db.Where("id > 0").Delete(&Item{}).Error)
			ok(t, "Delete", db.Where("id > 0").Delete(&Stock{}).Error)
			shelf := Stock{SKU: 1, Items: []Item{{Name: "order"}}}
			ok(t, "Create", db.Create(&shelf).Error)
			err := db.Where("name = ?", "order").FindInBatches(&[]Item{}, 10, func(tx *gorm.DB, _ int) error {
				return way(tx, func(tx *gorm.DB) error { return tx.Create(&Stock{SKU: int(shelf.ID) + 1000, Name: name}).Error })
			}).Error
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			var stocks, items int64
			ok(t, "Count", db.Model(&Stock{}).Count(&stocks).Error)
			ok(t, "Count", db.Model(&Item{}).Count(&items).Error)
			if stocks != 2 || items != 1 {
				t.Errorf("%s: %d stocks and %d items, want 2 and 1", name, stocks, items)
			}
			wantIdle(t, db, l, "k", "once")
		}

		stock := Stock{SKU: 99, Name: "thing"}
		ok(t, "Create", db.Create(&stock).Error)
		ok(t, "hook", gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
			return tx.Create(&Delivery{StockID: stock.ID, Name: "parcel"}).Error
		}))
		var deliveries int64
		ok(t, "Count", db.Model(&Delivery{}).Count(&deliveries).Error)
		ok(t, "Take", db.Take(&stock, stock.ID).Error)
		if deliveries != 1 || stock.Name != "delivered" {
			t.Errorf("hook: %d deliveries, and the stock is %q", deliveries, stock.Name)
		}
	})
}
