package gormlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/undone"
)

// transaction is a gorm.Tx that begins in the database when its first statement runs, after the
// locks of its guard. Without a guard it does what the *sql.Tx in it does.
type transaction struct {
	pool *pool
	ctx  context.Context
	opts *sql.TxOptions

	mu        sync.Mutex
	keys      []string // the guard's
	locks     core.Locks
	fenced    bool
	patience  time.Duration             // of the guard, for the locks and then for the fence.
	watch     []func() bool             // stop watching the locks.
	real      gorm.Tx                   // nil before BEGIN.
	interrupt func()                    // ends the context of real, under a guard.
	cancel    []context.CancelCauseFunc // of the contexts that live as long as the transaction.
	over      bool                      // nothing is open or locked any more.
	failed    error                     // why it was given up; its Rollback has nothing left to do then.
	gone      error                     // why MySQL rolled it back, without a guard.
	holds     atomic.Bool               // it has locks, for those who must not wait for mu.
	rows      []*sql.Rows               // handed out, whose errors only their reader sees.
	answer    error                     // the last error of its connection.
	undone    undoLog                   // what a rollback takes back, and COMMIT runs.
}

var _ gorm.ConnPoolBeginner = (*pool)(nil)

// transactionOf finds the transaction in a connection pool; open says that there is one, t is nil
// if it is not ours.
func transactionOf(c gorm.ConnPool) (t *transaction, open bool) {
	for {
		switch x := c.(type) {
		case *transaction:
			return x, x != nil
		case *gorm.PreparedStmtTX:
			c = x.Tx
		case *pool:
			return nil, false
		default:
			_, open := c.(gorm.TxCommitter)
			return nil, open
		}
	}
}

// usable returns why no statement may run any more. t.mu is held.
func (t *transaction) usable() error {
	switch {
	case t.failed != nil:
		return t.failed
	case t.over:
		return sql.ErrTxDone
	case len(t.locks) == 0:
		return nil // the *sql.Tx knows
	}
	for _, k := range t.locks {
		if err := k.Err(); err != nil {
			return undone.Mark(guardError(t.keys, fmt.Errorf("the transaction is rolled back: %w", err)))
		}
	}
	switch err := t.ctx.Err(); {
	case err != nil:
		return undone.Mark(guardError(t.keys, fmt.Errorf("the transaction is rolled back, as its context ended: %w", err)))
	}
	return nil
}

// guard locks what a statement, a block or Begin asks for; statement is its context. A guard that
// comes too late is an error of that statement alone: it is not sent, and the transaction is as it
// was. If a key is not acquired the transaction is given up, so that its later statements do not
// wait for the key again.
func (t *transaction) guard(statement context.Context, d demand) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usable(); err != nil {
		return err
	}
	held := func(key string) bool { return slices.Contains(t.keys, key) }
	switch missing := slices.DeleteFunc(slices.Clone(d.keys), held); {
	case len(missing) == 0 && d.fenced && !t.fenced && t.real != nil:
		return guardError(d.keys, fmt.Errorf("%w: the transaction has begun without a fence: put Fenced into the guard it begins with", ErrGuardTooLate))
	case len(missing) == 0:
		t.fenced = t.fenced || d.fenced
		return nil
	case len(t.locks) > 0:
		return guardError(missing, fmt.Errorf("%w: the transaction holds %s already, and keys must be taken together: name them all where it begins", ErrGuardTooLate, quoted(t.keys)))
	case t.real != nil:
		return guardError(missing, fmt.Errorf("%w: the transaction has begun, and may have read or locked already: guard its first statement, or use gormlock.Transaction", ErrGuardTooLate))
	}
	t.fenced, t.patience = d.fenced, d.wait
	err := t.lock(statement, d)
	if err != nil {
		t.fail(err)
	}
	return err
}

// lock acquires the keys under a context that lives as long as the transaction. t.mu is held.
func (t *transaction) lock(statement context.Context, d demand) error {
	locker, err := t.pool.plugin.lockerInUse()
	if err != nil {
		return guardError(d.keys, err)
	}
	if t.beside(d.keys) {
		return guardError(d.keys, fmt.Errorf(
			"%w: the context belongs to an open transaction that holds the key; use its tx, not db", core.ErrTaken))
	}
	ctx, inTime := t.ctx, func() bool { return true }
	if statement.Done() != t.ctx.Done() {
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(t.ctx)
		t.cancel = append(t.cancel, cancel)
		inTime = context.AfterFunc(statement, func() { cancel(context.Cause(statement)) })
	}
	var opts []core.AcquireOption
	if t.fenced {
		opts = append(opts, core.WithToken())
	}
	t.locks, err = t.pool.plugin.acquireAll(ctx, locker, d.keys, append(opts, core.WithWait(d.wait)))
	if ended := statement.Err(); !inTime() && !errors.Is(err, ended) {
		err = errors.Join(err, ended)
	}
	if err != nil {
		return guardError(d.keys, withoutOutcome(err))
	}
	t.keys = d.keys
	t.holds.Store(true)
	for _, k := range t.locks {
		t.watch = append(t.watch, context.AfterFunc(k.Context(), t.abort))
	}
	return nil
}

// conn is where a statement runs: the transaction in the database, begun if it has not been.
func (t *transaction) conn(statement context.Context) (gorm.Tx, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.stands(); err != nil {
		return nil, err
	}
	if t.real == nil {
		if err := t.begin(statement); err != nil {
			t.fail(err)
			return nil, err
		}
	}
	return t.real, nil
}

// PrepareContext implements gorm.ConnPool.
func (t *transaction) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	c, err := t.conn(ctx)
	if err != nil {
		return nil, err
	}
	stmt, err := c.PrepareContext(ctx, query)
	return stmt, t.answered(err)
}

// ExecContext implements gorm.ConnPool.
func (t *transaction) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	c, err := t.conn(ctx)
	if err != nil {
		return nil, err
	}
	done, err := c.ExecContext(ctx, query, args...)
	return done, t.answered(err)
}

// QueryContext implements gorm.ConnPool.
func (t *transaction) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	c, err := t.conn(ctx)
	if err != nil {
		return nil, err
	}
	t.tryValuers(args)
	rows, err := c.QueryContext(ctx, query, args...)
	return rows, t.answered(err)
}

// QueryRowContext implements gorm.ConnPool.
func (t *transaction) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	c, err := t.conn(ctx)
	if err != nil {
		return failedRow(err)
	}
	t.tryValuers(args)
	row := c.QueryRowContext(ctx, query, args...)
	_ = t.answered(row.Err())
	return row
}

// StmtContext implements gorm.Tx: where statements are prepared, a cached one comes here first.
func (t *transaction) StmtContext(ctx context.Context, stmt *sql.Stmt) *sql.Stmt {
	c, err := t.conn(ctx)
	if err != nil {
		return failedStmt(err)
	}
	return c.StmtContext(ctx, stmt)
}

// GetDBConn is what gorm's DB() calls.
func (t *transaction) GetDBConn() (*sql.DB, error) { return t.pool.GetDBConn() }
