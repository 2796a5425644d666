package gormlock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
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
				tx.Exec("SAVEPOINT here;").Error, after(tx, "undone"),
				tx.Exec("/* back */ ROLLBACK TO SAVEPOINT HERE ;").Error, after(tx, "after"),
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
				after("after"), tx.Exec("RELEASE SAVEPOINT "+quote+"here"+quote).Error,
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
						after("undone, too"), tx.Exec("RELEASE "+release).Error,
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

// TestAfterCommit_SavepointComments: a comment behind a savepoint is not its name.
func TestAfterCommit_SavepointComments(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		quote := `"`
		if db.Name() == "mysql" {
			quote = "`"
		}
		odd := quote + "savepoint -- 1; to" + quote
		for name, statements := range map[string][]string{
			"line comment":    {"SAVEPOINT a -- the gift", "", "ROLLBACK TO SAVEPOINT a -- there is none"},
			"comment":         {"SAVEPOINT a /* the order */", "SAVEPOINT b /* the gift */", "ROLLBACK TO SAVEPOINT a /* all of it */"},
			"comment between": {"SAVEPOINT/**/a", "SAVEPOINT b", "ROLLBACK /* back */ TO /* a */ a/* to b */"},
			"keyword":         {"SAVEPOINT savepoint_1", "SAVEPOINT b", "ROLLBACK TO savepoint_1"},
			"quoted":          {"SAVEPOINT " + odd, "SAVEPOINT b", "ROLLBACK TO " + odd + " ; "},
			"release":         {"SAVEPOINT a", "SAVEPOINT b", "RELEASE SAVEPOINT b -- a", "ROLLBACK TO a"},
		} {
			var called []string
			ok(t, name, db.Transaction(func(tx *gorm.DB) error {
				after := func(name string) error {
					return gormlock.AfterCommit(tx, func(context.Context) { called = append(called, name) })
				}
				err := after("before")
				for _, statement := range statements {
					if statement != "" {
						err = errors.Join(err, tx.Exec(statement).Error)
					}
					if !strings.HasPrefix(statement, "ROLLBACK") {
						err = errors.Join(err, after("undone"))
					}
				}
				return errors.Join(err, after("after"))
			}))
			if !slices.Equal(called, []string{"before", "after"}) {
				t.Errorf("%s: called %q", name, called)
			}
		}
	})
}

// TestAfterCommit_SavepointByRaw: a statement that GORM sends as a query counts, too.
func TestAfterCommit_SavepointByRaw(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		for name, send := range map[string]func(tx *gorm.DB, query string) error{
			"Rows": func(tx *gorm.DB, query string) error {
				rows, err := tx.Raw(query).Rows()
				if err != nil {
					return err
				}
				return rows.Close()
			},
			"Scan": func(tx *gorm.DB, query string) error { return tx.Raw(query).Scan(&[]int{}).Error },
		} {
			var called []string
			ok(t, name, db.Transaction(func(tx *gorm.DB) error {
				after := func(name string) error {
					return gormlock.AfterCommit(tx, func(context.Context) { called = append(called, name) })
				}
				return errors.Join(
					after("before"), send(tx, "SAVEPOINT a"), after("undone"),
					send(tx, "ROLLBACK TO SAVEPOINT a"), after("after"),
				)
			}))
			if !slices.Equal(called, []string{"before", "after"}) {
				t.Errorf("%s: called %q", name, called)
			}
		}
	})
}
