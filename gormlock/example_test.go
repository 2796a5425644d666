package gormlock_test

import (
	"errors"
	"fmt"
	"log"
	"sync"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/gormlock/stock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// open opens a database in memory with the plugin; an application has redisbackend.New(redisClient) for backendtest.Memory().
func open(models ...any) (db *gorm.DB, end func()) {
	locker, err := core.New(backendtest.Memory())
	if err != nil {
		log.Fatal(err)
	}
	db, err = gorm.Open(sqlite.Open(":memory:"), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		log.Fatal(err)
	}
	conns, err := db.DB()
	if err != nil {
		log.Fatal(err)
	}
	conns.SetMaxOpenConns(1) // as each connection to :memory: is a database of its own
	if err := errors.Join(db.Use(gormlock.New(locker)), db.AutoMigrate(models...)); err != nil {
		log.Fatal(err)
	}
	return db, func() { _, _ = conns.Close(), locker.Close() }
}

func Example() {
	db, end := open(&Stock{}, &Item{})
	defer end()
	if err := db.Create(&Stock{SKU: 42, Left: 2}).Error; err != nil {
		log.Fatal(err)
	}
	for range 3 {
		err := db.Scopes(gormlock.Guard("stock:42")).Transaction(func(tx *gorm.DB) error {
			var row Stock
			if err := tx.First(&row, "sku = ?", 42).Error; err != nil {
				return err
			}
			if row.Left == 0 {
				return errors.New("sold out")
			}
			return tx.Model(&row).Update("left", row.Left-1).Error
		})
		fmt.Println(err)
	}
	_, err := stock.Decrement(db.Model(&Stock{}).Where("sku = ?", 42), "left", 1)
	fmt.Println(errors.Is(err, stock.ErrInsufficient))
	// Output:
	// <nil>
	// <nil>
	// sold out
	// true
}

// A shared pool of phone numbers: several callers, each gets a different idle one. Read, pick and mark are three steps,
// which the guard makes one.
func ExampleGuard() {
	db, end := open(&Phone{})
	defer end()
	if err := db.Create(&[]Phone{{Number: "555-0100"}, {Number: "555-0101"}, {Number: "555-0102"}}).Error; err != nil {
		log.Fatal(err)
	}
	pick := func(caller string) (phone Phone, err error) {
		err = db.Scopes(gormlock.Guard("phones")).Transaction(func(tx *gorm.DB) error {
			if err := tx.Where(map[string]any{"user": ""}).First(&phone).Error; err != nil {
				return err
			}
			return tx.Model(&phone).Update("user", caller).Error
		})
		return phone, err
	}
	var callers sync.WaitGroup
	for i := range 5 {
		callers.Go(func() {
			if _, err := pick(fmt.Sprint("caller ", i)); err != nil && !errors.Is(err, gorm.ErrRecordNotFound) {
				log.Fatal(err)
			}
		})
	}
	callers.Wait()
	var users []string
	if err := db.Model(&Phone{}).Distinct().Pluck("user", &users).Error; err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(users), "callers have a number each")
	// Output:
	// 3 callers have a number each
}
