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
	if err := t.usableLocked(); err != nil {
		return err
	}
	var now demand
	if t.held != nil {
		now = t.held.demand
	}
	held := func(key string) bool { return slices.Contains(now.keys, key) }
	missing := slices.DeleteFunc(slices.Clone(d.keys), held)
	tooLate := func(keys []string, why string) error {
		return guardError(keys, fmt.Errorf("%w: the transaction %s", ErrGuardTooLate, why))
	}
	switch s := t.state(); {
	case len(missing) == 0 && d.fenced && !now.fenced && s == stateGuarded:
		return tooLate(d.keys, "has begun without a fence: put Fenced into the guard it begins with")
	case len(missing) == 0:
		t.held.demand.fenced = now.fenced || d.fenced
		return nil
	case s.holds():
		return tooLate(missing, "holds "+quoted(now.keys)+" already, and keys must be taken together: name them all where it begins")
	case s == statePlain:
		return tooLate(missing, "has begun, and may have read or locked already: guard its first statement, or use gormlock.Transaction")
	}
	err := t.lockLocked(statement, d)
	if err != nil {
		t.failLocked(err)
	}
	return err
}

// lockLocked acquires the keys under a context that lives as long as the transaction.
func (t *transaction) lockLocked(statement context.Context, d demand) error {
	locker, err := t.pool.plugin.lockerInUse()
	if err != nil {
		return guardError(d.keys, err)
	}
	if t.beside(d.keys) {
		return guardError(d.keys, fmt.Errorf(
			"%w: the context belongs to an open transaction that holds the key; use its tx, not db", core.ErrTaken))
	}
	h := new(heldLocks)
	t.held = h
	ctx, inTime := t.ctx, func() bool { return true }
	if statement.Done() != t.ctx.Done() {
		own, end := h.carried.with(t.ctx)
		ctx, inTime = own, context.AfterFunc(statement, func() { end(context.Cause(statement)) })
	}
	var opts []core.AcquireOption
	if d.fenced {
		opts = append(opts, core.WithToken())
	}
	h.locks, err = locker.AcquireAll(ctx, d.keys, append(opts, core.WithWait(d.wait))...)
	if ended := statement.Err(); !inTime() && !errors.Is(err, ended) {
		err = errors.Join(err, ended)
	}
	if err != nil {
		return guardError(d.keys, withoutOutcome(err))
	}
	h.demand = d
	for _, k := range h.locks {
		held := k.Context()
		h.watches = append(h.watches, context.AfterFunc(held, func() { t.abort(held) }))
	}
	t.moveLocked(eventLocked, nil)
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
			return slices.Contains(o.held.demand.keys, key) && t.pool.plugin.carries(t.ctx, key)
		}
		if o.guarded() && o.pool.shares(t.pool) && slices.ContainsFunc(keys, held) {
			return true
		}
		ctx = o.ctx
	}
}

// carry returns ctx with the locks in it. It ends with the transaction, and before that when a lock
// is lost or end is called.
func (t *transaction) carry(ctx context.Context) (_ context.Context, end context.CancelCauseFunc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ctx, end = t.held.carried.with(ctx)
	for _, k := range t.held.locks {
		ctx = core.WithLock(ctx, k)
	}
	return gormkeys.WithTransaction(ctx, t), end
}

// withLocks returns ctx with the locks in it that it does not carry yet. It ends with ctx.
func (t *transaction) withLocks(ctx context.Context) context.Context {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.held.locks {
		if !t.pool.plugin.carries(ctx, k.Key()) {
			ctx = core.WithLock(ctx, k)
		}
	}
	if gormkeys.TransactionOf(ctx) == t {
		return ctx
	}
	return gormkeys.WithTransaction(ctx, t)
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
	locks := t.held.locks
	t.mu.Unlock()
	if len(locks) != 1 {
		return 0, errManyLocks
	}
	return locks[0].Token(tx.Statement.Context)
}
