package gormlock_test

import (
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
)

// TestVersion_UpsertWithResult: gorm.WithResult counts the rows that an upsert updated.
func TestVersion_UpsertWithResult(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		a := Account{Balance: 7}
		ok(t, "Create", db.Create(&a).Error)
		a.Balance = 8
		result := gorm.WithResult()
		ok(t, "Create", gorm.G[Account](db, clause.OnConflict{UpdateAll: true}, result).Create(t.Context(), &a))
		wantRow(t, "the upsert", db, a.ID, 8, 2)
		if result.RowsAffected != 1 {
			t.Errorf("WithResult: %d rows, want 1", result.RowsAffected)
		}
	})
}
