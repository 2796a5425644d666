package gormlock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// age makes all rows of the kit's tables older.
func age(t testing.TB, db *gorm.DB, by time.Duration) {
	t.Helper()
	for _, s := range []string{
		"UPDATE onelane_once SET created_at = created_at - ?", "UPDATE onelane_fences SET registered_at = registered_at - ?",
	} {
		ok(t, s, db.Exec(s, by.Microseconds()).Error)
	}
}

func TestPurge(t *testing.T) {
	t.Parallel()
	onceDB(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		count := func(table string) (n int64) {
			ok(t, "Count", db.Table(table).Count(&n).Error)
			return n
		}
		purge := func(olderThan time.Duration, want int64) {
			t.Helper()
			n, err := gormlock.Purge(t.Context(), db, olderThan)
			if ok(t, "Purge", err); n != want {
				t.Fatalf("Purge(%v) deleted %d rows, want %d; left are %d, %d", olderThan, n, want,
					count("onelane_once"), count("onelane_fences"))
			}
		}
		many := 0
		ok(t, "Transaction", db.Transaction(func(tx *gorm.DB) error { // more than one batch
			for many = range 1100 {
				if err := tx.Exec("INSERT INTO onelane_once (name, attempt, created_at) SELECT CAST(? AS "+binary(tx)+"), CAST('a' AS "+binary(tx)+"), 1", fmt.Sprint("n", many)).Error; err != nil {
					return err
				}
			}
			return nil
		}))
		fenced := func() error {
			return gormlock.Transaction(db, "k", func(tx *gorm.DB) error { return take(tx, 42) }, gormlock.Fenced())
		}
		first, err := gormlock.Once(t.Context(), db, "pay:1", charge)
		ok(t, "Once", err)
		ok(t, "fenced", fenced())
		purge(time.Minute, int64(many)+1) // those with created_at 1
		purge(time.Minute, 0)
		again, err := gormlock.Once(t.Context(), db, "pay:1", charge)
		if ok(t, "Once", err); again != first {
			t.Errorf("got %+v, want %+v", again, first)
		}
		age(t, db, 2*time.Hour)
		purge(time.Minute, 1) // pay:1
		again, err = gormlock.Once(t.Context(), db, "pay:1", charge)
		if ok(t, "Once", err); again == first {
			t.Error("what was purged did not run anew")
		}
		age(t, db, 23*time.Hour)
		purge(30*time.Hour, 0)
		purge(time.Hour, 2) // pay:1 and the fence
		ok(t, "fenced", fenced())
	})
}

// binary is the type that a text is cast to for a key.
func binary(db *gorm.DB) string {
	return map[string]string{"mysql": "BINARY", "postgres": "BYTEA", "sqlite": "BLOB"}[db.Name()]
}

func TestPurge_Refusals(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		purge := func(db *gorm.DB, olderThan time.Duration) error {
			_, err := gormlock.Purge(t.Context(), db, olderThan)
			return err
		}
		if purge(db, time.Hour) == nil {
			t.Error("without its tables it succeeded")
		}
		ok(t, "Migrate", gormlock.Migrate(db))
		ok(t, "Purge", purge(db, time.Hour))
		ok(t, "Use", db.Use(gormlock.New(locker(t, backendtest.Memory()))))
		_, err := gormlock.Once(t.Context(), db, "k", func(*gorm.DB) (int, error) { return 1, nil })
		ok(t, "Once", err)
		if n, err := gormlock.Purge(t.Context(), db, math.MaxInt64); n != 0 || err != nil {
			t.Errorf("older than anything can be: %d, %v", n, err)
		}
		if purge(db, 0) == nil {
			t.Error("Purge of everything succeeded")
		}
		want(t, "in a transaction", db.Transaction(func(tx *gorm.DB) error { return purge(tx, time.Hour) }), gorm.ErrInvalidTransaction)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := gormlock.Purge(ctx, db, time.Hour); !errors.Is(err, context.Canceled) {
			t.Errorf("after the context's end: %v", err)
		}
	})
}

// TestPurge_WaitsForNoTransaction: Purge looks for old rows without locking them, whatever the
// level of the sessions is. An open transaction under Fenced has its row locked until it ends.
func TestPurge_WaitsForNoTransaction(t *testing.T) {
	t.Parallel()
	eachLevel(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() == "sqlite" { // has one level
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		ok(t, "Transaction", gormlock.Transaction(holder(t, db, 5), t.Name(), func(tx *gorm.DB) error {
			if err := tx.Exec("SELECT 1").Error; err != nil { // the transaction begins, and registers
				return err
			}
			_, err := gormlock.Purge(ctx, db, time.Hour)
			return err
		}, gormlock.Fenced()))
	})
}
