package gormlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/onelane/onelane/core"
)

// commit sends COMMIT: the locks end when the outcome is known, or with their leases.
func (t *transaction) commit() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.locks) == 0 && t.failed == nil {
		return t.commitUnguarded()
	}
	if err := t.stands(); err != nil {
		if t.failed == nil && !t.over {
			t.fail(err)
		}
		return err
	}
	if t.real == nil {
		t.release()
		return nil
	}
	if t.turn != nil {
		return t.commitInGroup()
	}
	stop := context.AfterFunc(t.ctx, t.interrupt) // the driver may give COMMIT up when the context ends
	err := t.real.Commit()
	stop()
	switch {
	case err == nil:
		t.release()
		return nil
	case rejected(t.real, err):
		t.failed = err
		t.release()
		return err
	}
	t.failed = t.unknown(err)
	for _, k := range t.locks {
		k.Lapse()
	}
	t.locks = nil
	t.release()
	return t.failed
}

// commitInGroup ends the caller's turn and waits for the outcome of its group, without t.mu: what the function left
// behind must not wait for it. t.mu is held.
func (t *transaction) commitInGroup() error {
	err := t.real.Commit()
	t.release()
	if err == nil {
		t.mu.Unlock()
		err = t.turn.await()
		t.mu.Lock()
	}
	t.failed = err
	return err
}

func (t *transaction) commitUnguarded() error {
	switch {
	case t.real != nil:
		t.over = true
		return t.real.Commit()
	case t.over:
		return sql.ErrTxDone
	case t.ctx.Err() != nil:
		return t.ctx.Err()
	}
	t.over = true
	return nil
}

// unknown is the error of a COMMIT without an answer.
func (t *transaction) unknown(err error) error {
	if ended := t.ctx.Err(); ended != nil && !errors.Is(err, ended) {
		err = fmt.Errorf("%w: %w", ended, err)
	}
	return guardError(t.keys, fmt.Errorf("%w, the key stays locked until its lease runs out; read the data under a new guard to know: %w", ErrCommitUnknown, err))
}

// Rollback implements gorm.TxCommitter. After a transaction that was given up, or a Commit that failed, it does nothing
// and returns nil: GORM always calls it then, and a second error would hide the first from errors.Is.
func (t *transaction) Rollback() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.failed != nil:
		return nil
	case len(t.locks) == 0 && t.real != nil:
		t.over = true
		return t.real.Rollback()
	case t.over:
		return sql.ErrTxDone
	}
	return t.undo()
}

// explain adds to the error of a statement that the lock was lost, or the context ended, if that is not in it.
func (t *transaction) explain(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.keys) == 0 {
		return err
	}
	if t.failed == nil && !t.over && t.ended(err) {
		t.fail(guardError(t.keys, fmt.Errorf("the database has rolled the transaction back: %w", err)))
	}
	why := t.usable()
	for _, cause := range []error{errGroupTime, core.ErrLost, core.ErrClosed, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(why, cause) && !errors.Is(err, cause) {
			return fmt.Errorf("%w: %w", why, err)
		}
	}
	return err
}

// ended says whether the database ended the whole transaction with the statement that returned err: it would commit each
// later one by itself. SQLite does so when a write is interrupted, as by its context, when the disk is full and where a
// constraint or a trigger says ROLLBACK; only BEGIN shows it. t.mu is held.
func (t *transaction) ended(err error) bool {
	if t.turn != nil {
		return false // the turn has judged it, for the whole group
	}
	if t.real == nil || t.pool.dialect.name != "sqlite" {
		return gone(err)
	}
	_, begin := t.real.ExecContext(context.WithoutCancel(t.ctx), "BEGIN")
	return begin == nil
}

// hasRows says that a Row or Rows was handed out.
func (t *transaction) hasRows() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = true
}

// stands is usable where rows were handed out too: SQLite's driver runs the statement when they are read, so that what it ends
// the transaction with is in no callback. t.mu is held.
func (t *transaction) stands() error {
	err := t.usable()
	if err == nil && t.rows && len(t.locks) > 0 && t.pool.dialect.name == "sqlite" && t.ended(nil) {
		err = guardError(t.keys, errors.New("the database has rolled the transaction back: see the error of the rows that were read"))
		t.fail(err)
	}
	return err
}

// abort rolls back when the context has ended or a lock is lost.
func (t *transaction) abort() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return
	}
	if err := t.usable(); err != nil {
		t.fail(err)
	}
}

// fail gives the transaction up: it is rolled back and the locks are released. t.mu is held.
func (t *transaction) fail(err error) {
	t.failed = err
	if rollback := t.undo(); rollback != nil {
		t.pool.log.Warn(t.ctx, "gormlock: rolling back after %v: %v", err, rollback)
	}
}

// undo rolls back, then releases the locks. t.mu is held.
func (t *transaction) undo() error {
	var err error
	if t.real != nil {
		err = t.real.Rollback()
	}
	t.release()
	return err
}

// release ends the locks, which is the last thing a transaction does. t.mu is held.
func (t *transaction) release() {
	for _, stop := range t.watch {
		stop()
	}
	if t.turn == nil {
		t.seal()
		err := t.locks.Release(t.ctx)
		if err != nil && !errors.Is(err, core.ErrLost) { // a loss was told before COMMIT, or came after it
			t.pool.log.Warn(t.ctx, "gormlock: releasing %s, which is free when its lease runs out: %v", quoted(t.keys), err)
		}
	}
	for _, cancel := range t.cancel {
		cancel(t.failed)
	}
	t.over, t.watch, t.cancel = true, nil, nil
}
