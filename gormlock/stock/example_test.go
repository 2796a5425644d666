package stock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"sync/atomic"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/gormlock/stock"
)

// memoryDB is a database in memory, with the tables of Stock and Order and three units of 42.
func memoryDB() (*gorm.DB, func()) {
	db, err := gorm.Open(sqlite.Open(":memory:"), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		log.Fatal(err)
	}
	pool, err := db.DB()
	if err != nil {
		log.Fatal(err)
	}
	pool.SetMaxOpenConns(1) // each connection has a memory of its own
	err = errors.Join(db.AutoMigrate(&Stock{}, &Order{}), db.Create(&[]Stock{{SKU: 42, Remaining: 3}, {SKU: 43, Remaining: 5}}).Error)
	if err != nil {
		log.Fatal(err)
	}
	return db, func() { _ = pool.Close() }
}

// A flash sale: many buyers at once, few units, one order for each buyer.
func ExampleSale() {
	db, end := memoryDB()
	defer end()
	sale, err := stock.NewSale[Stock, Order](db, "remaining",
		stock.If("state = ?", "open"),
		stock.Unique("sku", "buyer"))
	if err != nil {
		log.Fatal(err)
	}
	var sold, late atomic.Int64
	var buyers sync.WaitGroup
	for buyer := range int64(50) {
		buyers.Go(func() {
			_, err := sale.Sell(context.Background(), 42, 1, &Order{SKU: 42, Buyer: buyer})
			switch {
			case err == nil:
				sold.Add(1)
			case errors.Is(err, stock.ErrInsufficient):
				late.Add(1)
			default:
				log.Fatal(err)
			}
		})
	}
	buyers.Wait()
	fmt.Println(sold.Load(), "sold,", late.Load(), "came too late")
	// Output: 3 sold, 47 came too late
}

func ExampleSale_Sell() {
	db, end := memoryDB()
	defer end()
	sale, err := stock.NewSale[Stock, Order](db, "remaining", stock.Unique("sku", "buyer"), stock.First())
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	order := Order{SKU: 42, Buyer: 7}
	left, err := sale.Sell(ctx, 42, 2, &order)
	fmt.Println("left:", left, err, "order:", order.ID)

	again := Order{SKU: 42, Buyer: 7}
	_, err = sale.Sell(ctx, 42, 1, &again)
	fmt.Println("a second click:", errors.Is(err, stock.ErrDuplicate), "order:", again.ID)

	_, err = sale.Sell(ctx, 42, 5, &Order{SKU: 42, Buyer: 8})
	if short, ok := errors.AsType[*stock.InsufficientError](err); ok {
		fmt.Println("wanted:", short.N, "left:", short.Left)
	}
	// Output:
	// left: 1 <nil> order: 1
	// a second click: true order: 1
	// wanted: 5 left: 1
}

func ExampleDecrement() {
	db, end := memoryDB()
	defer end()
	left, err := stock.Decrement(db.Model(&Stock{}).Where("sku = ?", 42), "remaining", 2)
	fmt.Println(left, err)
	_, err = stock.Decrement(db.Model(&Stock{}).Where("sku = ?", 42), "remaining", 2)
	fmt.Println(errors.Is(err, stock.ErrInsufficient))
	// Output:
	// 1 <nil>
	// true
}

// A cart takes from several rows, all or none.
func ExampleDecrementAll() {
	db, end := memoryDB()
	defer end()
	left, err := stock.DecrementAll(db.Model(&Stock{}), "sku", "remaining", map[int]int64{42: 1, 43: 2})
	fmt.Println(left, err)
	_, err = stock.DecrementAll(db.Model(&Stock{}), "sku", "remaining", map[int]int64{42: 1, 43: 9})
	fmt.Println(errors.Is(err, stock.ErrInsufficient))
	// Output:
	// map[42:2 43:3] <nil>
	// true
}
