package gormlock_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

func takeFenced(db *gorm.DB) error {
	return take(db.Scopes(gormlock.Guard("k", gormlock.Fenced())), 42)
}

// The new source's clock is behind.
func TestResetFence(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 10)
		put(t, db, 43, 10)
		ok(t, "the old source", takeFenced(holder(t, db, 1000)))
		stale, fresh := holder(t, db, 4), holder(t, db, 5, gormlock.Fenced())
		want(t, "before", takeFenced(fresh), gormlock.ErrFenced)
		ok(t, "ResetFence", gormlock.ResetFence(t.Context(), fresh, "k"))
		next := holder(t, db, 6)
		for what, refused := range map[string]*gorm.DB{"an older holder": stale, "another with its number": fresh} {
			want(t, what, takeFenced(refused), gormlock.ErrFenced)
		}
		ok(t, "the next holder", takeFenced(next))

		ok(t, "again, as it is not needed", gormlock.ResetFence(t.Context(), holder(t, db, 7), "k"))
		want(t, "an older holder still", takeFenced(stale), gormlock.ErrFenced)
		ok(t, "the newest holder", takeFenced(holder(t, db, 8)))
		ok(t, "a key without a fence", gormlock.ResetFence(t.Context(), fresh, "other"))
		wantLeft(t, db, 42, 7)
		wantOpen(t, db, 0)
	})
}

// MariaDB may report success for an UPDATE that KILL QUERY ended before it changed its row.
func TestResetFence_InterruptedUpdate(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 10)
		ok(t, "the old source", takeFenced(holder(t, db, 1000)))
		network := &relay{primary: pool(t, db)}
		var interrupt atomic.Bool
		network.exec = func(query string, _ []any, run func() (driver.Result, error)) (driver.Result, error) {
			if strings.HasPrefix(query, "UPDATE onelane_fences") && interrupt.Swap(false) {
				return driver.RowsAffected(0), nil
			}
			return run()
		}
		fresh := holder(t, network.open(t, db), 5)
		interrupt.Store(true)
		if err := gormlock.ResetFence(t.Context(), fresh, "k"); err == nil || interrupt.Load() {
			t.Error("it says that the fence was reset")
		}
		ok(t, "again", gormlock.ResetFence(t.Context(), fresh, "k"))
		ok(t, "the next holder", takeFenced(holder(t, db, 6)))
	})
}

// A transaction that has the fence ends first.
func TestResetFence_HolderActive(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Migrate", gormlock.Migrate(db))
		busySoon(t, db)
		put(t, db, 42, 10)
		ok(t, "the old source", takeFenced(holder(t, db, 1000)))
		old := holder(t, db, 2000).Scopes(gormlock.Guard("k", gormlock.Fenced())).Begin()
		ok(t, "an old holder", take(old, 42))
		fresh := holder(t, db, 5)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := gormlock.ResetFence(ctx, fresh, "k"); err == nil {
			t.Error("it did not wait for the transaction that has the fence")
		}
		ok(t, "Commit", old.Commit().Error)
		want(t, "unchanged", takeFenced(fresh), gormlock.ErrFenced)
		ok(t, "ResetFence", gormlock.ResetFence(t.Context(), fresh, "k"))
		ok(t, "a new holder", takeFenced(holder(t, db, 6)))
		wantLeft(t, db, 42, 7)
	})
}

func TestResetFence_Refusals(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		want(t, "without the plugin", gormlock.ResetFence(t.Context(), reopen(t, db), "k"), gormlock.ErrNotRegistered)
		if err := gormlock.ResetFence(t.Context(), db, "k"); err == nil {
			t.Error("there is no table, and no error")
		}
		err := db.Transaction(func(tx *gorm.DB) error { return gormlock.ResetFence(t.Context(), tx, "k") })
		want(t, "in a transaction", err, gorm.ErrInvalidTransaction)
		wantIdle(t, db, l, "k")
		k, err := l.Acquire(t.Context(), "k")
		ok(t, "Acquire", err)
		want(t, "a held key", endsInLine(t, func(ctx context.Context) error { return gormlock.ResetFence(ctx, db, "k") }), core.ErrTaken)
		ok(t, "Release", k.Release(t.Context()))
	})
}

// busySoon makes SQLite give up a wait for another transaction after 200 ms instead of 20 s.
func busySoon(t *testing.T, db *gorm.DB) {
	t.Helper()
	if db.Name() != "sqlite" {
		return
	}
	conns := pool(t, db)
	conns.SetMaxIdleConns(4)
	conns.SetMaxOpenConns(4)
	var all []*sql.Conn
	for range 4 { // all that there will be
		conn, err := conns.Conn(t.Context())
		ok(t, "Conn", err)
		all = append(all, conn)
		_, err = conn.ExecContext(t.Context(), "PRAGMA busy_timeout = 200")
		ok(t, "PRAGMA", err)
	}
	for _, conn := range all {
		ok(t, "Close", conn.Close())
	}
}
