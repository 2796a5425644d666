package gormlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// A flash sale: many buyers at once, few units, an order for each that is sold. The buyers of a process share database
// transactions, and when nothing is left they are turned away before they reach the database.
func ExampleSealWhenOut() {
	db, end := open(&Stock{}, &Item{})
	defer end()
	if err := db.Create(&Stock{ID: 1, SKU: 42, Left: 3}).Error; err != nil {
		log.Fatal(err)
	}
	buy := func(ctx context.Context, buyer string) error {
		return gormlock.Transaction(db.WithContext(ctx), "stock:42", func(tx *gorm.DB) error {
			stock := tx.Model(&Stock{}).Where("sku = ?", 42)
			if _, err := gormlock.Decrement(stock, "left", 1, gormlock.SealWhenOut(time.Hour)); err != nil {
				return err
			}
			return tx.Create(&Item{StockID: 1, Name: buyer}).Error // the order
		}, gormlock.Grouped(32))
	}

	var sold, late atomic.Int64
	var buyers sync.WaitGroup
	for i := range 50 {
		buyers.Go(func() {
			switch err := buy(context.Background(), fmt.Sprint("buyer ", i)); {
			case err == nil:
				sold.Add(1)
			case errors.Is(err, gormlock.ErrInsufficient):
				late.Add(1)
			default:
				log.Fatal(err)
			}
		})
	}
	buyers.Wait()

	var left, orders int64
	if err := errors.Join(db.Model(&Stock{}).Select("left").Row().Scan(&left), db.Model(&Item{}).Count(&orders).Error); err != nil {
		log.Fatal(err)
	}
	err := gormlock.Transaction(db, "stock:42", func(*gorm.DB) error { return errors.New("not called") })
	fmt.Println(sold.Load(), "sold,", orders, "orders,", left, "left,", late.Load(), "came too late")
	fmt.Println("turned away without the database:", errors.Is(err, core.ErrSealed) && errors.Is(err, gormlock.ErrInsufficient))
	// Output:
	// 3 sold, 3 orders, 0 left, 47 came too late
	// turned away without the database: true
}
