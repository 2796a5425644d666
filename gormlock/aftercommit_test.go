package gormlock_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// blocks are the ways to run a function in a transaction.
var blocks = map[string]func(db *gorm.DB, fn func(tx *gorm.DB) error) error{
	"Transaction": func(db *gorm.DB, fn func(tx *gorm.DB) error) error { return gormlock.Transaction(db, "k", fn) },
	"Guard": func(db *gorm.DB, fn func(tx *gorm.DB) error) error {
		return db.Scopes(gormlock.Guard("k")).Transaction(fn)
	},
	"WithGuard": func(db *gorm.DB, fn func(tx *gorm.DB) error) error {
		return db.WithContext(gormlock.WithGuard(db.Statement.Context, "k")).Transaction(fn)
	},
	"plain": func(db *gorm.DB, fn func(tx *gorm.DB) error) error { return db.Transaction(fn) },
	"by hand": func(db *gorm.DB, fn func(tx *gorm.DB) error) error {
		tx := db.Begin()
		if err := fn(tx); err != nil {
			return errors.Join(err, tx.Rollback().Error)
		}
		return tx.Commit().Error
	},
	"Once": func(db *gorm.DB, fn func(tx *gorm.DB) error) error {
		_, err := gormlock.Once(db.Statement.Context, db, "k", func(tx *gorm.DB) (int, error) { return 1, fn(tx) })
		return errors.Join(err, db.Exec("DELETE FROM onelane_once").Error) // so that the next one runs
	},
}

func TestAfterCommit(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 100)
		n := int64(100)
		for name, block := range blocks {
			j := &journal{}
			note := func(tx *gorm.DB, event string) {
				ok(t, "AfterCommit", gormlock.AfterCommit(tx, func(ctx context.Context) {
					j.note("%s", event)
					ok(t, name+": the context", ctx.Err())
					if got := left(t, db, 42); got != n || held(t, l, "k") {
						t.Errorf("%s: %d left, want %d; the key is held is %v", name, got, n, held(t, l, "k"))
					}
					ok(t, name+": a write in it", db.WithContext(ctx).Model(&Stock{}).Where("sku = 42").Update("name", event).Error)
				}))
			}
			n -= 3
			var ended *gorm.DB
			ok(t, name, block(db, func(tx *gorm.DB) error {
				ended = tx
				note(tx, "first")
				ok(t, "nested", tx.Transaction(func(tx *gorm.DB) error { note(tx, "nested"); return take(tx, 42) }))
				want(t, "undone", tx.Transaction(func(tx *gorm.DB) error {
					note(tx, "undone")
					ok(t, "nested", tx.Transaction(func(tx *gorm.DB) error { note(tx, "undone, nested"); return take(tx, 42) }))
					return boom
				}), boom)
				again := func(tx *gorm.DB) error { note(tx, "again"); return take(tx, 42) }
				if name == "plain" || name == "by hand" { // where the key comes too late
					ok(t, "nested again", tx.Transaction(again))
				} else {
					ok(t, "nested Transaction", gormlock.Transaction(tx, "k", again))
				}
				ok(t, "SavePoint", tx.SavePoint("a").Error)
				note(tx, "undone by hand")
				ok(t, "RollbackTo", tx.RollbackTo("a").Error)
				note(tx, "last")
				j.want(t, name+": before COMMIT")
				return take(tx, 42)
			}))
			j.want(t, name, "first", "nested", "again", "last")
			want(t, name+": after the end", gormlock.AfterCommit(ended, func(context.Context) {}), sql.ErrTxDone)
			want(t, name, block(db, func(tx *gorm.DB) error { note(tx, "rolled back"); ok(t, "take", take(tx, 42)); return boom }), boom)
			j.want(t, name+": after a rollback")
			eventually(t, "the key is free", func() bool { return !held(t, l, "k") })
			wantIdle(t, db, l)
		}
		want(t, "outside", gormlock.AfterCommit(db, func(context.Context) {}), gormlock.ErrNoTransaction)
	})
}

// TestAfterCommit_Panic: what is committed stays, and the other functions are called.
func TestAfterCommit_Panic(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 100)
		n := int64(100)
		for name, block := range blocks {
			var called []int
			func() {
				defer func() {
					if p := recover(); p != "boom" {
						t.Errorf("%s: recovered %v", name, p)
					}
				}()
				err := block(db, func(tx *gorm.DB) error {
					for i := range 3 {
						ok(t, "AfterCommit", gormlock.AfterCommit(tx, func(context.Context) {
							if called = append(called, i); i == 1 {
								panic("boom")
							}
						}))
					}
					return take(tx, 42)
				})
				t.Errorf("%s: it returned %v", name, err)
			}()
			if !slices.Equal(called, []int{0, 1, 2}) {
				t.Errorf("%s: called %v", name, called)
			}
			n--
			wantLeft(t, db, 42, n)
			wantIdle(t, db, l, "k")
			ok(t, "Delete", db.Exec("DELETE FROM onelane_once").Error)
		}
	})
}

