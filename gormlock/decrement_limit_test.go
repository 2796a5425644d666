package gormlock_test

import (
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock/stock"
)

// TestDecrement_Limit: several rows are an error on MySQL, too, which knows UPDATE … LIMIT. Take
// leaves its limit in the statement.
func TestDecrement_Limit(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		put(t, db, 1, 10)
		put(t, db, 2, 10)
		row := db.Model(&Stock{}).Where("name = ?", "thing")
		ok(t, "Take", row.Take(&Stock{}).Error)
		for name, several := range map[string]*gorm.DB{
			"after a Take": row,
			"with a limit": db.Model(&Stock{}).Where("name = ?", "thing").Order("sku").Limit(1),
		} {
			if left, err := stock.Decrement(several, "left", 1); err == nil {
				t.Errorf("%s: took from one of two rows, and left %d", name, left)
			}
		}
		wantLeft(t, db, 1, 10)
		wantLeft(t, db, 2, 10)
		one := db.Model(&Stock{}).Where("sku = ?", 1)
		ok(t, "Take", one.Take(&Stock{}).Error)
		if left, err := stock.Decrement(one, "left", 1); left != 9 || err != nil {
			t.Errorf("one row: %d, %v", left, err)
		}
	})
}
