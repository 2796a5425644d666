package gormlock_test

import (
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// TestDDL_PrepareTransaction: PostgreSQL takes the transaction away from its connection, so it is
// refused as COMMIT is. Statements with similar words are sent.
func TestDDL_PrepareTransaction(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		if db.Name() != "postgres" {
			return
		}
		put(t, db, 42, 10)
		ok(t, "Transaction", gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
			ok(t, "take", take(tx, 42))
			for _, statement := range []string{
				"PREPARE TRANSACTION 'a'", "prepare /* a */ transaction E'a'", "PREPARE TRANSACTION $$a$$",
			} {
				ok(t, statement, says(tx.Exec(statement).Error, "the rest of the transaction would not be guarded", nil))
				ok(t, statement, says(tx.Raw(statement).Scan(&[]int{}).Error, "the rest of the transaction would not be guarded", nil))
			}
			ok(t, "another PREPARE", tx.Exec("PREPARE transaction AS SELECT 1").Error)
			return take(tx, 42)
		}))
		wantLeft(t, db, 42, 8)
		wantIdle(t, db, l, "k")
	})
}