// TestAfterCommit_InHook: a hook of a single statement, whose transaction is GORM's or the guard's.
func TestAfterCommit_InHook(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		called := 0
		ok(t, "Register", db.Callback().Create().After("gorm:create").Before("gorm:after_create").Register("hook", func(db *gorm.DB) {
			_ = db.AddError(gormlock.AfterCommit(db, func(context.Context) { called++ }))
		}))
		ok(t, "plain", db.Create(&Stock{SKU: 1}).Error)
		ok(t, "guarded", db.Scopes(gormlock.Guard("k")).Create(&Stock{SKU: 2}).Error)
		if err := db.Scopes(gormlock.Guard("k")).Create(&Stock{SKU: 2}).Error; err == nil {
			t.Error("two stocks have one SKU")
		}
		if called != 2 {
			t.Errorf("called %d times, want 2", called)
		}
		wantIdle(t, db, l, "k")
	})
}

// TestAfterCommit_RollbackTooLate: a rollback after COMMIT was answered undoes nothing. Nor does one by
// the end of the context, which comes with the end of the lock.
func TestAfterCommit_RollbackTooLate(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		var inBlock *gorm.DB
		late := make(chan error, 2)
		rollback := func() { late <- inBlock.Session(&gorm.Session{}).Rollback().Error }
		h := &hooked{Sealer: backendtest.Memory()}
		ok(t, "Use", db.Use(gormlock.New(locker(t, h))))
		ok(t, "AutoMigrate", db.AutoMigrate(&Account{}))
		for _, name := range []string{"Transaction", "Transaction by context"} {
			form, byContext := strings.CutSuffix(name, " by context")
			h.unlock = nil
			if !byContext {
				h.unlock = func(string) { // after COMMIT, before Transaction returns
					go rollback()
					time.Sleep(50 * time.Millisecond) // for the rollback; without it the test shows less
				}
			}
			a, called := Account{Name: name, Balance: 10}, 0
			ok(t, "Create", db.Create(&a).Error)
			ok(t, name, blocks[form](db, func(tx *gorm.DB) error {
				inBlock = tx
				if byContext {
					context.AfterFunc(tx.Statement.Context, rollback)
				}
				ok(t, "AfterCommit", gormlock.AfterCommit(tx, func(context.Context) { called++ }))
				return tx.Model(&a).Update("balance", 9).Error
			}))
			want(t, name+": the late Rollback", <-late, sql.ErrTxDone)
			if called != 1 {
				t.Errorf("%s: committed, and AfterCommit was called %d times, want 1", name, called)
			}
			wantVersion(t, name+": committed", a.Version, 2)
			wantRow(t, name, db, a.ID, 9, 2)
		}
	})
}

// Announced tells others, when it is committed, that it is there.
type Announced struct {
	ID   uint
	Name string `gorm:"size:64"`
	told *int
}

func (a *Announced) AfterCreate(tx *gorm.DB) error {
	return gormlock.AfterCommit(tx, func(context.Context) { *a.told++ })
}

// TestAfterCommit_DryRun: GORM runs the hooks of a dry run, which writes nothing that could be
// committed.
func TestAfterCommit_DryRun(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Announced{}))
		dry := func(db *gorm.DB, a *Announced) error {
			return db.Session(&gorm.Session{DryRun: true}).Create(a).Error
		}
		told := 0
		for name, write := range map[string]func() error{
			"single": func() error { return dry(db, &Announced{told: &told}) },
			"plain": func() error {
				return db.Transaction(func(tx *gorm.DB) error { return dry(tx, &Announced{told: &told}) })
			},
			"Transaction": func() error {
				return gormlock.Transaction(db, "k", func(tx *gorm.DB) error { return dry(tx, &Announced{told: &told}) })
			},
		} {
			if ok(t, name, write()); told != 0 {
				t.Errorf("%s: a row that was never written was announced %d times", name, told)
			}
			told = 0
		}
		var n int64
		ok(t, "Count", db.Model(&Announced{}).Count(&n).Error)
		ok(t, "Create", db.Create(&Announced{told: &told}).Error)
		if n != 0 || told != 1 {
			t.Errorf("%d rows after the dry runs, want 0; a real row was announced %d times, want 1", n, told)
		}
	})
}

// TestAfterCommit_PreparedRollback: to prepare a ROLLBACK TO is not to send it.
func TestAfterCommit_PreparedRollback(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		ran := 0
		ok(t, "Transaction", db.Transaction(func(tx *gorm.DB) error {
			ok(t, "SavePoint", tx.SavePoint("a").Error)
			ok(t, "AfterCommit", gormlock.AfterCommit(tx, func(context.Context) { ran++ }))
			stmt, err := tx.Statement.ConnPool.PrepareContext(t.Context(), "ROLLBACK TO SAVEPOINT a")
			if err == nil {
				err = stmt.Close()
			}
			return err
		}))
		if ran != 1 {
			t.Errorf("AfterCommit ran %d times", ran)
		}
	})
}
