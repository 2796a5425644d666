package gormlock_test

import (
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
)

// TestTemplate_StatementUsedAgain: a create locks the key of the row that it writes. GORM keeps the
// Model of the first create in a statement that is used again, as each one in Connection is.
func TestTemplate_StatementUsedAgain(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Ticket{}, &TicketPart{}))
		j := &journal{}
		ok(t, "Use", db.Use(gormlock.New(locker(t, j.backend()))))
		locked := func(key string) []string {
			return []string{"lock onelane:{" + key + "}", "unlock onelane:{" + key + "}"}
		}
		guard := gormlock.Guard("t:{ID}")
		same := db.Scopes(guard)
		ok(t, "Create", same.Create(&Ticket{ID: 21}).Error)
		ok(t, "Create", same.Create(&Ticket{ID: 22}).Error)
		j.want(t, "the same statement", append(locked("t:21"), locked("t:22")...)...)

		ok(t, "Connection", db.Connection(func(tx *gorm.DB) error {
			ok(t, "Create", tx.Scopes(guard).Create(&Ticket{ID: 31}).Error)
			return tx.Scopes(guard).Create(&Ticket{ID: 32}).Error
		}))
		j.want(t, "Connection", append(locked("t:31"), locked("t:32")...)...)
		var written int64
		ok(t, "Count", db.Model(&Ticket{}).Where("id IN ?", []int{21, 22, 31, 32}).Count(&written).Error)
		if written != 4 {
			t.Errorf("%d tickets, want 4", written)
		}
	})
}
