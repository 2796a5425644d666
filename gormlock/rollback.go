package gormlock

import (
	"database/sql"
	"errors"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/undone"
)

// rollbackTime is how long a guarded ROLLBACK waits for its answer. Without a COMMIT nothing is
// written, whatever becomes of it.
const rollbackTime = 5 * time.Second

// Rollback implements gorm.TxCommitter. It does nothing and returns nil if the transaction was
// given up or Commit failed. GORM always calls it then, and a second error would hide the first
// one.
func (t *transaction) Rollback() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.over || t.failed != nil {
		t.undone.rolledBack("")
	}
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

// abort rolls back if the context ended or a lock is lost.
func (t *transaction) abort() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usable(); err != nil {
		t.fail(err)
	}
}

// GiveUp is fail, for those who do not hold t.mu. Package stock calls it, too.
func (t *transaction) GiveUp(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fail(err)
}

// fail gives the transaction up, unless it is over: it rolls back and releases the locks. t.mu is
// held.
func (t *transaction) fail(err error) {
	if t.over {
		return
	}
	t.failed = undone.Mark(err)
	if rollback := t.undo(); rollback != nil {
		t.pool.log.Warn(t.ctx, "gormlock: the rollback after the error (%v) failed: %v", err, rollback)
	}
}

// undo rolls back, then releases the locks. t.mu is held.
func (t *transaction) undo() error {
	var err error
	if t.real != nil {
		if t.interrupt != nil { // pgx gives up ROLLBACK then
			defer time.AfterFunc(rollbackTime, t.interrupt).Stop()
		}
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
	err := t.locks.Release(t.ctx)
	// A loss was reported before COMMIT, or came after it.
	if err != nil && !errors.Is(err, core.ErrLost) {
		t.pool.log.Warn(t.ctx, "gormlock: the lock on %s was not released; its key is free when its lease ends: %v",
			quoted(t.keys), err)
	}
	for _, cancel := range t.cancel {
		cancel(t.failed)
	}
	t.over, t.watch, t.cancel = true, nil, nil
	t.holds.Store(false)
}
