package gormlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// TestNested_SharesTheOuterLock: savepoints roll back alone; the lock ends with the outermost transaction.
func TestNested_SharesTheOuterLock(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		inner := map[string]func(tx *gorm.DB, fn func(tx *gorm.DB) error) error{
			"plain": func(tx *gorm.DB, fn func(tx *gorm.DB) error) error { return tx.Transaction(fn) },
			"Guard": func(tx *gorm.DB, fn func(tx *gorm.DB) error) error {
				return tx.Scopes(gormlock.Guard("k")).Transaction(fn)
			},
			"Transaction": func(tx *gorm.DB, fn func(tx *gorm.DB) error) error { return gormlock.Transaction(tx, "k", fn) },
		}
		outer := map[string]func(fn func(tx *gorm.DB) error) error{
			"Guard":       func(fn func(tx *gorm.DB) error) error { return db.Scopes(gormlock.Guard("k")).Transaction(fn) },
			"Transaction": func(fn func(tx *gorm.DB) error) error { return gormlock.Transaction(db, "k", fn) },
		}
		n := int64(10)
		for outerName, outer := range outer {
			for innerName, inner := range inner {
				name := innerName + " in " + outerName
				ok(t, name, outer(func(tx *gorm.DB) error {
					// The first statement may be the inner SAVEPOINT.
					err := inner(tx, func(tx *gorm.DB) error { ok(t, "take", take(tx, 42)); return boom })
					want(t, name, err, boom)
					if !held(t, l, "k") {
						t.Errorf("%s: the key is free after the inner transaction", name)
					}
					ok(t, name, inner(tx, func(tx *gorm.DB) error { return take(tx, 42) }))
					if !held(t, l, "k") {
						t.Errorf("%s: the key is free after the inner transaction", name)
					}
					return take(tx, 42)
				}))
				n -= 2
				wantLeft(t, db, 42, n)
				wantIdle(t, db, l, "k")
				n += 2
				ok(t, "Update", db.Model(&Stock{}).Where("sku = 42").Update("left", n).Error)
			}
		}
	})
}

func TestNested_SavepointsByHand(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		tx := db.WithContext(gormlock.WithGuard(t.Context(), "k")).Begin()
		ok(t, "take", take(tx, 42))
		ok(t, "SavePoint", tx.SavePoint("sp").Error)
		ok(t, "take", take(tx, 42))
		ok(t, "RollbackTo", tx.RollbackTo("sp").Error)
		ok(t, "Commit", tx.Commit().Error)
		want(t, "second Commit", tx.Session(&gorm.Session{}).Commit().Error, sql.ErrTxDone)
		want(t, "Rollback after Commit", tx.Session(&gorm.Session{}).Rollback().Error, sql.ErrTxDone)
		wantLeft(t, db, 42, 9)
		wantIdle(t, db, l, "k")
	})
}

// TestReentrance: a lock that the context carries is used, and not released.
func TestReentrance(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		ok(t, "Do", l.Do(t.Context(), "k", func(ctx context.Context) error {
			db := db.WithContext(ctx)
			guard := gormlock.Guard("k", gormlock.WithWait(time.Millisecond))
			ok(t, "single", take(db.Scopes(guard), 42))
			ok(t, "block", db.Scopes(guard).Transaction(func(tx *gorm.DB) error { return take(tx, 42) }))
			ok(t, "Transaction", gormlock.Transaction(db, "k", func(tx *gorm.DB) error { return take(tx, 42) }))
			if !held(t, l, "k") {
				t.Error("the guard released the caller's lock")
			}
			return nil
		}))
		wantIdle(t, db, l, "k")
		wantLeft(t, db, 42, 7)

		ok(t, "Transaction", gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
			elsewhere := db.WithContext(tx.Statement.Context)
			ok(t, "a read elsewhere needs no guard", elsewhere.First(&Stock{}).Error)
			k, err := l.TryAcquire(tx.Statement.Context, "k")
			ok(t, "the context of the transaction carries the lock", err)
			return k.Release(tx.Statement.Context)
		}))
		wantIdle(t, db, l, "k")
	})
}

func TestSQLTx(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		ok(t, "block", db.Scopes(gormlock.Guard("k")).Transaction(func(tx *gorm.DB) error {
			raw, err := gormlock.SQLTx(tx)
			ok(t, "SQLTx", err)
			if !held(t, l, "k") {
				t.Error("SQLTx began the transaction without its guard")
			}
			_, err = raw.ExecContext(t.Context(), "UPDATE stocks SET name = 'raw' WHERE sku = 42")
			return err
		}))
		var s Stock
		ok(t, "Take", db.Take(&s, "sku = 42").Error)
		if s.Name != "raw" {
			t.Errorf("name %q", s.Name)
		}
		ok(t, "unguarded", db.Transaction(func(tx *gorm.DB) error {
			_, err := gormlock.SQLTx(tx)
			return err
		}))
		wantIdle(t, db, l, "k")
	})
}

