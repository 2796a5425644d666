package gormlock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/onelane/onelane/internal/sqltable"
)

// Transaction runs fn in a transaction while it holds the lock on key: lock, BEGIN, fn, COMMIT,
// unlock.
//
//	err := gormlock.Transaction(db.WithContext(ctx), "stock:42", func(tx *gorm.DB) error { … })
//
// All of fn is under the lock, including what it does before its first statement. The context of tx
// carries the lock (see core.WithLock). It ends when the lock is lost, and with the Transaction.
// Transaction waits for the lock at most [WithWait] (5 s), or until db's context ends.
// [WithKeys] adds keys, [WithTxOptions] sets the isolation level, [WithRetry] runs fn again after a
// deadlock, and [AfterCommit] calls a function after COMMIT.
//
// The error is fn's, or that of BEGIN or COMMIT. If the lock is not acquired, the error is core's
// and fn is not called. If the lock is lost before COMMIT, the transaction is rolled back and the
// error matches core.ErrLost. If nobody can know whether COMMIT happened, it is [ErrCommitUnknown].
//
// In a transaction that is open already fn runs behind a savepoint, and the locks stay until the
// outermost COMMIT or ROLLBACK. A key that the transaction holds is not locked again. Another key
// is locked if the transaction holds none and has not sent a statement. Otherwise the error is
// [ErrGuardTooLate] and fn is not called; the outer transaction may go on and commit.
func Transaction(db *gorm.DB, key string, fn func(tx *gorm.DB) error, opts ...TransactionOption) error {
	g := guardWith(opts)
	if g.fingerprint != nil {
		g.err = errors.New("Fingerprint is an option of Once: omit it")
	}
	return g.transact(db, key, fn)
}

// transact is Transaction, and the transaction of Once.
func (g guard) transact(db *gorm.DB, key string, fn func(tx *gorm.DB) error) error {
	keys := append([]string{key}, g.more...)
	p, err := registered(db)
	if err = cmp.Or(err, g.err); err != nil {
		return guardError(keys, err)
	}
	ctx := db.Statement.Context
	d := p.complete(demandOf(ctx).and(keys, g.wait, g.fenced))
	if t, open := transactionOf(db.Statement.ConnPool); open {
		return g.nested(db, t, d, fn)
	}
	if db.Error != nil {
		return db.Error // GORM would begin, and never end it
	}
	tries := 0
	return sqltable.Repeat(ctx, 1+g.retries, repeatable, func() error {
		if tries++; tries > 1 {
			p.instruments().retries.Add(ctx, 1)
		}
		return p.outermost(db, d, g.tx, fn)
	})
}

// outermost runs fn in its own transaction. It does what GORM's Transaction does, with fewer copies
// of the statement.
func (p *plugin) outermost(db *gorm.DB, d demand, opts *sql.TxOptions, fn func(tx *gorm.DB) error) error {
	wrapped, err := p.WrapPool(db, db.Statement.ConnPool)
	if err != nil {
		return guardError(d.keys, err)
	}
	ctx, cancel := limited(db)
	defer cancel()
	t, err := poolOf(wrapped).start(ctx, opts, d)
	if err != nil {
		return err
	}
	defer func() { _ = t.Rollback() }() // if fn panics
	carried, _ := t.carry(db.Statement.Context)
	tx := session(carried, db)
	tx.Statement.ConnPool = t.in(wrapped)
	if err = fn(tx); err != nil {
		if !errors.Is(t.Rollback(), sql.ErrTxDone) { // otherwise fn committed by hand
			err = t.marked(err)
		}
	} else if err = t.Commit(); err != nil {
		err = db.Session(&gorm.Session{}).AddError(err) // translates it, if GORM is set to
	}
	return err
}

// session returns db with ctx. WithContext alone would keep the statement of a hook or of
// FindInBatches, because their db is a session with NewDB. GORM's Transaction drops that statement,
// and so does Clauses.
func session(ctx context.Context, db *gorm.DB) *gorm.DB { return db.Clauses().WithContext(ctx) }

// limited returns the context of a new transaction, which ends after DefaultTransactionTimeout.
func limited(db *gorm.DB) (context.Context, context.CancelFunc) {
	ctx := db.Statement.Context
	if _, ok := ctx.Deadline(); ok || db.DefaultTransactionTimeout <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, db.DefaultTransactionTimeout)
}

// nested runs fn behind a savepoint in t, the transaction that db is in; t is nil if it is not
// ours.
func (g guard) nested(db *gorm.DB, t *transaction, d demand, fn func(tx *gorm.DB) error) error {
	ctx := db.Statement.Context
	if t == nil {
		return guardError(d.keys, ErrUnmanagedTransaction)
	}
	if g.tx != nil && (t.opts == nil || *t.opts != *g.tx) {
		return guardError(d.keys, fmt.Errorf("WithTxOptions(%+v): the outermost transaction was begun with %+v, and cannot change: %w",
			*g.tx, t.opts, gorm.ErrInvalidTransaction))
	}
	if err := t.guard(ctx, d); err != nil {
		return err
	}
	carried, end := t.carry(ctx)
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		// If the context of open rows ends, MySQL's driver closes the connection. Then carried ends with t.
		if !t.readingLocked() {
			end(nil)
		}
	}()
	inner := session(carried, db)
	inner.DisableNestedTransaction = false // fn is behind a savepoint
	return inner.Transaction(fn)
}
