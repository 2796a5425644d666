package optimistic_test

import (
	"errors"
	"runtime"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
)

// anAccount is not on the heap.
var anAccount Account

// TestVersion_ManyRows: a transaction may write more models than fit into memory. Only those that
// somebody still has are kept, and get their versions back after a rollback.
func TestVersion_ManyRows(t *testing.T) {
	const models, size = 300, 64 << 10
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Use", db.Use(gormlock.New(nil)))
		anAccount = Account{}
		failed := errors.New("failed")
		var first Account
		write := func(tx *gorm.DB, a *Account) {
			ok(t, "Take", tx.Take(a, 1).Error)
			ok(t, "Update", tx.Model(a).Update("balance", a.Balance+1).Error)
		}
		ok(t, "Create", db.Create(&Account{Model: gorm.Model{ID: 1}}).Error)
		err := db.Transaction(func(tx *gorm.DB) error {
			write(tx, &first)
			write(tx, &anAccount)
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			for range models {
				large := new(struct {
					Account
					more [size]byte
				})
				write(tx, &large.Account)
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			if kept := int64(after.HeapAlloc) - int64(before.HeapAlloc); kept > models*size/4 {
				t.Errorf("%d bytes are kept for %d models of %d bytes", kept, models, size)
			}
			return failed
		})
		if !errors.Is(err, failed) || first.Version != 1 || anAccount.Version != 2 {
			t.Errorf("%v, versions %d and %d; want 1 and 2, as they were read", err, first.Version, anAccount.Version)
		}
		ok(t, "Delete", db.Unscoped().Where("1 = 1").Delete(&Account{}).Error)
	})
}
