// gormlock/version_large_test.go
package gormlock_test

import (
	"testing"

	"gorm.io/gorm"
)

// TestVersion_LargeBatch: as many rows as GORM writes without a version.
//
// Without the mend, on SQLite: "Update: SQL logic error: Expression tree is too large (maximum depth
// 1000) (1)".
func TestVersion_LargeBatch(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		mine := make([]Account, 1200)
		ok(t, "Create", db.Create(&mine).Error)
		ok(t, "Update", db.Model(&mine).Update("balance", gorm.Expr("balance + 1")).Error)
		for _, i := range []int{0, 99, 100, 1199} {
			wantVersion(t, "Update", mine[i].Version, 2)
			wantRow(t, "Update", db, mine[i].ID, 1, 2)
		}
		ok(t, "Delete", db.Delete(&mine).Error)
	})
}