// TestPlugin_OnTwoDatabases: one plugin serves both.
func TestPlugin_OnTwoDatabases(t *testing.T) {
	t.Parallel()
	l := locker(t, backendtest.Memory())
	plugin := gormlock.New(l)
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}))
		put(t, db, 42, 10)
		ok(t, "Use", db.Use(plugin))
		want(t, "Use again", db.Use(plugin), gorm.ErrRegistered)
		ok(t, "take", take(db.Scopes(gormlock.Guard("k")), 42))
		wantLeft(t, db, 42, 9)
	})
}

// TestTransaction_OfADBWithAnError: GORM begins a transaction for it all the same, and never ends that.
func TestTransaction_OfADBWithAnError(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		failed := db.Session(&gorm.Session{})
		want(t, "AddError", failed.AddError(boom), boom)
		want(t, "Transaction", gormlock.Transaction(failed, "k", func(*gorm.DB) error { t.Error("it ran"); return nil }), boom)
		_, err := gormlock.Once(t.Context(), failed, "k", func(*gorm.DB) (int, error) { t.Error("it ran"); return 0, nil })
		want(t, "Once", err, boom)
		wantIdle(t, db, l, "k")
	})
}

// TestTransaction_NestedDisabled: an inner Transaction is behind a savepoint in any case.
func TestTransaction_NestedDisabled(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		put(t, db, 42, 5)
		ok(t, "outer", gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
			want(t, "inner", gormlock.Transaction(tx, "k", func(tx *gorm.DB) error {
				ok(t, "take", take(tx, 42))
				return errNo
			}), errNo)
			return nil
		}))
		wantLeft(t, db, 42, 5)
	}, config(func(c *gorm.Config) { c.DisableNestedTransaction = true }))
}

// TestNested_ContextEnds: a long transaction does not keep what each of its blocks had.
func TestNested_ContextEnds(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		put(t, db, 42, 10)
		ok(t, "Transaction", gormlock.Transaction(db, "k", func(outer *gorm.DB) error {
			var block context.Context
			ok(t, "inner", gormlock.Transaction(outer, "k", func(inner *gorm.DB) error {
				block = inner.Statement.Context
				return take(inner, 42)
			}))
			if block.Err() == nil || outer.Statement.Context.Err() != nil {
				t.Errorf("after the block its context has %v, that of the transaction %v", block.Err(), outer.Statement.Context.Err())
			}
			return take(outer, 42)
		}))
		wantLeft(t, db, 42, 8)
	})
}

// TestNested_RowsOutlive: rows of a block can be read after it, and may stay open until COMMIT.
func TestNested_RowsOutlive(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		const all = 20
		for sku := range all {
			put(t, db, sku, 10)
		}
		for _, read := range []int{0, 1, all} {
			err := gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
				var rows *sql.Rows
				err := take(tx, 7)
				if err == nil {
					err = gormlock.Transaction(tx, "k", func(tx *gorm.DB) (err error) {
						rows, err = tx.Model(&Stock{}).Rows()
						return err
					})
				}
				for n := 0; err == nil && n < read; n++ {
					if !rows.Next() {
						err = fmt.Errorf("after %d rows: %w", n, rows.Err())
					}
				}
				return err
			})
			ok(t, fmt.Sprintf("%d rows read", read), err)
		}
		wantLeft(t, db, 7, 7)
		wantIdle(t, db, l, "k")
	})
}

// TestNested_Postgres: after an error PostgreSQL refuses the rest of the transaction, or of the nested
// block that it was in. GORM releases no savepoint, and the server keeps a lock for each.
func TestNested_Postgres(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		if db.Name() != "postgres" {
			return
		}
		put(t, db, 42, 10)
		wrong := func(tx *gorm.DB) error { return tx.Exec("SELECT 1/0").Error }
		var locks int
		ok(t, "after a nested block", gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
			if gormlock.Transaction(tx, "k", wrong) == nil {
				t.Error("1/0 is no error")
			}
			for range 20 {
				if err := gormlock.Transaction(tx, "k", func(tx *gorm.DB) error { return take(tx, 42) }); err != nil {
					return err
				}
			}
			const held = "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND pid = pg_backend_pid()"
			return errors.Join(take(tx, 42), tx.Raw(held).Scan(&locks).Error)
		}))
		if locks < 20 {
			t.Errorf("%d locks for 20 savepoints: docs/gorm.md says that each has one", locks)
		}
		err := gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
			_ = wrong(tx)
			return take(tx, 42)
		})
		if err == nil {
			t.Error("the transaction went on after an error")
		}
	})
}
