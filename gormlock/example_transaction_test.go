package gormlock_test

import (
	"context"
	"database/sql"
	"fmt"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
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
