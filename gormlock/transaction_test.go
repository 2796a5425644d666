package gormlock_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

func TestTransaction_WithKeys(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}))
		put(t, db, 42, 10)
		j := record(t, db)
		update := func(tx *gorm.DB) error { return take(tx, 42) }
		ok(t, "Transaction", gormlock.Transaction(db, "c", update, gormlock.WithKeys("a", "c"), nil, gormlock.WithKeys("b")))
		j.want(t, "Transaction", "lock a", "lock b", "lock c", "BEGIN", "UPDATE", "COMMIT", "unlock c", "unlock b", "unlock a")
		want(t, "an empty key", gormlock.Transaction(db, "a", update, gormlock.WithKeys("")), core.ErrInvalidKey)
	})
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		b, err := l.Acquire(t.Context(), "b")
		ok(t, "Acquire", err)
		never := func(*gorm.DB) error { t.Error("it ran"); return nil }
		want(t, "all or none", gormlock.Transaction(db, "a", never, gormlock.WithKeys("b"), gormlock.WithWait(time.Second)), core.ErrTaken)
		ok(t, "Release", b.Release(t.Context()))
		eventually(t, "a is given back", func() bool { return !held(t, l, "a") })
		wantIdle(t, db, l, "a", "b")
	})
}

func TestTransaction_WithTxOptions(t *testing.T) {
	t.Parallel()
	readOnly, serializable := &sql.TxOptions{ReadOnly: true}, &sql.TxOptions{Isolation: sql.LevelSerializable}
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		run := func(db *gorm.DB, fn func(tx *gorm.DB) error, opts ...gormlock.TransactionOption) error {
			return gormlock.Transaction(db, "k", fn, opts...)
		}
		update := func(tx *gorm.DB) error { return take(tx, 42) }
		if err := run(db, update, gormlock.WithTxOptions(readOnly)); db.Name() != "sqlite" && err == nil {
			t.Error("a read-only transaction wrote") // SQLite's driver has no such thing
		} else if db.Name() == "sqlite" {
			ok(t, "Update", db.Model(&Stock{}).Where("sku = 42").Update("left", 10).Error)
		}
		if db.Name() == "postgres" {
			ok(t, "Serializable", run(db, func(tx *gorm.DB) error {
				var level string
				ok(t, "Row", tx.Raw("SHOW transaction_isolation").Row().Scan(&level))
				if level != "serializable" {
					t.Errorf("the isolation level is %s", level)
				}
				return nil
			}, gormlock.WithTxOptions(serializable)))
		}
		ok(t, "nil", run(db, update, gormlock.WithTxOptions(nil)))
		ok(t, "nested", run(db, func(tx *gorm.DB) error {
			never := func(*gorm.DB) error { t.Error("it ran"); return nil }
			want(t, "others", run(tx, never, gormlock.WithTxOptions(readOnly)), gorm.ErrInvalidTransaction)
			return run(tx, update, gormlock.WithTxOptions(serializable))
		}, gormlock.WithTxOptions(serializable)))
		wantLeft(t, db, 42, 8)
		wantIdle(t, db, l, "k")
	})
}

func TestOptions_OfAnotherFunction(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		if err := gormlock.Transaction(db, "k", func(*gorm.DB) error { return nil }, gormlock.Fingerprint([]byte("x"))); err == nil {
			t.Error("Transaction took the Fingerprint of Once")
		}
		if err := reopen(t, db).Use(gormlock.New(nil, gormlock.WithWait(-1))); err == nil {
			t.Error("New took a negative wait")
		}
	})
}

// TestNew_DefaultWait: an option of New is the default of all guards, and what they say themselves counts.
func TestNew_DefaultWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, err := gorm.Open(sqlite.Open(":memory:"), &gorm.Config{Logger: logger.Discard})
		ok(t, "Open", err)
		defer pool(t, db).Close()
		l, err := core.New(backendtest.Memory(), core.WithMaxHold(0), core.WithTTL(time.Hour))
		ok(t, "core.New", err)
		defer l.Close()
		ok(t, "Use", db.Use(gormlock.New(l, gormlock.WithWait(time.Minute))))
		_, err = l.Acquire(t.Context(), "k")
		ok(t, "Acquire", err)
		never := func(*gorm.DB) error { t.Error("it ran"); return nil }
		for name, c := range map[string]struct {
			run  func() error
			wait time.Duration
		}{
			"Guard":       {func() error { return take(db.Scopes(gormlock.Guard("k")), 42) }, time.Minute},
			"WithGuard":   {func() error { return take(db.WithContext(gormlock.WithGuard(t.Context(), "k")), 42) }, time.Minute},
			"Transaction": {func() error { return gormlock.Transaction(db, "k", never) }, time.Minute},
			"less":        {func() error { return gormlock.Transaction(db, "k", never, gormlock.WithWait(time.Second)) }, time.Second},
		} {
			start := time.Now()
			want(t, name, c.run(), core.ErrTaken)
			if waited := time.Since(start); waited < c.wait || waited > c.wait+time.Second {
				t.Errorf("%s: it waited %v, want %v", name, waited, c.wait)
			}
		}
	})
}

