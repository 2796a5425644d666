package gormlock_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// A transfer needs the keys of both accounts. It runs again after a deadlock, and tells the receiver
// only when the COMMIT is known.
func ExampleAfterCommit() {
	db, end := open(&Stock{})
	defer end()
	transfer := func(tx *gorm.DB) error {
		if err := tx.Create(&Stock{ID: 1, SKU: 1, Left: 5}).Error; err != nil {
			return err
		}
		return gormlock.AfterCommit(tx, func(context.Context) { fmt.Println("the receiver gets a message") })
	}
	err := gormlock.Transaction(db, "account:1", transfer,
		gormlock.WithKeys("account:2"),
		gormlock.WithRetry(3),
		gormlock.WithTxOptions(&sql.TxOptions{Isolation: sql.LevelSerializable}),
	)
	fmt.Println(err)
	// Output:
	// the receiver gets a message
	// <nil>
}

// The tokens come from a new source, whose clock is behind: without ResetFence the fence would refuse
// its holders.
func ExampleResetFence() {
	db, end := memoryDB()
	defer end()
	locker, err := core.New(backendtest.Memory()) // redisbackend.New(redisClient) in a service
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	if err := db.Use(gormlock.New(locker, gormlock.Fenced())); err != nil {
		log.Fatal(err)
	}
	err = db.Exec(`INSERT INTO onelane_fences (name, token, owner, registered_at)
		VALUES (CAST('stock:42' AS BLOB), ?, CAST('old' AS BLOB), 0)`, int64(1)<<52).Error
	if err != nil {
		log.Fatal(err)
	}
	work := func(tx *gorm.DB) error { return tx.Exec("SELECT 1").Error }
	fmt.Println(gormlock.Transaction(db, "stock:42", work) != nil)
	fmt.Println(gormlock.ResetFence(context.Background(), db, "stock:42"))
	fmt.Println(gormlock.Transaction(db, "stock:42", work))
	// Output:
	// true
	// <nil>
	// <nil>
}
