package gormlock_test

import (
	"errors"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// mysqlCommits are statements before which MySQL and MariaDB commit,
// or one of the two.
var mysqlCommits = []string{
	"/* hint */ TRUNCATE TABLE items", "-- note\nTRUNCATE TABLE items", "# note\nTRUNCATE items",
	"/*! TRUNCATE TABLE items */", "/* hint */ /*!50003 TRUNCATE TABLE items */",
	"ANALYZE TABLE items", "OPTIMIZE TABLE items", "CHECK TABLE items", "REPAIR TABLE items", "FLUSH TABLES items",
	"FLUSH STATUS", "SET autocommit = 1", "BEGIN", "BEGIN WORK", "LOAD INDEX INTO CACHE items",
	"STOP REPLICA", "CHANGE REPLICATION FILTER REPLICATE_DO_DB = ()", "IMPORT TABLE FROM 'nothing.sdi'",
	"CLONE LOCAL DATA DIRECTORY = '/nowhere/x'", "SET PASSWORD FOR 'nobody'@'nowhere' = 'x'",
	"SET DEFAULT ROLE NONE TO 'nobody'@'nowhere'", "SET DEFAULT ROLE NONE FOR 'nobody'@'nowhere'",
	"SET STATEMENT max_statement_time = 100 FOR CREATE TABLE made (a INT)",
	"SET STATEMENT max_statement_time = 100 FOR ANALYZE TABLE stocks",
}

// TestTransaction_ImplicitCommit: a statement that would end the transaction is not sent.
func TestTransaction_ImplicitCommit(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		put(t, db, 42, 100)
		statements := []string{"COMMIT", "/* note */ commit work", "END", "ROLLBACK", "ROLLBACK WORK",
			"\fCOMMIT", "\vCOMMIT", "; COMMIT", "/* ( */ COMMIT", "--\nCOMMIT"}
		if db.Name() == "mysql" {
			statements = append(statements, mysqlCommits...)
		}
		for _, statement := range statements {
			err := gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
				ok(t, "take", take(tx, 42))
				_ = unprepared(tx).Exec(statement)
				return errors.Join(errUndone, take(tx, 42))
			})
			if n := left(t, db, 42); n != 100 || !errors.Is(err, errUndone) {
				t.Errorf("%q: %d left: %v", statement, n, err)
				ok(t, "again", db.Model(&Stock{}).Where("sku = 42").Update("left", 100).Error)
			}
		}
	})
}
