package gormlock_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
)

func Example() {
	locker, err := core.New(testutil.Memory()) // core.New(core.Clients(redisClient)) in an application
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	db, err := gorm.Open(sqlite.Open(":memory:"), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		log.Fatal(err)
	}
	conns, err := db.DB()
	if err != nil {
		log.Fatal(err)
	}
	defer conns.Close()
	conns.SetMaxOpenConns(1) // as each connection to :memory: is a database of its own

	if err := db.Use(gormlock.New(locker)); err != nil {
		log.Fatal(err)
	}
	if err := errors.Join(db.AutoMigrate(&Stock{}, &Item{}), db.Create(&Stock{SKU: 42, Left: 2}).Error); err != nil {
		log.Fatal(err)
	}
	for range 3 {
		err := db.Scopes(gormlock.Guard("stock:42")).Transaction(func(tx *gorm.DB) error {
			var stock Stock
			if err := tx.First(&stock, "sku = ?", 42).Error; err != nil {
				return err
			}
			if stock.Left == 0 {
				return errors.New("sold out")
			}
			return tx.Model(&stock).Update("left", stock.Left-1).Error
		})
		fmt.Println(err)
	}
	err = gormlock.Decrement(db.Model(&Stock{}).Where("sku = ?", 42), "left", 1)
	fmt.Println(errors.Is(err, gormlock.ErrInsufficient))
	// Output:
	// <nil>
	// <nil>
	// sold out
	// true
}
