package gormlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/gormlock/optimistic"
	"github.com/onelane/onelane/testutil/backendtest"
)

// collide runs fn in two transactions under two keys. In its first try each calls meet when it is half done, which
// returns when both are. It returns the errors of the two, and how often fn ran.
func collide(db *gorm.DB, fn func(tx *gorm.DB, mine, other int, meet func()) error, opts ...gormlock.TransactionOption) (errs [2]error, tries int32) {
	var callers, met sync.WaitGroup
	var n atomic.Int32
	met.Add(2)
	for i, sku := range []int{42, 43} {
		callers.Go(func() {
			first := sync.OnceFunc(func() { met.Done(); met.Wait() })
			errs[i] = gormlock.Transaction(db, []string{"a", "b"}[i], func(tx *gorm.DB) error {
				n.Add(1)
				return fn(tx, sku, 85-sku, first)
			}, opts...)
		})
	}
	callers.Wait()
	return errs, n.Load()
}

func TestWithRetry_Deadlock(t *testing.T) {
	t.Parallel()
	crossed := func(tx *gorm.DB, mine, other int, meet func()) error {
		err := take(tx, mine)
		meet()
		return errors.Join(err, take(tx, other))
	}
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		if db.Name() == "sqlite" { // which has one writer
			return
		}
		put(t, db, 42, 10)
		put(t, db, 43, 10)
		errs, tries := collide(db, crossed)
		if (errs[0] == nil) == (errs[1] == nil) || tries != 2 {
			t.Fatalf("without WithRetry: %v after %d tries, want one deadlock after 2", errs, tries)
		}
		errs, tries = collide(db, crossed, gormlock.WithRetry(5))
		if ok(t, "WithRetry", errors.Join(errs[:]...)); tries < 3 {
			t.Errorf("%d tries, so there was no deadlock", tries)
		}
		wantLeft(t, db, 42, 7)
		wantLeft(t, db, 43, 7)
		wantIdle(t, db, l, "a", "b")
	})
}

// TestWithRetry_Serialization: of two transactions that each read what the other writes, PostgreSQL refuses one.
func TestWithRetry_Serialization(t *testing.T) {
	t.Parallel()
	skewed := func(tx *gorm.DB, mine, _ int, meet func()) error {
		var all []Stock
		err := tx.Find(&all).Error
		meet()
		return errors.Join(err, take(tx, mine))
	}
	serializable := gormlock.WithTxOptions(&sql.TxOptions{Isolation: sql.LevelSerializable})
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		if db.Name() == "sqlite" { // which has one writer
			return
		}
		put(t, db, 42, 10)
		put(t, db, 43, 10)
		errs, tries := collide(db, skewed)
		if ok(t, "the default isolation", errors.Join(errs[:]...)); tries != 2 {
			t.Fatalf("the default isolation: %d tries", tries)
		}
		errs, _ = collide(db, skewed, serializable)
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("without WithRetry: %v, want one error", errs)
		}
		errs, tries = collide(db, skewed, serializable, gormlock.WithRetry(5))
		if ok(t, "WithRetry", errors.Join(errs[:]...)); tries < 3 {
			t.Errorf("%d tries, so there was no serialization failure", tries)
		}
		if sum := left(t, db, 42) + left(t, db, 43); sum != 15 {
			t.Errorf("%d left in all, want 15", sum)
		}
		wantIdle(t, db, l, "a", "b")
	})
}

// TestWithRetry_SQLiteBusy: another writer commits between the read and the write of a deferred transaction.
func TestWithRetry_SQLiteBusy(t *testing.T) {
	t.Parallel()
	dsn := "file:" + filepath.Join(t.TempDir(), "busy") + "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)"
	db, err := gorm.Open(sqlite.Open(dsn), &gorm.Config{Logger: logger.Discard})
	ok(t, "Open", err)
	t.Cleanup(func() { _ = pool(t, db).Close() })
	l := locker(t, backendtest.Memory())
	ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
	ok(t, "Use", db.Use(gormlock.New(l)))
	put(t, db, 42, 10)
	run := func(opts ...gormlock.TransactionOption) (tries int, err error) {
		err = gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
			ok(t, "Take", tx.Take(&Stock{}, "sku = 42").Error)
			if tries++; tries == 1 {
				ok(t, "the other writer", take(db, 42))
			}
			return take(tx, 42)
		}, opts...)
		return tries, err
	}
	if tries, err := run(); err == nil || tries != 1 {
		t.Fatalf("without WithRetry: %v after %d tries", err, tries)
	}
	if tries, err := run(gormlock.WithRetry(1)); err != nil || tries != 2 {
		t.Fatalf("WithRetry: %v after %d tries", err, tries)
	}
	wantLeft(t, db, 42, 7)
	wantIdle(t, db, l, "k")
}

