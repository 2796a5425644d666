package gormlock_test

import (
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// TestGuard_WithResult: gorm.WithResult has no error if the statement has none.
func TestGuard_WithResult(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		ctx := gormlock.WithGuard(t.Context(), "k")
		result := gorm.WithResult()
		n, err := gorm.G[Stock](db, result).Where("sku = ?", 42).Update(ctx, "left", 9)
		ok(t, "Update", err)
		if n != 1 || result.RowsAffected != 1 || result.Error != nil {
			t.Errorf("%d rows, and the result has %d and %v", n, result.RowsAffected, result.Error)
		}
		wantLeft(t, db, 42, 9)
		wantIdle(t, db, l, "k")
	})
}