// reenter takes the key again, which works at once if ctx carries the lock.
func reenter(ctx context.Context, l *core.Locker) error {
	k, err := l.TryAcquire(ctx, "k")
	if err != nil {
		return err
	}
	return k.Release(ctx)
}

// TestTransaction_ContextCarriesTheLock: in every block of Transaction, and in each statement of the other forms.
func TestTransaction_ContextCarriesTheLock(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 100)
		hooks := 0
		ok(t, "Register", db.Callback().Update().Before("gorm:update").Register("hook", func(tx *gorm.DB) {
			if _, err := gormlock.Token(tx); err == nil { // there is a guard
				hooks++
				_ = tx.AddError(reenter(tx.Statement.Context, l))
			}
		}))
		for name, block := range blocks {
			if name == "plain" || name == "by hand" {
				continue
			}
			before := hooks
			ok(t, name, block(db, func(tx *gorm.DB) error {
				read := tx.Take(&Stock{}, "sku = 42")
				if name == "Guard" || name == "WithGuard" {
					return errors.Join(read.Error, reenter(read.Statement.Context, l), take(tx, 42))
				}
				return errors.Join(read.Error, reenter(tx.Statement.Context, l), take(tx, 42))
			}))
			if hooks != before+1 {
				t.Errorf("%s: %d hooks", name, hooks-before)
			}
		}
		for name, block := range blocks { // the inner lock is the transaction's
			if name == "Once" { // whose key is in the same space
				continue
			}
			var inner context.Context
			ok(t, name, block(db, func(tx *gorm.DB) error {
				return gormlock.Transaction(tx, "k", func(tx *gorm.DB) error {
					inner = tx.Statement.Context
					return errors.Join(reenter(inner, l), take(tx, 42), reenter(inner, l))
				})
			}))
			if inner.Err() == nil {
				t.Errorf("%s: the inner context outlives the transaction", name)
			}
		}
		wantIdle(t, db, l, "k")
	})
}

// TestTransaction_NestedContextEndsWithTheLock: a nested block hears of a lock that is lost.
func TestTransaction_NestedContextEndsWithTheLock(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		l := locker(t, backendtest.Memory(), core.WithTTL(200*time.Millisecond), core.WithMaxHold(0))
		ok(t, "Use", db.Use(gormlock.New(l)))
		err := db.Transaction(func(tx *gorm.DB) error {
			return gormlock.Transaction(tx, "k", func(tx *gorm.DB) error {
				<-tx.Statement.Context.Done()
				return context.Cause(tx.Statement.Context)
			})
		})
		want(t, "Transaction", err, core.ErrLost)
		wantIdle(t, db, l)
	})
}

// TestWithGuard_PlainRead: a read outside a transaction runs as without the guard, and takes no lock. Raw SQL, which may
// write, and a read with its own Guard are refused: see TestErrNoTransaction.
func TestWithGuard_PlainRead(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		k, err := l.Acquire(t.Context(), "k")
		ok(t, "Acquire", err)
		ctx := gormlock.WithGuard(t.Context(), "k")
		guarded := db.WithContext(ctx)
		var n int64
		rows, err := guarded.Model(&Stock{}).Rows()
		ok(t, "Rows", err)
		ok(t, "Close", rows.Close())
		_, generics := gorm.G[Stock](db).Where("sku = ?", 42).First(ctx)
		for name, err := range map[string]error{
			"First":    guarded.Preload("Items").First(&Stock{}).Error,
			"Find":     guarded.Find(&[]Stock{}).Error,
			"Count":    guarded.Model(&Stock{}).Count(&n).Error,
			"Row":      guarded.Model(&Stock{}).Select("sku").Row().Scan(&n),
			"generics": generics,
		} {
			ok(t, name, err)
		}
		want(t, "Raw", guarded.Raw("SELECT sku FROM stocks").Scan(&n).Error, gormlock.ErrNoTransaction)
		_, err = guarded.Raw("DELETE FROM stocks").Rows()
		want(t, "raw Rows", err, gormlock.ErrNoTransaction)
		ok(t, "Release", k.Release(t.Context()))
		wantLeft(t, db, 42, 10)
		wantIdle(t, db, l, "k")
	})
}

