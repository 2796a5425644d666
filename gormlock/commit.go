package gormlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// Commit implements gorm.TxCommitter. It calls the functions of AfterCommit when the locks are
// released.
func (t *transaction) Commit() error {
	after, err := t.commit()
	callAll(withoutGuards(t.ctx), after)
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
	t.closeRowsLocked()
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
	stop := context.AfterFunc(t.ctx, t.interrupt) // the driver may give up COMMIT when the context ends
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
	return guardError(t.demand.keys, fmt.Errorf("%w; the key stays locked until its lease ends; "+
		"find out in a transaction with Fenced, or call Once again with its key: %w", ErrCommitUnknown, err))
}
