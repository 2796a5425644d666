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
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// age makes all rows of the kit's tables older.
func age(t testing.TB, db *gorm.DB, by time.Duration) {
	t.Helper()
	for _, s := range []string{
		"UPDATE onelane_once SET created_at = created_at - ?", "UPDATE onelane_fences SET registered_at = registered_at - ?",
		"UPDATE onelane_locks SET expires_at = expires_at - ?", "UPDATE onelane_locks SET fence = fence - ?",
	} {
		ok(t, s, db.Exec(s, by.Microseconds()).Error)
	}
}

func TestPurge(t *testing.T) {
	t.Parallel()
	onceDB(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		l := locker(t, gormlock.Table(db, gormlock.WithTimeout(time.Minute)))
		count := func(table string) (n int64) {
			ok(t, "Count", db.Table(table).Count(&n).Error)
			return n
		}
		purge := func(olderThan time.Duration, want int64) {
			t.Helper()
			n, err := gormlock.Purge(t.Context(), db, olderThan)
			if ok(t, "Purge", err); n != want {
				t.Fatalf("Purge(%v) deleted %d rows, want %d; left are %d, %d, %d", olderThan, n, want,
					count("onelane_once"), count("onelane_fences"), count("onelane_locks"))
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
		free, err := l.Acquire(t.Context(), "free")
		ok(t, "Acquire", err)
		earlier, err := free.Token(t.Context())
		ok(t, "Token", err)
		ok(t, "Release", free.Release(t.Context()))
		kept, err := l.Acquire(t.Context(), "held", core.WithTTL(100*time.Hour), core.WithMaxHold(0))
		ok(t, "Acquire", err)
		sealed, err := l.Acquire(t.Context(), "sealed")
		ok(t, "Acquire", err)
		ok(t, "Seal", sealed.Seal(t.Context(), []byte("v"), 100*time.Hour))

		purge(time.Minute, int64(many)+1) // those with created_at 1
		purge(time.Minute, 0)
		again, err := gormlock.Once(t.Context(), db, "pay:1", charge)
		if ok(t, "Once", err); again != first {
			t.Errorf("got %+v, want %+v", again, first)
		}
		age(t, db, 2*time.Hour)
		purge(time.Minute, 2) // pay:1 and the free key
		again, err = gormlock.Once(t.Context(), db, "pay:1", charge)
		if ok(t, "Once", err); again == first {
			t.Error("what was purged did not run anew")
		}
		age(t, db, 23*time.Hour)
		purge(30*time.Hour, 0)
		purge(time.Hour, 2) // pay:1 and the fence
		if n := count("onelane_locks"); n != 2 {
			t.Errorf("%d locks, want the held and the sealed one", n)
		}
		if st, err := l.Inspect(t.Context(), "sealed"); err != nil || st.Status != core.Sealed {
			t.Errorf("the seal is %v, %v", st.Status, err)
		}
		ok(t, "Release", kept.Release(t.Context()))

		renewed, err := l.Acquire(t.Context(), "free")
		ok(t, "Acquire", err)
		later, err := renewed.Token(t.Context())
		if ok(t, "Token", err); later <= earlier {
			t.Errorf("token %d after %d", later, earlier)
		}
		ok(t, "Release", renewed.Release(t.Context()))
		ok(t, "fenced", fenced())
	})
}

// An orphan is old when its retention is over, not when its lease is.
func TestPurge_KeepsOrphans(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Migrate", gormlock.Migrate(db))
		l := locker(t, gormlock.Table(db, gormlock.WithTimeout(time.Minute)))
		k, err := l.Acquire(t.Context(), "k", core.WithOrphan(100*time.Hour), core.WithMaxHold(0), core.WithTTL(time.Minute))
		ok(t, "Acquire", err)
		purged := func(want int64) {
			t.Helper()
			n, err := gormlock.Purge(t.Context(), db, time.Minute)
			if ok(t, "Purge", err); n != want {
				t.Errorf("Purge deleted %d rows, want %d", n, want)
			}
		}
		age(t, db, 99*time.Hour)
		purged(0)
		st, err := l.Inspect(t.Context(), "k")
		if ok(t, "Inspect", err); st.Status != core.Orphaned || st.Owner != k.Owner() || time.Since(st.Since) < 98*time.Hour {
			t.Errorf("Inspect = %+v", st)
		}
		age(t, db, 3*time.Hour)
		purged(1)
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

// A key that was unsealed is free, whatever the seal was made for.
func TestPurge_UnsealedKey(t *testing.T) {
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Migrate", gormlock.Migrate(db))
		l := locker(t, gormlock.Table(db, gormlock.WithTimeout(time.Minute)))
		k, err := l.Acquire(t.Context(), "sealed for a year")
		ok(t, "Acquire", err)
		ok(t, "Seal", k.Seal(t.Context(), []byte("v"), 365*24*time.Hour))
		ok(t, "Unseal", l.Unseal(t.Context(), "sealed for a year"))
		k, err = l.Acquire(t.Context(), "released")
		ok(t, "Acquire", err)
		ok(t, "Release", k.Release(t.Context()))
		// Two days pass.
		const twoDays = int64(48 * time.Hour / time.Microsecond)
		ok(t, "Exec", db.Exec("UPDATE onelane_locks SET token = token - ?, fence = fence - ?, acquired_at = acquired_at - ?, expires_at = expires_at - ?",
			twoDays, twoDays, twoDays, twoDays).Error)
		n, err := gormlock.Purge(t.Context(), db, time.Hour)
		ok(t, "Purge", err)
		if n != 2 {
			t.Errorf("Purge deleted %d of two rows that have been free for two days", n)
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
		ok(t, "Transaction", gormlock.Transaction(holder(t, db, 5), t.Name(), func(*gorm.DB) error {
			_, err := gormlock.Purge(ctx, db, time.Hour)
			return err
		}, gormlock.Fenced()))
	})
}

// TestPurge_KeyWhoseSealEnded: it was acquired long ago and is free. So it goes, although it was
// never released.
func TestPurge_KeyWhoseSealEnded(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Migrate", gormlock.Migrate(db))
		l := locker(t, gormlock.Table(db, gormlock.WithTimeout(time.Minute)))
		k, err := l.Acquire(t.Context(), "k")
		ok(t, "Acquire", err)
		ok(t, "Seal", k.Seal(t.Context(), []byte("an answer"), 24*time.Hour))
		age(t, db, 23*time.Hour)
		n, err := gormlock.Purge(t.Context(), db, 2*time.Hour)
		if ok(t, "Purge", err); n != 0 {
			t.Errorf("Purge deleted %d rows, and the key is sealed", n)
		}
		age(t, db, 2*time.Hour) // the seal ended an hour ago
		n, err = gormlock.Purge(t.Context(), db, 2*time.Hour)
		if ok(t, "Purge", err); n != 1 {
			t.Errorf("Purge deleted %d rows, want the one whose seal has ended", n)
		}
	})
}