func TestWithRetry_Stale(t *testing.T) {
	t.Parallel()
	versionedDB(t, func(t *testing.T, db *gorm.DB) {
		mine, account := twice(t, db)
		ok(t, "Update", db.Model(&mine).Update("balance", 9).Error)
		tries, called := 0, 0
		err := gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
			if tries++; tries > 1 {
				account = Account{}
				ok(t, "Take", tx.Take(&account, mine.ID).Error)
			}
			ok(t, "AfterCommit", gormlock.AfterCommit(tx, func(context.Context) { called++ }))
			return tx.Model(&account).Update("balance", account.Balance-1).Error
		}, gormlock.WithRetry(3))
		if err != nil || tries != 2 || called != 1 || account.Balance != 8 {
			t.Errorf("%v after %d tries, AfterCommit called %d times, balance %d", err, tries, called, account.Balance)
		}
	})
}

func TestWithRetry_Ends(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		run := func(db *gorm.DB, n int, result func(tx *gorm.DB) error) (tries int, err error) {
			err = gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
				tries++
				return errors.Join(take(tx, 42), result(tx))
			}, gormlock.WithRetry(n))
			return tries, err
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for name, c := range map[string]struct {
			db     *gorm.DB
			result func(tx *gorm.DB) error
			err    error
			tries  int
		}{
			"after n more":           {db, func(*gorm.DB) error { return optimistic.ErrStale }, optimistic.ErrStale, 4},
			"at an error of its own": {db, func(*gorm.DB) error { return boom }, boom, 1},
			"at an unknown COMMIT": {db, func(*gorm.DB) error { return errors.Join(optimistic.ErrStale, gormlock.ErrCommitUnknown) },
				gormlock.ErrCommitUnknown, 1},
			"with its context": {db.WithContext(ctx), func(*gorm.DB) error { cancel(); return optimistic.ErrStale }, context.Canceled, 1},
			"in a nested block": {db, func(tx *gorm.DB) error {
				if tries, _ := run(tx, 9, func(*gorm.DB) error { return optimistic.ErrStale }); tries != 1 {
					t.Errorf("a nested block ran %d times", tries)
				}
				return boom
			}, boom, 1},
		} {
			tries, err := run(c.db, 3, c.result)
			if want(t, name, err, c.err); tries != c.tries {
				t.Errorf("%s: %d tries, want %d", name, tries, c.tries)
			}
		}
		if tries, err := run(db, 0, func(*gorm.DB) error { return nil }); err == nil || tries != 0 {
			t.Errorf("WithRetry(0): %v after %d tries", err, tries)
		}
		wantLeft(t, db, 42, 10)
		wantIdle(t, db, l, "k")
	})
}

// TestWithRetry_CommitUnknown: the connection is cut at COMMIT, before or after it is done.
func TestWithRetry_CommitUnknown(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		proxied, p := behindProxy(t, db)
		if p == nil {
			return
		}
		put(t, db, 42, 10)
		l := locker(t, backendtest.Memory(), core.WithTTL(time.Minute))
		ok(t, "Use", proxied.Use(gormlock.New(l)))
		for _, cut := range []int32{cutBefore, cutAfter} {
			tries, called := 0, 0
			key := fmt.Sprint("k", cut)
			err := gormlock.Transaction(proxied, key, func(tx *gorm.DB) error {
				tries++
				ok(t, "take", take(tx, 42))
				ok(t, "AfterCommit", gormlock.AfterCommit(tx, func(context.Context) { called++ }))
				p.do.Store(cut)
				return nil
			}, gormlock.WithRetry(5))
			p.do.Store(pass)
			if want(t, "Transaction", err, gormlock.ErrCommitUnknown); tries != 1 || called != 0 {
				t.Errorf("%d tries, AfterCommit called %d times", tries, called)
			}
			if !held(t, l, key) {
				t.Error("the key is free although the outcome is unknown")
			}
		}
	})
}

// The largest number is "until the context ends", and not "never".
func TestWithRetry_Largest(t *testing.T) {
	t.Parallel()
	onceDB(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		run := func(do func(fn func(tx *gorm.DB) error) error) (tries int, err error) {
			err = do(func(tx *gorm.DB) error {
				if tries++; tries == 1 {
					return errors.Join(take(tx, 42), optimistic.ErrStale)
				}
				return take(tx, 42)
			})
			return tries, err
		}
		tries, err := run(func(fn func(tx *gorm.DB) error) error {
			return gormlock.Transaction(db, "k", fn, gormlock.WithRetry(math.MaxInt))
		})
		if err != nil || tries != 2 {
			t.Errorf("Transaction: %v after %d tries, want none after 2", err, tries)
		}
		tries, err = run(func(fn func(tx *gorm.DB) error) error {
			_, err := gormlock.Once(t.Context(), db, "pay:1", func(tx *gorm.DB) (int, error) { return 1, fn(tx) },
				gormlock.WithRetry(math.MaxInt))
			return err
		})
		if err != nil || tries != 2 {
			t.Errorf("Once: %v after %d tries, want none after 2", err, tries)
		}
		wantIdle(t, db, l, "k")
	})
}
