package gormlock

import (
	"cmp"
	"context"
	"fmt"

	"gorm.io/gorm"
)

// AfterCommit calls fn once, when the COMMIT of tx's transaction is known to have happened:
//
//	err := gormlock.AfterCommit(tx, func(ctx context.Context) { events.Publish(ctx, "order paid") })
//
// It works in every transaction of a database with the plugin, guarded or not. In a nested block fn
// waits for the outermost COMMIT. fn is not called after a rollback, after [ErrCommitUnknown], or
// if GORM made a savepoint before AfterCommit and rolled back to it.
//
// The functions of a transaction are called in the order of their AfterCommit, by the goroutine
// that commits, before Commit and [Transaction] return. The locks are released before, so a
// function that hangs keeps nobody but its caller waiting. The next holder may be at work already:
// a function whose order matters compares fencing tokens, see [Token]. A panic undoes nothing. The
// other functions are called, and then the panic goes up to the caller.
//
// ctx is the context that the transaction began with, and guards nothing. The context of tx has
// ended by then. Outside a transaction the error of AfterCommit matches [ErrNoTransaction]. After
// the end of the transaction it matches sql.ErrTxDone.
func AfterCommit(tx *gorm.DB, fn func(ctx context.Context)) error {
	t, open := transactionOf(tx.Statement.ConnPool)
	switch {
	case !open:
		return fmt.Errorf("gormlock: AfterCommit: %w", ErrNoTransaction)
	case t == nil:
		return fmt.Errorf("gormlock: AfterCommit: %w", ErrUnmanagedTransaction)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := cmp.Or(t.usable(), t.gone); err != nil {
		return fmt.Errorf("gormlock: AfterCommit: %w", err)
	}
	t.undone.add(undoEntry{afterCommit: fn})
	return nil
}

// Commit implements gorm.TxCommitter. It calls the functions of AfterCommit when the locks are
// released.
func (t *transaction) Commit() error {
	if err := t.commit(); err != nil {
		t.undone.rolledBack("")
		return err
	}
	callAll(withoutGuards(t.ctx), t.undone.committed())
	return nil
}

// callAll calls the functions in order, also those after one that panics.
func callAll(ctx context.Context, all []func(ctx context.Context)) {
	if len(all) == 0 {
		return
	}
	defer callAll(ctx, all[1:])
	all[0](ctx)
}