// TestErrGuardTooLate: the guarded part is not sent, and what is around it commits.
func TestErrGuardTooLate(t *testing.T) {
	t.Parallel()
	late := gormlock.Guard("late")
	update := func(tx *gorm.DB) error { return take(tx, 43) }
	inner := map[string]func(tx *gorm.DB) error{
		"statement": func(tx *gorm.DB) error { return update(tx.Scopes(late)) },
		"block":     func(tx *gorm.DB) error { return tx.Scopes(late).Transaction(update) },
		"read":      func(tx *gorm.DB) error { return tx.Scopes(late).First(&Stock{}).Error },
		"context":   func(tx *gorm.DB) error { return update(tx.WithContext(gormlock.WithGuard(t.Context(), "late"))) },
		"WithGuard": func(tx *gorm.DB) error {
			return tx.WithContext(gormlock.WithGuard(t.Context(), "late")).Transaction(update)
		},
		"Transaction": func(tx *gorm.DB) error { return gormlock.Transaction(tx, "late", update) },
	}
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 100)
		put(t, db, 43, 10)
		n := int64(100)
		for outerName, outer := range blocks {
			for name, inner := range inner {
				name := name + " in " + outerName
				ok(t, name, outer(db, func(tx *gorm.DB) error {
					ok(t, "take", take(tx, 42))
					want(t, name, inner(tx), gormlock.ErrGuardTooLate)
					if held(t, l, "late") {
						t.Errorf("%s: the key is held", name)
					}
					return take(tx, 42)
				}))
				n -= 2
				wantLeft(t, db, 42, n)
				wantLeft(t, db, 43, 10)
			}
		}
		again := func(tx *gorm.DB) error { return take(tx.Scopes(gormlock.Guard("k")), 42) }
		nested := func(tx *gorm.DB) error {
			return tx.Scopes(gormlock.Guard("k")).Transaction(func(tx *gorm.DB) error { return take(tx, 42) })
		}
		ok(t, "the same key again", db.Transaction(func(tx *gorm.DB) error {
			err := errors.Join(again(tx), take(tx, 42), again(tx), nested(tx))
			want(t, "another key", inner["statement"](tx), gormlock.ErrGuardTooLate)
			return err
		}))
		wantLeft(t, db, 42, n-4)
		wantIdle(t, db, l, "k", "late")
	})
}

// TestErrGuardTooLate_HiddenSavepoint: GORM hides that a SAVEPOINT was not sent on SQLite and
// PostgreSQL, and calls the block. If the block fails, nothing that it wrote without the guard may
// stay.
func TestErrGuardTooLate_HiddenSavepoint(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		put(t, db, 43, 10)
		hidden := false
		ok(t, "the outer block", db.Transaction(func(tx *gorm.DB) error {
			ok(t, "take", take(tx, 42))
			session := tx.Scopes(gormlock.Guard("late")).Session(&gorm.Session{})
			want(t, "block", session.Transaction(func(tx *gorm.DB) error {
				hidden = true
				ok(t, "unguarded", take(tx.Session(&gorm.Session{NewDB: true}), 43))
				return take(tx, 43)
			}), gormlock.ErrGuardTooLate)
			return nil
		}))
		if hides := db.Name() != "mysql"; hidden != hides {
			t.Errorf("the block ran is %v, want %v", hidden, hides)
		}
		wantLeft(t, db, 42, 9)
		wantLeft(t, db, 43, 10)
		wantIdle(t, db, l, "late")
	})
}

// TestErrGuardTooLate_OppositeOrders: two transactions that want each other's key are refused, and do not wait.
func TestErrGuardTooLate_OppositeOrders(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		var callers, both sync.WaitGroup
		both.Add(2)
		for i, key := range []string{"a", "b"} {
			callers.Go(func() {
				err := gormlock.Transaction(db, key, func(tx *gorm.DB) error {
					both.Done()
					both.Wait()
					never := func(*gorm.DB) error { t.Error("it ran"); return nil }
					err := gormlock.Transaction(tx, []string{"b", "a"}[i], never, gormlock.WithWait(time.Hour))
					if !errors.Is(err, gormlock.ErrGuardTooLate) {
						t.Errorf("%s: %v", key, err)
					}
					return nil
				})
				if err != nil {
					t.Errorf("%s: %v", key, err)
				}
			})
		}
		callers.Wait()
		wantIdle(t, db, l, "a", "b")
	})
}

// The error of COMMIT is translated as GORM's own Transaction does.
func TestTransaction_TranslatesCommitErrors(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		if db.Name() != "postgres" { // which checks a unique key at COMMIT
			return
		}
		ok(t, "CREATE", db.Exec("CREATE TABLE late (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)").Error)
		err := gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
			return tx.Exec("INSERT INTO late VALUES (1), (1)").Error
		})
		want(t, "COMMIT", err, gorm.ErrDuplicatedKey)
		wantIdle(t, db, l, "k")
	}, config(func(c *gorm.Config) { c.TranslateError = true }))
}
