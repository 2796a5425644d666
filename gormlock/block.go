package gormlock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/gormkeys"
	"github.com/onelane/onelane/internal/sqltable"
)

const evaluateKey = "gormlock:evaluate" // in Statement.Settings: a DryRun that takes the locks

// Transaction runs fn in a transaction while it holds the lock on key: lock, BEGIN, fn, COMMIT,
// unlock.
//
//	err := gormlock.Transaction(db.WithContext(ctx), "stock:42", func(tx *gorm.DB) error { … })
//
// All of fn is under the lock, including what it does before its first statement. The context of tx
// carries the lock (see core.WithLock) and ends when the lock is lost. Transaction
// waits for it at most [WithWait] (5 s), or until db's context ends.
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

// outermost runs fn in a transaction of its own. It does what GORM's Transaction does, with fewer
// copies of the statement.
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
	tx := session(t.carry(db.Statement.Context), db)
	tx.Statement.ConnPool = t.in(wrapped)
	if err = fn(tx); err != nil {
		if !errors.Is(t.Rollback(), sql.ErrTxDone) { // otherwise fn committed by hand
			err = t.rolledBack(err)
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
	inner := session(t.carry(ctx), db)
	inner.DisableNestedTransaction = false // fn is behind a savepoint
	return inner.Transaction(fn)
}

// carry returns ctx with the locks in it. It ends with the transaction, and before that when a lock
// is lost.
func (t *transaction) carry(ctx context.Context) context.Context {
	t.mu.Lock()
	defer t.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	t.cancel = append(t.cancel, cancel)
	for _, k := range t.locks {
		held := k.Context()
		t.watch = append(t.watch, context.AfterFunc(held, func() { cancel(context.Cause(held)) }))
		ctx = core.WithLock(ctx, k)
	}
	return gormkeys.WithTransaction(ctx, t)
}

// withLocks returns ctx with the locks in it that it does not carry yet. It ends with ctx.
func (t *transaction) withLocks(ctx context.Context) context.Context {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.locks {
		if !t.pool.plugin.carries(ctx, []string{k.Key()}) {
			ctx = core.WithLock(ctx, k)
		}
	}
	if gormkeys.TransactionOf(ctx) == t {
		return ctx
	}
	return gormkeys.WithTransaction(ctx, t)
}

// beside reports whether t was begun with the context of another open transaction of its database
// that holds one of keys. t would commit by itself, under the lock that the other one relies on.
func (t *transaction) beside(keys []string) bool {
	for ctx := t.ctx; ; {
		o, _ := gormkeys.TransactionOf(ctx).(*transaction)
		if o == nil || o == t {
			return false
		}
		// If the caller took the lock out of its context (core.WithLock with nil), it waits for the lock.
		held := func(key string) bool {
			return slices.Contains(o.keys, key) && t.pool.plugin.carries(t.ctx, []string{key})
		}
		if o.holds.Load() && o.pool.shares(t.pool) && slices.ContainsFunc(keys, held) {
			return true
		}
		ctx = o.ctx
	}
}

// guarded reports whether a transaction holds locks; t may be nil.
func (t *transaction) guarded() bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.locks) > 0 && !t.over
}

var (
	errNoLock    = errors.New("gormlock: Token: no lock is held: call it inside a guarded transaction, after its first statement or in gormlock.Transaction")
	errManyLocks = errors.New("gormlock: Token: several keys are held, and each has a token of its own")
)

// Token returns the fencing token of the lock that tx is guarded with. The first call costs a round
// trip, unless the guard is [Fenced]; see core.Lock. Token returns an error before the lock is
// acquired, after the transaction, without a guard, and if several keys are held.
func Token(tx *gorm.DB) (uint64, error) {
	t, _ := transactionOf(tx.Statement.ConnPool)
	if !t.guarded() {
		return 0, errNoLock
	}
	t.mu.Lock()
	locks := t.locks
	t.mu.Unlock()
	if len(locks) != 1 {
		return 0, errManyLocks
	}
	return locks[0].Token(tx.Statement.Context)
}

// SQLTx returns the *sql.Tx of tx's transaction. With the plugin this is not tx.Statement.ConnPool.
// If no statement has begun the transaction, SQLTx takes the locks of tx's guards and begins it.
// This may block until tx's context ends. Do not commit the *sql.Tx or roll it back: use gorm for
// that. Without a transaction the error matches [ErrNoTransaction].
func SQLTx(tx *gorm.DB) (*sql.Tx, error) {
	t, open := transactionOf(tx.Statement.ConnPool)
	if !open {
		return nil, fmt.Errorf("gormlock: SQLTx: %w", ErrNoTransaction)
	}
	if t == nil {
		if plain, ok := tx.Statement.ConnPool.(*sql.Tx); ok {
			return plain, nil
		}
		return nil, fmt.Errorf("gormlock: SQLTx: %w", ErrUnmanagedTransaction)
	}
	// Only a statement's execution runs the scopes.
	if err := tx.Session(&gorm.Session{DryRun: true}).Set(evaluateKey, true).Exec("").Error; err != nil {
		return nil, err
	}
	real, err := t.conn(tx.Statement.Context)
	if err != nil {
		return nil, err
	}
	switch real := real.(type) {
	case *sql.Tx:
		return real, nil
	case *pinnedTx:
		return real.Tx, nil
	}
	return nil, fmt.Errorf("gormlock: SQLTx: the connection pool begins a %T, which is no *sql.Tx: %w", real, gorm.ErrInvalidTransaction)
}
