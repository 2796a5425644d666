package gormlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
)

// caller is one of a group.
type caller struct {
	fn  func(tx *gorm.DB) error
	ctx context.Context // nil: the test's
	err error
	// back is closed when the caller has its error. It may be nil.
	back chan struct{}
}

// together runs callers in one group on key "k", in this order.
func together(t *testing.T, db *gorm.DB, l *core.Locker, callers ...*caller) {
	t.Helper()
	togetherWithin(t, db, l, 0, callers...)
}

// togetherWithin does so in a group that may take as long as groupTime; 0 is the default.
func togetherWithin(t *testing.T, db *gorm.DB, l *core.Locker, groupTime time.Duration, callers ...*caller) {
	t.Helper()
	before := inUse(t, db)
	inGroup(t, db, l, groupTime, callers...)
	eventually(t, "the key and the connection are free", func() bool { return !held(t, l, "k") && inUse(t, db) == before })
}

// inGroup does so and returns when the callers are back.
func inGroup(t *testing.T, db *gorm.DB, l *core.Locker, groupTime time.Duration, callers ...*caller) {
	t.Helper()
	gormlock.SetGroupTimes(db, time.Minute, groupTime)
	k, err := l.Acquire(t.Context(), "k", core.WithTTL(time.Minute))
	ok(t, "Acquire", err)
	var all sync.WaitGroup
	for i, c := range callers {
		if c.ctx == nil {
			c.ctx = t.Context()
		}
		all.Go(func() {
			if c.back != nil {
				defer close(c.back)
			}
			defer func() {
				if p := recover(); p != nil {
					c.err = fmt.Errorf("panic: %v", p)
				}
			}()
			c.err = errors.New("the function ended the goroutine")
			c.err = gormlock.Transaction(db.WithContext(c.ctx), "k", c.fn, gormlock.Grouped(16), gormlock.WithWait(time.Minute))
		})
		eventually(t, "the caller waits", func() bool { return gormlock.Waiting(db) == i+1 })
	}
	ok(t, "Release", k.Release(t.Context()))
	all.Wait()
}

func taker(sku int) *caller {
	return &caller{fn: func(tx *gorm.DB) error { return take(tx, sku) }}
}

// TestGrouped_OneTransactionForAll: one BEGIN, one COMMIT, and a savepoint for each. MariaDB takes
// BEGIN NOT ATOMIC between two turns. MySQL refuses it once, and the pool does not try it again.
func TestGrouped_OneTransactionForAll(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}))
		put(t, db, 42, 10)
		j := recordPool(t, db)
		l := locker(t, j.backend(), core.WithPrefix(""))
		ok(t, "Use", db.Use(gormlock.New(l)))
		count := func(event string) (n int) {
			for _, e := range j.events {
				if e == event {
					n++
				}
			}
			return n
		}
		blocks := [2]int{} // between the turns of the first group, and of the second
		switch {
		case mariaDB(t, db):
			blocks = [2]int{2, 2}
		case db.Name() == "mysql":
			blocks = [2]int{1, 0}
		}
		for i, n := range blocks {
			j.events = nil
			together(t, db, l, taker(42), taker(42), taker(42))
			if count("BEGIN") != 1+n || count("COMMIT") != 1 || count("ROLLBACK") != 0 {
				t.Errorf("group %d is not one transaction: %q", i, j.events)
			}
			if last := j.events[len(j.events)-2:]; !slices.Equal(last, []string{"COMMIT", "unlock k"}) {
				t.Errorf("group %d: the end is %q", i, last)
			}
			wantLeft(t, db, 42, 7-3*int64(i))
		}
	})
}

