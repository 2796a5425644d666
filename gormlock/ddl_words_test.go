package gormlock_test

import (
	"errors"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// "A guarded transaction cannot send COMMIT, ROLLBACK, END or ABORT by SQL."
func TestDDL_CommitInOtherSpaces(t *testing.T) {
	boom := errors.New("boom")
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		for name, statement := range map[string]string{
			"form feed":         "\fCOMMIT",
			"vertical tab":      "\vCOMMIT",
			"empty statement":   "; COMMIT",
			"parenthesis in it": "/* ( */ COMMIT",
			"line comment":      "--\nCOMMIT",
		} {
			t.Run(name, func(t *testing.T) {
				ok(t, "Update", db.Model(&Stock{}).Where("sku = ?", 42).Update("left", 10).Error)
				err := gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
					ok(t, "take", take(tx, 42))
					t.Logf("the statement: %v", unprepared(tx).Exec(statement).Error)
					return boom
				})
				want(t, "Transaction", err, boom)
				if n := left(t, db, 42); n != 10 {
					t.Errorf("the transaction is rolled back (%v), and %d of 10 are left", err, n)
				}
			})
		}
	})
}

// MariaDB commits before DDL in SET STATEMENT, too. It is refused, so all is rolled back if the function
// fails.
func TestDDL_InSetStatement(t *testing.T) {
	boom := errors.New("boom")
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		if !mariaDB(t, db) {
			return
		}
		put(t, db, 42, 10)
		for name, statement := range map[string]string{
			"plain":                  "CREATE TABLE made (a INT)",
			"SET STATEMENT FOR":      "SET STATEMENT max_statement_time = 100 FOR CREATE TABLE made (a INT)",
			"SET STATEMENT, ANALYZE": "SET STATEMENT max_statement_time = 100 FOR ANALYZE TABLE stocks",
		} {
			t.Run(name, func(t *testing.T) {
				ok(t, "Drop", db.Exec("DROP TABLE IF EXISTS made").Error)
				ok(t, "Update", db.Model(&Stock{}).Where("sku = ?", 42).Update("left", 10).Error)
				err := gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
					ok(t, "take", take(tx, 42))
					refused := unprepared(tx).Exec(statement).Error
					t.Logf("the statement: %v", refused)
					_ = take(tx, 42)
					return boom
				})
				want(t, "Transaction", err, boom)
				if n := left(t, db, 42); n != 10 {
					t.Errorf("the transaction is rolled back (%v), and %d of 10 are left", err, n)
				}
			})
		}
	})
}

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
