package gormlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// memoryDB is a database in memory with the kit's tables.
func memoryDB(models ...any) (db *gorm.DB, stop func()) {
	db, err := gorm.Open(sqlite.Open("file::memory:"), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		log.Fatal(err)
	}
	conns, err := db.DB()
	if err != nil {
		log.Fatal(err)
	}
	conns.SetMaxOpenConns(1)
	if err := errors.Join(gormlock.Migrate(db), db.AutoMigrate(models...)); err != nil {
		log.Fatal(err)
	}
	return db, func() { _ = conns.Close() }
}

// A payment that is retried is made once, and every try gets the same receipt.
func ExampleOnce() {
	type Payment struct {
		ID     uint
		Amount int
	}
	db, stop := memoryDB(&Payment{})
	defer stop()
	locker, err := core.New(backendtest.Memory()) // redisbackend.New(redisClient) in a service
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	if err := db.Use(gormlock.New(locker)); err != nil {
		log.Fatal(err)
	}
	ctx := context.Background() // in a handler, the request's
	for range 3 {
		receipt, err := gormlock.Once(ctx, db, "pay:order-7", func(tx *gorm.DB) (Payment, error) {
			p := Payment{Amount: 10}
			return p, tx.Create(&p).Error
		}, gormlock.Fingerprint([]byte("10 EUR"))) // another amount under this key is ErrMismatch
		fmt.Println(receipt.Amount, err)
	}
	var n int64
	db.Model(&Payment{}).Count(&n)
	fmt.Println(n, "payment")
	_, _ = gormlock.Purge(context.Background(), db, 24*time.Hour) // now and then
	// Output:
	// 10 <nil>
	// 10 <nil>
	// 10 <nil>
	// 1 payment
}

// A pool of phone numbers: SKIP LOCKED gives everybody another one, and nobody waits.
func ExampleForUpdate() {
	type Phone struct {
		Number string `gorm:"primaryKey"`
		Taken  bool
	}
	db, stop := memoryDB(&Phone{})
	defer stop()
	if err := db.Use(gormlock.New(nil)); err != nil {
		log.Fatal(err)
	}
	db.Create([]Phone{{Number: "555-0100"}, {Number: "555-0101"}})
	for range 2 {
		err := db.Transaction(func(tx *gorm.DB) error {
			var p Phone
			if err := tx.Scopes(gormlock.ForUpdate(clause.LockingOptionsSkipLocked)).Where("NOT taken").Order("number").First(&p).Error; err != nil {
				return err
			}
			fmt.Println(p.Number)
			return tx.Model(&p).Update("taken", true).Error
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// 555-0100
	// 555-0101
}