// TestGrouped_EachItsOwnResult: what one caller does wrong is its own, however it does it.
func TestGrouped_EachItsOwnResult(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		put(t, db, 43, 10)
		with := func(fn func(tx *gorm.DB) error) *caller {
			return &caller{fn: func(tx *gorm.DB) error { return errors.Join(take(tx, 43), fn(tx)) }}
		}
		wrong := map[string]*caller{
			"an error":              with(func(*gorm.DB) error { return boom }),
			"a panic":               with(func(*gorm.DB) error { panic(boom) }),
			"the end of goroutine":  with(func(*gorm.DB) error { runtime.Goexit(); return nil }),
			"a violated constraint": with(func(tx *gorm.DB) error { return tx.Create(&Stock{SKU: 42}).Error }),
			"bad SQL":               with(func(tx *gorm.DB) error { return tx.Exec("UPDATE nowhere SET x = 1").Error }),
			"another key": with(func(tx *gorm.DB) error {
				err := take(tx.Scopes(gormlock.Guard("other")), 42)
				want(t, "guard", err, gormlock.ErrGuardTooLate)
				return err
			}),
			"a savepoint with our name": with(func(tx *gorm.DB) error {
				return errors.Join(tx.SavePoint("onelane_turn").Error, boom)
			}),
			"a statement while rows are open": with(func(tx *gorm.DB) error {
				rows, err := tx.Model(&Stock{}).Rows()
				ok(t, "Rows", err)
				rows.Next()
				if tx.Name() == "sqlite" { // which can
					ok(t, "take", take(tx, 43))
				} else {
					err = take(tx, 43)
				}
				ok(t, "Close", rows.Close())
				ok(t, "take, when they are closed", take(tx, 43))
				return errors.Join(err, boom)
			}),
			"Rollback by hand": with(func(tx *gorm.DB) error { return rollback(tx) }),
			"SQLTx":            with(func(tx *gorm.DB) error { _, err := gormlock.SQLTx(tx); return err }),
			"Prepare by hand": with(func(tx *gorm.DB) error {
				_, err := tx.Statement.ConnPool.PrepareContext(t.Context(), "SELECT 1")
				return err
			}),
		}
		n := int64(10)
		for name, c := range wrong {
			first, last := taker(42), taker(42)
			together(t, db, l, first, c, last)
			if c.err == nil {
				t.Errorf("%s: it succeeded", name)
			}
			ok(t, name+": the caller before", first.err)
			ok(t, name+": the caller after", last.err)
			n -= 2
			wantLeft(t, db, 42, n)
			wantLeft(t, db, 43, 10)
			n += 2
			ok(t, "Update", db.Model(&Stock{}).Where("sku = ?", 42).Update("left", n).Error)
		}
		alone := with(func(*gorm.DB) error { return boom })
		together(t, db, l, alone)
		want(t, "alone", alone.err, boom)
		wantLeft(t, db, 43, 10)
	})
}

