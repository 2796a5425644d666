package main

import (
	"errors"
	"path/filepath"
	"testing"

	"gorm.io/gorm"
)

// The books are read at one moment. Otherwise an order that is placed meanwhile, as after a sale
// was stopped, makes right books look wrong.
func TestCheck_OneMoment(t *testing.T) {
	spec := "sqlite:" + filepath.Join(t.TempDir(), "sale.db")
	open := func() *gorm.DB {
		db, err := openDB(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeDB(db) })
		return db
	}
	shop, page := open(), open()
	if err := prepare(shop, 10); err != nil {
		t.Fatal(err)
	}
	sold := false
	err := page.Callback().Query().After("gorm:query").Register("order", func(*gorm.DB) {
		if sold {
			return
		}
		sold = true // after the page has counted the orders
		err := shop.Transaction(func(tx *gorm.DB) error {
			return errors.Join(tx.Model(&Stock{}).Where("sku = ?", sku).Update("left", 9).Error,
				tx.Create(&Order{SKU: sku, Buyer: "ann"}).Error)
		})
		if err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	r := result{Stock: 10}
	if err := r.check(page); err != nil || !sold {
		t.Fatal(err, sold)
	}
	if r.Sold+int64(r.Left) != 10 {
		t.Errorf("%d sold and %d left of 10: the books are of two moments", r.Sold, r.Left)
	}
}
