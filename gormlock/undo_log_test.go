package gormlock_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// A database compares the names of savepoints without their case, and knows comments.
func TestAfterCommit_SavepointNames(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		put(t, db, 42, 1)
		var called []string
		after := func(tx *gorm.DB, name string) error {
			return gormlock.AfterCommit(tx, func(context.Context) { called = append(called, name) })
		}
		ok(t, "Transaction", db.Transaction(func(tx *gorm.DB) error {
			return errors.Join(
				tx.Model(&Stock{}).Where("sku = 42").Update("left", 2).Error, after(tx, "before"),
				unprepared(tx).Exec("SAVEPOINT here;").Error, after(tx, "undone"),
				unprepared(tx).Exec("/* back */ ROLLBACK TO SAVEPOINT HERE ;").Error, after(tx, "after"),
			)
		}))
		if len(called) != 2 || called[0] != "before" || called[1] != "after" {
			t.Errorf("called %q", called)
		}
	})
}

// A quoted name is the same as one without quotes.
func TestAfterCommit_QuotedSavepoint(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		quote := `"`
		if db.Name() == "mysql" {
			quote = "`"
		}
		var called []string
		ok(t, "Transaction", db.Transaction(func(tx *gorm.DB) error {
			after := func(name string) error {
				return gormlock.AfterCommit(tx, func(context.Context) { called = append(called, name) })
			}
			return errors.Join(
				after("before"), tx.SavePoint("here").Error,
				after("undone"), tx.RollbackTo(quote+"here"+quote).Error,
				after("after"), unprepared(tx).Exec("RELEASE SAVEPOINT "+quote+"here"+quote).Error,
			)
		}))
		if !slices.Equal(called, []string{"before", "after"}) {
			t.Errorf("called %q", called)
		}
	})
}

// A savepoint hides one of the same name until it, or one made before it, is released.
func TestAfterCommit_ReleasedSavepoint(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		if db.Name() == "mysql" {
			return // the second savepoint deletes the first
		}
		for _, release := range []string{"a", "b"} {
			for _, first := range []bool{false, true} {
				var called []string
				ok(t, "Transaction", db.Transaction(func(tx *gorm.DB) error {
					after := func(name string) error {
						return gormlock.AfterCommit(tx, func(context.Context) { called = append(called, name) })
					}
					var err error
					if first {
						err = after("before")
					}
					return errors.Join(
						err, tx.SavePoint("a").Error, tx.SavePoint("b").Error,
						after("undone"), tx.SavePoint("a").Error,
						after("undone, too"), unprepared(tx).Exec("RELEASE "+release).Error,
						tx.RollbackTo("a").Error, after("after"),
					)
				}))
				expected := []string{"before", "after"}
				if !first {
					expected = expected[1:]
				}
				if !slices.Equal(called, expected) {
					t.Errorf("%s is released: called %q, want %q", release, called, expected)
				}
			}
		}
	})
}
