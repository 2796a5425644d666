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
	if err := t.commit(); err != nil {
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

// commit sends COMMIT. The locks are released when the outcome is known, otherwise they end with
// their leases.
func (t *transaction) commit() (err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over && t.failed == nil {
		return sql.ErrTxDone // whoever ended it decides what becomes of t.undone
	}
	defer func() {
		if err != nil {
			t.undone.rolledBack("")
		}
	}()
	if len(t.locks) == 0 && t.failed == nil {
		return t.commitUnguarded()
	}
	t.closeRows()
	if err := t.stands(); err != nil {
		t.fail(err)
		return err
	}
	if t.real == nil {
		t.release()
		return nil
	}
	stop := context.AfterFunc(t.ctx, t.interrupt) // the driver may give up COMMIT when the context ends
	err = t.real.Commit()
	stop()
	if err == nil || rejected(t.real, err) {
		t.answer = err
		t.failed = t.rolledBackLocked(err)
		t.release()
		return t.failed
	}
	t.failed = t.unknown(err)
	for _, k := range t.locks {
		k.Lapse()
	}
	t.locks = nil
	t.release()
	return t.failed
}

func (t *transaction) commitUnguarded() error {
	switch {
	case t.real != nil:
		t.closeRows() // as COMMIT does
		_ = t.stands()
		t.over = true
		return t.real.Commit()
	case t.ctx.Err() != nil:
		return t.ctx.Err()
	}
	t.over = true
	return nil
}

// unknown returns the error of a COMMIT whose outcome is unknown, and counts it.
func (t *transaction) unknown(err error) error {
	t.pool.plugin.instruments().unknown.Add(t.ctx, 1)
	if ended := t.ctx.Err(); ended != nil && !errors.Is(err, ended) {
		err = fmt.Errorf("%w: %w", ended, err)
	}
	return guardError(t.keys, fmt.Errorf("%w; the key stays locked until its lease ends; "+
		"find out in a transaction with Fenced, or call Once again with its key: %w", ErrCommitUnknown, err))
}
