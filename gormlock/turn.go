package gormlock

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"gorm.io/gorm"
)

// turn is one caller's part of a group: the gorm.Tx below its transaction, where COMMIT releases the savepoint and waits
// for the group's outcome.
type turn struct {
	ctx   context.Context // the caller's
	came  time.Time
	ready chan error // has room for one: its turn has come, or why it never does
	group *group
	t     *transaction
	ended chan struct{} // closed when its savepoint is decided

	mu      sync.Mutex
	running int           // statements
	idle    chan struct{} // closed when the last of them is back, once over is set
	over    bool          // no statement may run any more
	failed  error         // why none may run but a rollback
	rows    []*sql.Rows
	lost    error // what the function does not know of: why its rollback did not work
}

func newTurn(ctx context.Context) *turn {
	return &turn{ctx: ctx, came: time.Now(), ready: make(chan error, 1), ended: make(chan struct{})}
}

// savepoint has a name that no function of a turn can hit, by chance or because it read it here.
var savepoint = "onelane_" + strings.ToLower(rand.Text()[:16])

// mark makes the savepoint of the next turn, if the last one's is not still good.
func (g *group) mark() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.savepoint {
		return nil
	}
	if _, err := g.t.ExecContext(g.ctx, makeSavepoint); err != nil {
		return g.fail(err)
	}
	g.savepoint = true
	return nil
}

// keep ends a turn whose work is to be committed.
func (g *group) keep() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.savepoint = false
	err := g.release()
	switch {
	case err == nil:
		g.kept++
		g.doubtful = false
		return nil
	case aborted(err):
		err = guardError(g.demand.keys, fmt.Errorf("a statement failed and its error was not returned: %w", err))
		if undone := g.undoLocked(); undone != nil {
			return undone
		}
		return err
	}
	return g.fail(err)
}

var (
	releaseSavepoint = "RELEASE SAVEPOINT " + savepoint
	makeSavepoint    = "SAVEPOINT " + savepoint
)

// release releases the savepoint, which fails if the transaction is not what it was. Where another turn is to follow and the
// database can do it, its savepoint is made on the same way. g.mu is held.
func (g *group) release() error {
	both := ""
	switch p := g.t.pool; {
	case !g.more.Load() || p.oneByOne.Load():
	case p.dialect.name == "postgres":
		both = releaseSavepoint + "; " + makeSavepoint
	case p.dialect.name == "mysql": // only MariaDB knows it; MySQL does nothing but say so
		both = "BEGIN NOT ATOMIC " + releaseSavepoint + "; " + makeSavepoint + "; END"
	}
	if both != "" {
		_, err := g.t.ExecContext(g.ctx, both)
		if err == nil {
			g.savepoint = true
			return nil
		}
		number, ok := mysqlNumber(err)
		switch {
		case !ok || number == 1305:
			return err
		case slices.Contains(mysqlInterrupted, number):
			if _, again := g.t.ExecContext(g.ctx, releaseSavepoint); !noSavepoint(again) {
				return again
			}
			return err // the block had come so far
		}
		g.t.pool.oneByOne.Store(true)
	}
	_, err := g.t.ExecContext(g.ctx, releaseSavepoint)
	return err
}

// undo ends a turn whose work is taken back. Once the group has failed nothing more is sent.
func (g *group) undo() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.undoLocked()
}

func (g *group) undoLocked() error {
	if g.err != nil {
		return g.err
	}
	if _, err := g.t.ExecContext(g.ctx, "ROLLBACK TO SAVEPOINT "+savepoint); err != nil {
		return g.fail(err)
	}
	g.savepoint, g.doubtful = true, false // it still stands
	return nil
}

// fail ends the group because of err, and says so. g.mu is held.
func (g *group) fail(err error) error {
	switch {
	case g.err != nil:
	case noSavepoint(err):
		g.err = guardError(g.demand.keys, fmt.Errorf("%w: a function of the group ended its transaction, by DDL or by a COMMIT or ROLLBACK of its own: %w", ErrCommitUnknown, err))
	case g.ctx.Err() != nil:
		g.err = g.t.explain(err)
	default:
		g.err = guardError(g.demand.keys, fmt.Errorf("the transaction of the group is rolled back: %w", err))
	}
	g.doubt()
	return g.err
}

// doubt makes of a failure one that is not known, when a statement of the turn may have committed. g.mu is held.
func (g *group) doubt() {
	if g.err != nil && g.doubtful && !errors.Is(g.err, ErrCommitUnknown) {
		g.err = guardError(g.demand.keys, fmt.Errorf("%w: a function of the group may have ended its transaction, by DDL or a COMMIT of its own: %w", ErrCommitUnknown, g.err))
	}
}

// stop waits for the statements that are under way, closes what is open, and lets no other run.
func (s *turn) stop() error {
	s.mu.Lock()
	s.over = true
	if s.running > 0 {
		s.idle = make(chan struct{})
		s.mu.Unlock()
		<-s.idle // no later than the group's time
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	for _, r := range s.rows {
		_ = r.Close()
		_ = s.closed(r)
	}
	s.rows = nil
	return s.failed
}

// Commit implements gorm.TxCommitter for the transaction above. With nil nothing is committed yet: see await.
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

// await returns the outcome of the group's COMMIT.
func (s *turn) await() error {
	select {
	case <-s.group.outcome:
		return s.group.err
	case <-s.ctx.Done():
		select {
		case <-s.group.outcome:
			return s.group.err
		default:
		}
		return guardError(s.group.demand.keys, fmt.Errorf("%w: the caller's context ended while its group was at work: %w", ErrCommitUnknown, s.ctx.Err()))
	}
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

// within is a context with the end of one and the values of another.
type within struct {
	context.Context
	values context.Context
}

func (c within) Value(key any) any { return c.values.Value(key) }

// gorm.Tx wants these; [tracked], which is above, does not come here.

func (s *turn) PrepareContext(context.Context, string) (*sql.Stmt, error) {
	return nil, errPrepareInGroup
}

func (s *turn) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return s.group.t.ExecContext(ctx, query, args...)
}

func (s *turn) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return s.group.t.QueryContext(ctx, query, args...)
}

func (s *turn) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return s.group.t.QueryRowContext(ctx, query, args...)
}

func (s *turn) StmtContext(context.Context, *sql.Stmt) *sql.Stmt {
	return failedStmt(errPrepareInGroup)
}

var _ gorm.Tx = (*turn)(nil)
