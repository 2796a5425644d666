package gormlock_test

import (
	"context"
	"database/sql"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// barePool is a pool whose transactions are a gorm.TxCommitter, which is enough for GORM, and no
// gorm.Tx.
type barePool struct{ *sql.DB }

func (p barePool) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	tx, err := p.DB.BeginTx(ctx, opts)
	return &bareTx{tx, tx}, err
}

type bareTx struct {
	gorm.ConnPool
	tx *sql.Tx
}

func (t *bareTx) Commit() error   { return t.tx.Commit() }
func (t *bareTx) Rollback() error { return t.tx.Rollback() }

// TestBegin_NotATx: a transaction that the plugin cannot use gives its connection back.
func TestBegin_NotATx(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		conns := pool(t, db)
		db.ConnPool, db.Statement.ConnPool = barePool{conns}, barePool{conns}
		ok(t, "Use", db.Use(gormlock.New(locker(t, backendtest.Memory()))))
		for range 3 {
			// A context that never ends: database/sql rolls back by itself when one ends.
			err := db.WithContext(context.Background()).Transaction(func(tx *gorm.DB) error { return tx.Exec("SELECT 1").Error })
			want(t, "Transaction", err, gorm.ErrInvalidTransaction)
		}
		if n := conns.Stats().InUse; n != 0 {
			t.Errorf("%d connections are in use, of transactions that nobody has", n)
		}
	})
}

// taggedPool and meteredPool are wrappers without pointers. Two meteredPools have a type that can
// be compared, and cannot be compared, because of what is in them.
type taggedPool struct {
	*sql.DB
	tags []string
}

type meteredPool struct{ gorm.ConnPool }

func (p meteredPool) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	return p.ConnPool.(gorm.TxBeginner).BeginTx(ctx, opts)
}

// TestPool_NotComparable: a pool of any type works.
func TestPool_NotComparable(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
		put(t, db, 42, 10)
		p := meteredPool{taggedPool{DB: pool(t, db), tags: []string{"shop"}}}
		db.ConnPool, db.Statement.ConnPool = p, p
		ok(t, "Use", db.Use(gormlock.New(locker(t, backendtest.Memory()))))
		sell := func(tx *gorm.DB) error { return take(tx, 42) }
		ok(t, "Transaction", gormlock.Transaction(db, "k", sell))
		ok(t, "in another one", gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
			return gormlock.Transaction(db.WithContext(tx.Statement.Context), "other", func(*gorm.DB) error { return nil })
		}))
		wantLeft(t, db, 42, 9)
	})
}
