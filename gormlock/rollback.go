package gormlock

import (
	"context"
	"database/sql"
	"time"

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
	s := t.state()
	if s != stateCommitted { // who committed runs the functions of AfterCommit
		t.undone.rolledBack("")
	}
	switch {
	case t.cause != nil:
		return nil
	case s.final() && (t.real == nil || t.held != nil && len(t.held.locks) > 0):
		return sql.ErrTxDone
	}
	return t.rollbackLocked(eventRolledBack, nil) // if it ended without locks, the *sql.Tx answers
}

// rollbackLocked sends ROLLBACK if BEGIN was sent. The locks are released after its answer.
func (t *transaction) rollbackLocked(e event, cause error) (err error) {
	if t.real != nil {
		if t.held != nil && t.held.interrupt != nil { // pgx gives up ROLLBACK then
			defer time.AfterFunc(rollbackTime, t.held.interrupt).Stop()
		}
		err = t.real.Rollback()
	}
	t.moveLocked(e, cause)
	return err
}

// failLocked gives the transaction up, unless it has ended.
func (t *transaction) failLocked(err error) {
	if t.state().final() {
		return
	}
	if rollback := t.rollbackLocked(eventGivenUp, undone.Mark(err)); rollback != nil {
		t.pool.log.Warn(t.ctx, "gormlock: the rollback after the error (%v) failed: %v", err, rollback)
	}
}

// GiveUp is failLocked for those who do not hold t.mu. Package stock calls it, too.
func (t *transaction) GiveUp(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failLocked(err)
}

// abort rolls back when a lock ended, because it was lost or because the context ended. ROLLBACK
// would wait for a statement that runs, so the contexts end before.
func (t *transaction) abort(lock context.Context) {
	t.held.carried.end(context.Cause(lock))
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usableLocked(); err != nil {
		t.failLocked(err)
	}
}
