package gormlock_test

import (
	"context"
	"maps"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// TestAfterCommit_DeadlockIgnored: MySQL rolls the whole transaction back, and its COMMIT succeeds.
func TestAfterCommit_DeadlockIgnored(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		if db.Name() != "mysql" {
			return
		}
		put(t, db, 42, 10)
		called := 0
		hook := func(context.Context) { called++ }
		ok(t, "Transaction", db.Transaction(func(tx *gorm.DB) error {
			ok(t, "take", take(tx, 42))
			ok(t, "AfterCommit", gormlock.AfterCommit(tx, hook))
			// The server does not roll back for a SIGNAL, but says what it says for a deadlock.
			if unprepared(tx).Exec("SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213").Error == nil {
				t.Error("no deadlock")
			}
			if gormlock.AfterCommit(tx, hook) == nil {
				t.Error("AfterCommit after a deadlock returned no error")
			}
			return nil
		}))
		if called != 0 {
			t.Errorf("called %d times", called)
		}
	})
}

// TestAfterCommit_DeadlockAmongRows: no callback sees the error of rows, and COMMIT succeeds.
func TestAfterCommit_DeadlockAmongRows(t *testing.T) {
	t.Parallel()
	lateDB(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		reads := maps.Clone(lateReads)
		reads["Rows that stay open"] = func(tx *gorm.DB, query string) { _, _ = tx.Raw(query).Rows() }
		for name, read := range reads {
			called := 0
			err := db.Transaction(func(tx *gorm.DB) error {
				ok(t, "take", take(tx, 42))
				ok(t, "AfterCommit", gormlock.AfterCommit(tx, func(context.Context) { called++ }))
				read(tx, lateQuery(1213))
				return nil
			})
			if ok(t, name, err); called != 0 {
				t.Errorf("%s: called %d times", name, called)
			}
			err = db.Transaction(func(tx *gorm.DB) error {
				ok(t, "AfterCommit", gormlock.AfterCommit(tx, func(context.Context) { called++ }))
				read(tx, "SELECT n FROM (SELECT 1 AS n UNION ALL SELECT 2) numbers")
				return nil
			})
			if ok(t, name, err); called != 1 {
				t.Errorf("%s of fine rows: called %d times", name, called)
			}
		}
	})
}

// TestAfterCommit_LockWaitTimeout: it ends the statement or the transaction, as the server is set.
func TestAfterCommit_LockWaitTimeout(t *testing.T) {
	t.Parallel()
	lateDB(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		proxied, p := behindProxy(t, db)
		ok(t, "Use", proxied.Use(gormlock.New(locker(t, backendtest.Memory()))))
		for name, wait := range lockWaits {
			for _, rollsBack := range []bool{false, true} {
				p.rollBackOnTimeout(rollsBack)
				called := 0
				ok(t, name, proxied.Transaction(func(tx *gorm.DB) error {
					ok(t, "take", take(tx, 42))
					ok(t, "AfterCommit", gormlock.AfterCommit(tx, func(context.Context) { called++ }))
					wait(tx)
					return nil
				}))
				if (called == 0) != rollsBack {
					t.Errorf("%s: rolls back %v: called %d times", name, rollsBack, called)
				}
			}
		}
	})
}
