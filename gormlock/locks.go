package gormlock

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/gormkeys"
)

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
