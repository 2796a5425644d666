package gormlock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// The tables that Fenced and Once need are made when a service starts, as often as it starts.
func ExampleMigrate() {
	db, err := gorm.Open(sqlite.Open("file::memory:"), &gorm.Config{})
	if err != nil {
		log.Fatal(err)
	}
	conns, err := db.DB()
	if err != nil {
		log.Fatal(err)
	}
	defer conns.Close()
	conns.SetMaxOpenConns(1) // as each connection to :memory: is a database of its own
	for range 2 {
		if err := gormlock.Migrate(db); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(db.Migrator().HasTable("onelane_once"))
	// Output: true
}

// A job that runs once a night removes what nobody asks for any more.
func ExamplePurge() {
	db, end := memoryDB()
	defer end()
	locker, err := core.New(backendtest.Memory()) // redisbackend.New(redisClient) in a service
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	if err := db.Use(gormlock.New(locker)); err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	run := func() (int, error) {
		return gormlock.Once(ctx, db, "mail:7", func(*gorm.DB) (int, error) {
			fmt.Println("mail 7 is written")
			return 7, nil
		})
	}
	if _, err := run(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(gormlock.Purge(ctx, db, 24*time.Hour)) // a retry does not come that late
	time.Sleep(2 * time.Millisecond)
	fmt.Println(gormlock.Purge(ctx, db, time.Millisecond))
	if _, err := run(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// mail 7 is written
	// 0 <nil>
	// 1 <nil>
	// mail 7 is written
}

// The row is locked from the read on. A caller that does not want to wait for it gets an error at
// once. SQLite has no row locks, so no caller has to wait there.
func ExampleForUpdate_noWait() {
	db, end := open(&Stock{})
	defer end()
	if err := db.Create(&Stock{SKU: 42, Left: 3}).Error; err != nil {
		log.Fatal(err)
	}
	err := db.Transaction(func(tx *gorm.DB) error {
		var stock Stock
		if err := tx.Scopes(gormlock.ForUpdate(clause.LockingOptionsNoWait)).Take(&stock, "sku = ?", 42).Error; err != nil {
			return err // somebody has the row
		}
		return tx.Model(&stock).Update("left", stock.Left-1).Error
	})
	fmt.Println(err)
	// Output: <nil>
}
