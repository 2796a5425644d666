package gormlock

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// turn is one caller's part of a group. It is the gorm.Tx below the caller's transaction: it sees
// each statement begin and end, so that none runs in another caller's turn. Commit releases the
// savepoint, and await waits for the group's outcome.
type turn struct {
	ctx      context.Context // the caller's
	came     time.Time
	ready    chan error // has room for one: nil when the turn comes, or why it never does
	group    *group
	t        *transaction
	prepares atomic.Bool   // each statement is prepared once
	ended    chan struct{} // closed when its savepoint is decided

	mu      sync.Mutex
	running int           // statements
	idle    chan struct{} // closed when the last of them is back, after closed is set
	closed  bool          // no statement may run any more
	failed  error         // why only a rollback may follow
	rows    []*sql.Rows
	lost    error // why its rollback failed, which GORM does not return
}

func newTurn(ctx context.Context) *turn {
	return &turn{ctx: ctx, came: time.Now(), ready: make(chan error, 1), ended: make(chan struct{})}
}

// stop waits for the running statements, closes open rows, and lets no other statement run.
func (s *turn) stop() error {
	s.mu.Lock()
	s.closed = true
	if s.running > 0 {
		s.idle = make(chan struct{})
		s.mu.Unlock()
		<-s.idle // no later than the group's time
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	for _, r := range s.rows {
		_ = r.Close()
		_ = s.rowsClosed(r)
	}
	s.rows = nil
	return s.failed
}

// Commit implements gorm.TxCommitter for the transaction above. With nil nothing is committed yet:
// see await.
func (s *turn) Commit() error {
	err := s.stop()
	if err == nil {
		err = s.group.keep()
	} else if undone := s.group.undo(); undone != nil {
		err = undone
	}
	close(s.ended)
	return err
}

// Rollback implements gorm.TxCommitter for the transaction above.
func (s *turn) Rollback() error {
	_ = s.stop()
	err := s.group.undo()
	if errors.Is(err, ErrCommitUnknown) {
		s.lost = err
	}
	close(s.ended)
	return err
}

// commitInGroup ends the caller's turn and waits for the outcome of its group. It does so without
// t.mu: a goroutine that the function left behind must not wait for the group. t.mu is held.
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

// await returns the outcome of the group's COMMIT. If it is known, the caller's context does not
// matter.
func (s *turn) await() error {
	select {
	case <-s.group.outcome:
	case <-s.ctx.Done():
		if !s.group.decided() {
			return s.group.error("%w: the caller's context ended while its group was at work: %w",
				ErrCommitUnknown, s.ctx.Err())
		}
	}
	return s.group.err
}
