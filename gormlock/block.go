package gormlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
)

const evaluateKey = "gormlock:evaluate" // in Statement.Settings: a DryRun that takes the locks

// Transaction runs fn in a transaction while it holds the lock on key, which is taken as it is: lock, BEGIN, fn, COMMIT,
// unlock. All of fn is under the lock, also what it does before its first statement. The context of tx carries the lock
// (see core.WithLock) and ends when it is lost. It waits for the key at most [WithWait] (5 s), or until db's context ends.
//
// The error is fn's, or that of BEGIN or COMMIT; core's where the key was not had, and fn is not called then;
// [ErrCommitUnknown]. If the lock is lost before COMMIT, the transaction is rolled back and the error matches
// core.ErrLost. In a transaction that is open already fn runs behind a savepoint, and the key must be one that it
// holds, unless it has not begun: [ErrGuardTooLate].
//
// For several keys, or sql.TxOptions, call db.WithContext(WithGuard(ctx, keys...)).Transaction(fn, opts).
func Transaction(db *gorm.DB, key string, fn func(tx *gorm.DB) error, opts ...TransactionOption) error {
	var g guard
	for _, o := range opts {
		if o != nil {
			o.applyTransaction(&g)
		}
	}
	p, err := registered(db)
	if err == nil {
		err = g.err
	}
	if err != nil {
		return guardError([]string{key}, err)
	}
	ctx := db.Statement.Context
	d := demandOf(ctx).and([]string{key}, g.wait, g.fenced).orDefault()
	if d.group, err = g.group.size(db.Name()); err != nil {
		return guardError(d.keys, err)
	}
	if d.reopen = g.reopen; d.reopen {
		d.group = 1
	}
	if t, open := transactionOf(db.Statement.ConnPool); open {
		if t == nil {
			return guardError(d.keys, ErrUnmanagedTransaction)
		}
		if err := t.guard(ctx, d); err != nil {
			return err
		}
		return db.Transaction(fn)
	}
	if db.Error != nil {
		return db.Error // GORM would begin, and never end it
	}
	wrapped, err := p.wrap(db, db.Statement.ConnPool)
	if err != nil {
		return guardError(d.keys, err)
	}
	// A key that is sealed, or not had, is not worth what GORM makes for a transaction.
	if inner := poolOf(wrapped); inner != nil && d.group <= 1 && db.DefaultTransactionTimeout == 0 {
		t := &transaction{pool: inner, ctx: ctx}
		err = t.guard(ctx, d)
		defer func() { _ = t.Rollback() }() // ends it where GORM has not
		wrapped = t.open(wrapped)
	} else {
		if !d.reopen {
			err = p.remembered(ctx, d.keys)
		}
	}
	if err != nil {
		return err
	}
	session := db.WithContext(context.WithValue(ctx, demandKey{}, d))
	session.Statement.ConnPool = wrapped
	return runBlock(ctx, session, fn)
}

// runBlock runs fn in the transaction that session begins. What fn gets has ctx with the locks in it, not what session begins with.
func runBlock(ctx context.Context, session *gorm.DB, fn func(tx *gorm.DB) error) error {
	var inGroup *turn
	err := session.Transaction(func(tx *gorm.DB) error {
		t, _ := transactionOf(tx.Statement.ConnPool)
		tx = tx.WithContext(t.carry(ctx))
		if inGroup = t.turn; inGroup != nil {
			tx.Statement.ConnPool = newTurnConn(inGroup, tx.Statement.ConnPool)
		}
		return fn(tx)
	})
	if err != nil && inGroup != nil && inGroup.lost != nil {
		err = errors.Join(err, inGroup.lost)
	}
	return err
}

// carry returns ctx with the locks in it, which ends when the first of them does.
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
	return ctx
}

// guarded says whether a transaction holds locks; t may be nil.
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
// trip, unless the guard is [Fenced]; see core.Lock. It is an error before the lock is acquired,
// after the transaction, without a guard, and if several keys are held.
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

// SQLTx returns the *sql.Tx of the transaction that tx is in, which with the plugin is not tx.Statement.ConnPool. It
// takes the locks of tx's guards and begins the transaction if no statement has, which may block until tx's context
// ends. Do not commit it or roll it back: that goes by gorm. Without a transaction the error matches [ErrNoTransaction].
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
	if t.turn != nil {
		return nil, guardError(t.keys, errors.New("SQLTx: in a group the transaction is not this caller's alone"))
	}
	switch real := real.(type) {
	case *sql.Tx:
		return real, nil
	case *pinnedTx:
		return real.Tx, nil
	}
	return nil, fmt.Errorf("gormlock: SQLTx: the connection pool begins a %T, which is no *sql.Tx: %w", real, gorm.ErrInvalidTransaction)
}
