package gormlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// TestGrouped_PreparesOnce: a group prepares a statement once for all turns, and no more than 64 of them.
func TestGrouped_PreparesOnce(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}))
		put(t, db, 42, 1000)
		var prepares atomic.Int64
		wrapTx(t, db, func(tx *sql.Tx) gorm.ConnPool { return &preparingTx{tx, &prepares} })
		l := locker(t, backendtest.Memory())
		ok(t, "Use", db.Use(gormlock.New(l)))
		prepared := func(fn func(tx *gorm.DB) error) func(tx *gorm.DB) error {
			return func(tx *gorm.DB) error { return fn(tx.Session(&gorm.Session{PrepareStmt: true})) }
		}
		taking := prepared(func(tx *gorm.DB) error { return take(tx, 42) })
		a, b, c := &caller{fn: taking}, &caller{fn: taking}, &caller{fn: taking}
		together(t, db, l, a, b, c)
		ok(t, "take", errors.Join(a.err, b.err, c.err))
		if n := prepares.Load(); n != 1 {
			t.Errorf("one statement was prepared %d times", n)
		}
		prepares.Store(0)
		many := &caller{fn: prepared(func(tx *gorm.DB) (err error) {
			for i := range 80 {
				err = errors.Join(err, tx.Exec(fmt.Sprintf("UPDATE stocks SET name = ? WHERE sku = %d", i), "x").Error)
			}
			return errors.Join(err, take(tx, 42))
		})}
		together(t, db, l, many)
		ok(t, "many", many.err)
		if n := prepares.Load(); n != 64 {
			t.Errorf("of 81 statements %d were prepared", n)
		}
		wantLeft(t, db, 42, 996)
	})
}

// preparingTx counts the statements that are prepared in it.
type preparingTx struct {
	*sql.Tx
	n *atomic.Int64
}

func (t *preparingTx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	t.n.Add(1)
	return t.Tx.PrepareContext(ctx, query)
}
