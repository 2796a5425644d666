package gormlock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"

	"gorm.io/gorm"
)

// Commit implements gorm.TxCommitter. It calls the functions of AfterCommit when the locks are
// released.
func (t *transaction) Commit() error {
	after, err := t.commit()
	if len(after) > 0 {
		callAll(withoutGuards(t.ctx), after)
	}
	return err
}

// callAll calls the functions in order, also those after one that panics.
func callAll(ctx context.Context, all []func(ctx context.Context)) {
	if len(all) == 0 {
		return
	}
	defer callAll(ctx, all[1:])
	all[0](ctx)
}

// commit returns the functions to call after COMMIT.
func (t *transaction) commit() ([]func(ctx context.Context), error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state().final() && t.cause == nil {
		return nil, sql.ErrTxDone // whoever ended it decides what becomes of t.undone
	}
	if err := t.commitLocked(); err != nil {
		t.undone.rolledBack("")
		return nil, err
	}
	return t.undone.committed(), nil
}

// commitLocked sends COMMIT if BEGIN was sent.
func (t *transaction) commitLocked() error {
	if t.guarded() || len(t.undone) > 0 {
		t.closeRowsLocked()
	}
	if err := t.standsLocked(); err != nil {
		t.failLocked(err)
		return err
	}
	switch t.state() {
	case stateIdle:
		if err := t.ctx.Err(); err != nil {
			return err
		}
	case statePlain:
		if err := t.real.Commit(); err != nil {
			t.moveLocked(eventRolledBack, nil)
			return err
		}
	case stateGuarded:
		return t.commitGuardedLocked()
	}
	t.moveLocked(eventCommitted, nil)
	return nil
}

// commitGuardedLocked sends COMMIT. The locks are released when the outcome is known, otherwise
// they end with their leases. Nobody knows it either if the driver panics.
func (t *transaction) commitGuardedLocked() error {
	panicked := true
	defer func() {
		if panicked {
			t.moveLocked(eventUnknown, t.unknownLocked(errors.New("the driver panicked")))
		}
	}()
	stop := context.AfterFunc(t.ctx, t.held.interrupt) // the driver may give up COMMIT when the context ends
	err := t.real.Commit()
	panicked = false
	stop()
	switch {
	case err == nil:
		t.moveLocked(eventCommitted, nil)
	case commitRejected(t.real, err):
		t.answer = err
		t.moveLocked(eventGivenUp, t.markedLocked(err))
	default:
		t.moveLocked(eventUnknown, t.unknownLocked(err))
	}
	return t.cause
}

// unknownLocked returns the error of a COMMIT whose outcome is unknown, and counts it.
func (t *transaction) unknownLocked(err error) error {
	t.pool.plugin.instruments().unknown.Add(t.ctx, 1)
	if ended := t.ctx.Err(); ended != nil && !errors.Is(err, ended) {
		err = fmt.Errorf("%w: %w", ended, err)
	}
	return guardError(t.held.demand.keys, fmt.Errorf("%w; the key stays locked until its lease ends; "+
		"find out in a transaction with Fenced, or call Once again with its key: %w", ErrCommitUnknown, err))
}

// AfterCommit calls fn once, when the COMMIT of tx's transaction is known to have happened:
//
//	err := gormlock.AfterCommit(tx, func(ctx context.Context) { cache.Delete(ctx, "order:7") })
//
// If the process dies after COMMIT, or COMMIT gets no answer ([ErrCommitUnknown]), fn is never
// called. So write an event that must not be lost into a row of the same transaction (an outbox).
//
// It works in every transaction of a database with the plugin, guarded or not. In a nested block fn
// waits for the outermost COMMIT. fn is not called after a rollback, or if GORM made a savepoint
// before AfterCommit and rolled back to it.
//
// The functions of a transaction are called in the order of their AfterCommit, by the goroutine
// that commits, before Commit and [Transaction] return. The locks are released before. So the next
// holder may be at work already: a function whose order matters compares fencing tokens, see
// [Token]. After a panic the other functions are called, and then it goes up to the caller.
//
// ctx is the context that the transaction began with, and guards nothing. The context of tx has
// ended by then. With DryRun nothing is written, and fn is not called. Outside a transaction the
// error of AfterCommit matches [ErrNoTransaction]. After the end of the transaction it matches
// sql.ErrTxDone.
func AfterCommit(tx *gorm.DB, fn func(ctx context.Context)) error {
	if tx.DryRun { // GORM runs hooks, too
		return nil
	}
	t, open := transactionOf(tx.Statement.ConnPool)
	switch {
	case !open:
		return fmt.Errorf("gormlock: AfterCommit: %w", ErrNoTransaction)
	case t == nil:
		return fmt.Errorf("gormlock: AfterCommit: %w", ErrUnmanagedTransaction)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := cmp.Or(t.standsLocked(), t.gone); err != nil {
		return fmt.Errorf("gormlock: AfterCommit: %w", err)
	}
	t.undone.add(undoEntry{afterCommit: fn})
	return nil
}

// OnRollback implements gormkeys.Transaction.
func (t *transaction) OnRollback(undo func(), needed func() bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.undone.add(undoEntry{onRollback: undo, needed: needed})
}
