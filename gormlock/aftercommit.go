package gormlock

import (
	"cmp"
	"context"
	"fmt"

	"gorm.io/gorm"
)

// AfterCommit calls fn once, when the COMMIT of tx's transaction is known to have happened:
//
//	err := gormlock.AfterCommit(tx, func(ctx context.Context) { cache.Delete(ctx, "order:7") })
//
// If the process dies after COMMIT, or COMMIT gets no answer ([ErrCommitUnknown]), fn is never
// called. If the COMMIT happened, a later call of [Once] returns the stored result and does not
// call fn either. So write an event that must not be lost into a row of the same transaction (an
// outbox).
//
// It works in every transaction of a database with the plugin, guarded or not. In a nested block fn
// waits for the outermost COMMIT. fn is not called after a rollback, or if GORM made a savepoint
// before AfterCommit and rolled back to it.
//
// The functions of a transaction are called in the order of their AfterCommit, by the goroutine
// that commits, before Commit and [Transaction] return. The locks are released before, so a
// function that hangs keeps nobody but its caller waiting. The next holder may be at work already:
// a function whose order matters compares fencing tokens, see [Token]. A panic undoes nothing. The
// other functions are called, and then the panic goes up to the caller.
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
	if err := cmp.Or(t.usableLocked(), t.gone); err != nil {
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
