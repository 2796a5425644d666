package gormlock_test

import (
	"reflect"
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
		failed := reflect.ValueOf(result).Elem().FieldByName("Error") // from GORM 1.31.2 on
		if n != 1 || result.RowsAffected != 1 || failed.IsValid() && !failed.IsNil() {
			t.Errorf("%d rows, and the result is %+v", n, result)
		}
		wantLeft(t, db, 42, 9)
		wantIdle(t, db, l, "k")
	})
}