// TestGrouped_WhatWorksInIt: forms of GORM in a function of a group, each with the result that it has outside.
func TestGrouped_WhatWorksInIt(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	stock := func(tx *gorm.DB) *gorm.DB { return tx.Model(&Stock{}).Where("sku = ?", 42) }
	forms := map[string]func(tx *gorm.DB) error{
		"prepared session": func(tx *gorm.DB) error {
			s := tx.Session(&gorm.Session{PrepareStmt: true})
			return errors.Join(take(s, 42), s.First(&Stock{}, "sku = ?", 42).Error, stock(s).Select("sku").Row().Scan(new(int)))
		},
		"nested": func(tx *gorm.DB) error {
			err := tx.Transaction(func(tx *gorm.DB) error { return errors.Join(take(tx, 42), boom) })
			return errors.Join(expect(err, boom), tx.Transaction(func(tx *gorm.DB) error { return take(tx, 42) }))
		},
		"nested group": func(tx *gorm.DB) error {
			return gormlock.Transaction(tx, "k", func(tx *gorm.DB) error { return take(tx, 42) }, gormlock.Grouped(8))
		},
		"guard again": func(tx *gorm.DB) error { return take(tx.Scopes(gormlock.Guard("k")), 42) },
		"savepoints": func(tx *gorm.DB) error {
			return errors.Join(take(tx, 42), tx.SavePoint("a").Error, take(tx, 42), tx.RollbackTo("a").Error)
		},
		"associations": func(tx *gorm.DB) error {
			return errors.Join(take(tx, 42), tx.Create(&Stock{SKU: 50, Items: []Item{{Name: "a"}}}).Error, tx.Preload("Items").Find(&[]Stock{}).Error,
				tx.Select("Items").Delete(&Stock{}, "sku = ?", 50).Error)
		},
		"Row": func(tx *gorm.DB) error {
			var n int
			var nothing *string
			err := errors.Join(take(tx, 42), stock(tx).Select("sku").Row().Scan(&n), tx.Raw("SELECT NULL").Row().Scan(&nothing))
			if n != 42 || nothing != nil {
				err = errors.Join(err, fmt.Errorf("Row: %d, %v", n, nothing))
			}
			return errors.Join(err, expect(tx.Raw("SELECT sku FROM stocks WHERE sku = -1").Row().Scan(&n), sql.ErrNoRows))
		},
		"Row that nobody scans": func(tx *gorm.DB) error { _ = stock(tx).Select("sku").Row(); return take(tx, 42) },
		"Rows left open": func(tx *gorm.DB) error {
			err := take(tx, 42)
			rows, rowsErr := stock(tx).Rows()
			if rowsErr == nil {
				rows.Next()
			}
			return errors.Join(err, rowsErr)
		},
		"another context": func(tx *gorm.DB) error { return take(tx.WithContext(context.Background()), 42) },
		"the lock again": func(tx *gorm.DB) error {
			return errors.Join(take(tx, 42), tx.Statement.Context.Err())
		},
		"generics": func(tx *gorm.DB) error {
			_, err := gorm.G[Stock](tx).Where("sku = ?", 42).Update(context.Background(), "name", "new")
			return errors.Join(err, take(tx, 42))
		},
		"Token": func(tx *gorm.DB) error {
			if _, err := gormlock.Token(tx); err != nil {
				return errors.New("no token")
			}
			return take(tx, 42)
		},
		"NewDB": func(tx *gorm.DB) error { return take(tx.Session(&gorm.Session{NewDB: true}), 42) },
		"DB":    func(tx *gorm.DB) error { _, err := tx.DB(); return errors.Join(err, take(tx, 42)) },
	}
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 100)
		n := int64(100)
		for name, form := range forms {
			callers := []*caller{taker(42), {fn: form}, {fn: form}, taker(42)}
			together(t, db, l, callers...)
			for i, c := range callers {
				if c.err != nil {
					t.Errorf("%s: caller %d: %v", name, i, c.err)
				}
			}
			n -= 4
			wantLeft(t, db, 42, n)
		}
	})
}

// TestGrouped_NotWithWhoHasTheLock: who carries the lock runs under it, and does not wait for itself.
func TestGrouped_NotWithWhoHasTheLock(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		ok(t, "Do", l.Do(t.Context(), "k", func(ctx context.Context) error {
			return gormlock.Transaction(db.WithContext(ctx), "k", func(tx *gorm.DB) error { return take(tx, 42) }, gormlock.Grouped(8))
		}))
		wantLeft(t, db, 42, 9)
	})
}

// TestGrouped_Options: what is asked for is checked.
func TestGrouped_Options(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		fn := func(tx *gorm.DB) error { return take(tx, 42) }
		for _, n := range []int{-1, 0, 65} {
			if err := gormlock.Transaction(db, "k", fn, gormlock.Grouped(n)); err == nil {
				t.Errorf("Grouped(%d) was taken", n)
			}
		}
		for _, n := range []int{1, 2, 64} {
			ok(t, "Transaction", gormlock.Transaction(db, "k", fn, gormlock.Grouped(n)))
		}
		wantLeft(t, db, 42, 7)
		other := db.Session(&gorm.Session{})
		config := *db.Config
		config.Dialector = renamed{db.Dialector}
		other.Config = &config
		if err := gormlock.Transaction(other, "k", fn, gormlock.Grouped(2)); err == nil {
			t.Error("a database whose savepoints are not known was taken")
		}
	})
}

type renamed struct{ gorm.Dialector }

func (renamed) Name() string { return "other" }
