package gormlock_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// endings are statements with which a database ends the whole transaction. Later statements would
// commit by themselves.
var endings = map[string]map[string]func(tx *gorm.DB) error{
	"sqlite": {
		interrupted: func(tx *gorm.DB) error {
			return execCanceled(tx, "UPDATE stocks SET name = (", "SELECT max(x) FROM n)")
		},
		"OR ROLLBACK": func(tx *gorm.DB) error {
			return tx.Exec("INSERT OR ROLLBACK INTO stocks (id) SELECT id FROM stocks").Error
		},
		"a trigger": func(tx *gorm.DB) error { return tx.Exec("DELETE FROM guarded").Error },
		"by hand": func(tx *gorm.DB) error {
			return execByHand(tx, "INSERT OR ROLLBACK INTO stocks (id) SELECT id FROM stocks")
		},
	},
	"mysql": { // SIGNAL ends nothing by itself
		"a row that changed": func(tx *gorm.DB) error {
			return unprepared(tx).Exec("SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1020").Error
		},
		"a deadlock of a Row": func(tx *gorm.DB) error {
			var n int
			return unprepared(tx).Raw("SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213").Row().Scan(&n)
		},
		"by hand": func(tx *gorm.DB) error {
			return execByHand(tx, "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213")
		},
	},
	"postgres": {
		"any error": func(tx *gorm.DB) error { return tx.Exec("SELECT 1/0").Error },
		"a ROLLBACK in a text": func(tx *gorm.DB) error {
			_ = tx.Exec("SELECT 1; ROLLBACK", pgx.QueryExecModeSimpleProtocol).Error
			return tx.Exec("SAVEPOINT a").Error
		},
	},
}

// execByHand runs a statement on the connection pool of tx, without GORM's callbacks.
func execByHand(tx *gorm.DB, query string) error {
	_, err := unprepared(tx).Statement.ConnPool.ExecContext(tx.Statement.Context, query)
	return err
}

const interrupted = "a write that its context interrupts"

// TestTransaction_EndedByTheDatabase: a careless function goes on after that, and
// nothing that it writes stays.
func TestTransaction_EndedByTheDatabase(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	onceDB(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		if db.Name() == "sqlite" {
			ok(t, "Exec", db.Exec("CREATE TABLE guarded AS SELECT 1 AS id").Error)
			ok(t, "Exec", db.Exec("CREATE TRIGGER keep BEFORE DELETE ON guarded BEGIN SELECT RAISE(ROLLBACK, 'kept'); END").Error)
		}
		for name, end := range endings[db.Name()] {
			careless := func(tx *gorm.DB) (receipt, error) {
				ok(t, "before it", take(tx, 42))
				if end(tx) == nil {
					t.Errorf("%s: no error", name)
				}
				return charge(tx)
			}
			_, err := gormlock.Once(t.Context(), db, "k", func(tx *gorm.DB) (receipt, error) {
				r, _ := careless(tx)
				return r, nil
			})
			errs := map[string]error{"Once": err}
			for _, returned := range []error{nil, boom} {
				fn := func(tx *gorm.DB) error { _, _ = careless(tx); return returned }
				errs[fmt.Sprint("block ", returned)] = db.Scopes(gormlock.Guard("k")).Transaction(fn)
				errs[fmt.Sprint("Transaction ", returned)] = gormlock.Transaction(db, "k", fn)
			}
			for form, err := range errs {
				if err == nil || errors.Is(err, gormlock.ErrCommitUnknown) {
					t.Errorf("%s: %s: %v", name, form, err)
				}
			}
			if n := orders(t, db); n != 0 {
				t.Fatalf("%s: %d orders were written outside of the transaction", name, n)
			}
			wantLeft(t, db, 42, 10)
			wantIdle(t, db, l, "k")
		}
	})
}

// TestTransaction_GoesOnAfterAnError: an error of one statement leaves the
// transaction open.
func TestTransaction_GoesOnAfterAnError(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		ok(t, "Transaction", gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
			ok(t, "take", take(tx, 42))
			want(t, "Take", tx.Take(&Stock{}, "sku = 1").Error, gorm.ErrRecordNotFound)
			if tx.Transaction(func(tx *gorm.DB) error { return tx.Create(&Stock{SKU: 42}).Error }) == nil {
				t.Error("two stocks with one SKU")
			}
			return take(tx, 42)
		}))
		wantLeft(t, db, 42, 8)
	})
}
