package gormlock_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

func column(name string) clause.Column { return clause.Column{Name: name} }

// wrappedPool is a pool that passes each transaction of database/sql through wrap.
type wrappedPool struct {
	*sql.DB
	wrap func(*sql.Tx) gorm.ConnPool
}

func (p *wrappedPool) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	tx, err := p.DB.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	return p.wrap(tx), nil
}

func (p *wrappedPool) GetDBConn() (*sql.DB, error) { return p.DB, nil }

// putUnder puts a pool below gorm's, which must be done before the plugin is registered.
func putUnder(db *gorm.DB, p gorm.ConnPool) {
	if prepared, ok := db.ConnPool.(*gorm.PreparedStmtDB); ok {
		prepared.ConnPool = p
	} else {
		db.ConnPool, db.Statement.ConnPool = p, p
	}
}

// wrapTx puts a pool with such transactions below gorm's.
func wrapTx(t testing.TB, db *gorm.DB, wrap func(*sql.Tx) gorm.ConnPool) {
	t.Helper()
	putUnder(db, &wrappedPool{pool(t, db), wrap})
}

// recordingTx notes what a transaction does.
type recordingTx struct {
	*sql.Tx
	journal *journal
}

func (t *recordingTx) Commit() error {
	err := t.Tx.Commit()
	if err == nil {
		t.journal.note("COMMIT")
	}
	return err
}

func (t *recordingTx) Rollback() error {
	err := t.Tx.Rollback()
	t.journal.note("ROLLBACK")
	return err
}

func (t *recordingTx) StmtContext(ctx context.Context, stmt *sql.Stmt) *sql.Stmt {
	t.journal.note("statement")
	return t.Tx.StmtContext(ctx, stmt)
}

func (t *recordingTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if query != "BEGIN" { // which only asks SQLite whether there is a transaction
		t.journal.note("%s", strings.TrimSuffix(strings.Fields(query)[0], "POINT"))
	}
	return t.Tx.ExecContext(ctx, query, args...)
}

func (t *recordingTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	t.journal.note("%s", strings.Fields(query)[0])
	return t.Tx.QueryContext(ctx, query, args...)
}

// recordPool notes what the transactions of a database do, BEGIN included.
func recordPool(t *testing.T, db *gorm.DB) *journal {
	t.Helper()
	j := &journal{}
	wrapTx(t, db, func(tx *sql.Tx) gorm.ConnPool {
		j.note("BEGIN")
		return &recordingTx{tx, j}
	})
	return j
}

// record does the same as recordPool, and registers the plugin.
func record(t *testing.T, db *gorm.DB) *journal {
	t.Helper()
	j := recordPool(t, db)
	ok(t, "Use", db.Use(gormlock.New(locker(t, j.backend(), core.WithPrefix("")))))
	return j
}

// TestOrder_LockBeginCommitUnlock is invariant I8, in the order of events.
func TestOrder_LockBeginCommitUnlock(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}))
		put(t, db, 42, 10)
		j := record(t, db)
		boom := errors.New("boom")
		scoped := db.Scopes(gormlock.Guard("stock:42"))
		session := scoped.Session(&gorm.Session{})
		good := []string{"lock stock:42", "BEGIN", "UPDATE", "COMMIT", "unlock stock:42"}
		bad := []string{"lock stock:42", "BEGIN", "UPDATE", "ROLLBACK", "unlock stock:42"}

		ok(t, "single", take(session, 42))
		j.want(t, "single statement", good...)
		if err := session.Exec("UPDATE nowhere SET x = 1").Error; err == nil {
			t.Fatal("Exec on a table that does not exist succeeded")
		}
		j.want(t, "single statement that fails", bad...)
		ok(t, "block", session.Transaction(func(tx *gorm.DB) error { return take(tx, 42) }))
		j.want(t, "block", good...)
		want(t, "block", session.Transaction(func(tx *gorm.DB) error { ok(t, "take", take(tx, 42)); return boom }), boom)
		j.want(t, "block that fails", bad...)
		tx := session.Begin()
		j.want(t, "Begin by hand")
		ok(t, "take", take(tx, 42))
		ok(t, "Commit", tx.Commit().Error)
		j.want(t, "by hand", good...)

		ok(t, "Transaction", gormlock.Transaction(db, "stock:42", func(tx *gorm.DB) error {
			j.want(t, "in Transaction, before a statement", "lock stock:42")
			return take(tx, 42)
		}))
		j.want(t, "Transaction", good[1:]...)
		tx = db.WithContext(gormlock.WithGuard(t.Context(), "b", "a")).Begin()
		j.want(t, "Begin WithGuard", "lock a", "lock b")
		ok(t, "Rollback", tx.Rollback().Error)
		j.want(t, "nothing was sent", "unlock b", "unlock a")

		ok(t, "unguarded", db.Transaction(func(tx *gorm.DB) error { return take(tx, 42) }))
		j.want(t, "unguarded", "BEGIN", "UPDATE", "COMMIT")
	})
}

// TestOrder_NoConnectionWhileLocking sees the same from outside, on the pools that users have. No
// connection is in use when the caller acquires or releases the lock. Others can see what was
// written before the key is free.
func TestOrder_NoConnectionWhileLocking(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		put(t, db, 42, 10)
		var seen []int64
		h := &hooked{Sealer: backendtest.Memory()}
		h.locked = func(string) {
			if n := inUse(t, db); n != 0 {
				t.Errorf("%d connections in use when the lock is had", n)
			}
		}
		h.unlock = func(string) {
			if n := inUse(t, db); n != 0 {
				t.Errorf("%d connections in use when the lock is released", n)
			}
			seen = append(seen, left(t, db, 42))
		}
		ok(t, "Use", db.Use(gormlock.New(locker(t, h))))
		ok(t, "single", take(db.Scopes(gormlock.Guard("stock:42")), 42))
		ok(t, "block", db.Scopes(gormlock.Guard("stock:42")).Transaction(func(tx *gorm.DB) error { return take(tx, 42) }))
		ok(t, "Transaction", gormlock.Transaction(db, "stock:42", func(tx *gorm.DB) error { return take(tx, 42) }))
		if len(seen) != 3 || seen[0] != 9 || seen[1] != 8 || seen[2] != 7 {
			t.Errorf("left when unlocked: %v, want [9 8 7]", seen)
		}
	})
}

// TestOrder_SkipDefaultTransaction: the guard brings its own transaction where GORM would not have one.
func TestOrder_SkipDefaultTransaction(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}))
		put(t, db, 42, 10)
		j := record(t, db)
		ok(t, "take", take(db.Scopes(gormlock.Guard("k")), 42))
		j.want(t, "guarded", "lock k", "BEGIN", "UPDATE", "COMMIT", "unlock k")
		ok(t, "take", take(db, 42))
		j.want(t, "unguarded")
	}, config(func(c *gorm.Config) { c.SkipDefaultTransaction = true }))
}
