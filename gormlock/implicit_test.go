package gormlock_test

import (
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// TestTransaction_ImplicitCommit: MySQL would commit before these statements.
func TestTransaction_ImplicitCommit(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		if db.Name() != "mysql" {
			return
		}
		put(t, db, 42, 100)
		for _, statement := range []string{
			"/* hint */ TRUNCATE TABLE items", "-- note\nTRUNCATE TABLE items", "# note\nTRUNCATE items",
			"ANALYZE TABLE items", "OPTIMIZE TABLE items", "CHECK TABLE items", "REPAIR TABLE items", "FLUSH TABLES items",
			"FLUSH STATUS", "SET autocommit = 1", "BEGIN", "BEGIN WORK", "COMMIT",
		} {
			err := gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
				ok(t, "take", take(tx, 42))
				_ = tx.Exec(statement)
				return errUndone
			})
			if n := left(t, db, 42); n != 100 {
				t.Errorf("%q: %d left: %v", statement, n, err)
				ok(t, "again", db.Model(&Stock{}).Where("sku = 42").Update("left", 100).Error)
			}
		}
	})
}
