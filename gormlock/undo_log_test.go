package gormlock_test

import (
	"context"
	"errors"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// A database compares the names of savepoints without their case, and knows comments.
func TestAfterCommit_SavepointNames(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		put(t, db, 42, 1)
		var called []string
		after := func(tx *gorm.DB, name string) error {
			return gormlock.AfterCommit(tx, func(context.Context) { called = append(called, name) })
		}
		ok(t, "Transaction", db.Transaction(func(tx *gorm.DB) error {
			return errors.Join(
				tx.Model(&Stock{}).Where("sku = 42").Update("left", 2).Error, after(tx, "before"),
				unprepared(tx).Exec("SAVEPOINT here;").Error, after(tx, "undone"),
				unprepared(tx).Exec("/* back */ ROLLBACK TO SAVEPOINT HERE ;").Error, after(tx, "after"),
			)
		}))
		if len(called) != 2 || called[0] != "before" || called[1] != "after" {
			t.Errorf("called %q", called)
		}
	})
}
