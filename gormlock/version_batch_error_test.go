package gormlock_test

import (
	"fmt"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
)

// TestVersion_StaleBatchErrsOnce: a batch whose first row is stale stops there, and says so once. The
// text must not grow with the rows behind it.
func TestVersion_StaleBatchErrsOnce(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		var mine []Account
		for i := range 12 { // no more: each one doubles the text
			mine = append(mine, Account{Name: fmt.Sprint(i), Balance: 10})
		}
		ok(t, "Create", db.Create(&mine).Error)
		ok(t, "others", db.Model(&Account{}).Where("id > 0").Update("name", "theirs").Error)
		stale := func(tx *gorm.DB) error {
			err := tx.Save(&mine).Error
			want(t, "Save", err, gormlock.ErrStale)
			if err == nil {
				return nil
			}
			if n := strings.Count(err.Error(), gormlock.ErrStale.Error()); n != 1 {
				t.Errorf("Save of %d rows: the error has %d bytes and says %d times that a row is stale",
					len(mine), len(err.Error()), n)
			}
			for i := range mine {
				wantVersion(t, "Save", mine[i].Version, 1)
			}
			return nil
		}
		ok(t, "alone", stale(db))
		ok(t, "in a block", db.Transaction(stale))
		for i := range mine {
			wantRow(t, "after a stale Save", db, mine[i].ID, 10, 2)
		}
	})
}
