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
		p := &preparing{DB: pool(t, db)}
		db.ConnPool, db.Statement.ConnPool = p, p
		l := locker(t, backendtest.Memory())
		ok(t, "Use", db.Use(gormlock.New(l)))
		prepared := func(fn func(tx *gorm.DB) error) func(tx *gorm.DB) error {
			return func(tx *gorm.DB) error { return fn(tx.Session(&gorm.Session{PrepareStmt: true})) }
		}
		taking := prepared(func(tx *gorm.DB) error { return take(tx, 42) })
		a, b, c := &caller{fn: taking}, &caller{fn: taking}, &caller{fn: taking}
		together(t, db, l, a, b, c)
		ok(t, "take", errors.Join(a.err, b.err, c.err))
		if n := p.n.Load(); n != 1 {
			t.Errorf("one statement was prepared %d times", n)
		}
		p.n.Store(0)
		many := &caller{fn: prepared(func(tx *gorm.DB) (err error) {
			for i := range 80 {
				err = errors.Join(err, tx.Exec(fmt.Sprintf("UPDATE stocks SET name = ? WHERE sku = %d", i), "x").Error)
			}
			return errors.Join(err, take(tx, 42))
		})}
		together(t, db, l, many)
		ok(t, "many", many.err)
		if n := p.n.Load(); n != 64 {
			t.Errorf("of 81 statements %d were prepared", n)
		}
		wantLeft(t, db, 42, 996)
	})
}

// preparing is a pool that counts the statements which are prepared in transactions.
type preparing struct {
	*sql.DB
	n atomic.Int64
}

func (p *preparing) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	tx, err := p.DB.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	return &preparingTx{tx, p}, nil
}

func (p *preparing) GetDBConn() (*sql.DB, error) { return p.DB, nil }

type preparingTx struct {
	*sql.Tx
	pool *preparing
}

func (t *preparingTx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	t.pool.n.Add(1)
	return t.Tx.PrepareContext(ctx, query)
}
