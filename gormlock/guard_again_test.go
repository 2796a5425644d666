package gormlock_test

import (
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// TestGuard_StatementUsedAgain guards a statement that ran without a guard before.
func TestGuard_StatementUsedAgain(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		row := db.Model(&Stock{}).Where("sku = ?", 42)
		ok(t, "without a guard", row.Update("name", "new").Error)
		ok(t, "with a guard", row.Scopes(gormlock.Guard("k")).Update("left", 9).Error)
		wantLeft(t, db, 42, 9)

		row = db.Model(&Stock{}).Where("sku = ?", 42)
		ok(t, "without a guard", row.Update("name", "newer").Error)
		err := row.Scopes(gormlock.Guard("")).Update("left", 8).Error
		want(t, "a guard that cannot guard", err, core.ErrInvalidKey)
		wantLeft(t, db, 42, 9)
		wantIdle(t, db, l, "k")
	})
}
