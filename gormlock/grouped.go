package gormlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onelane/onelane/core"
)

const (
	maxGroup  = 64
	groupOpen = 100 * time.Millisecond // nobody's turn begins later than this after BEGIN
	groupTime = 10 * time.Second       // a group that takes longer, from its lock to its COMMIT, is rolled back
)

var errGroupTime = errors.New("the group took too long")

// Grouped lets up to n (2 to 64) callers of this process that wait for the same key run in one database transaction,
// one after the other, each behind a savepoint of its own, with one COMMIT for all: the hot row is locked and written
// once for many. Each caller has its own result: its function's error rolls back to its savepoint and is returned at
// once; success is told when the COMMIT is done, and never without one.
//
// What ends the transaction ends it for all: a deadlock on MySQL or MariaDB, a broken connection, the loss of the lock
// or a COMMIT that is refused is the error of every caller of the group, nothing was written, and the functions are not
// run again. A COMMIT without an answer is [ErrCommitUnknown] for all of them, and so is a function that ends the
// transaction in the middle, by DDL on MySQL or MariaDB or a COMMIT of its own. A group takes its callers in for 100 ms,
// on MySQL, MariaDB and SQLite until one reads, and lasts 10 s at most.
//
// What belongs to a transaction belongs to the group: what SET LOCAL sets, temporary tables, cursors and locks stay for
// the functions that follow, a deferred constraint fails for all, and now() on PostgreSQL is the time of BEGIN. Where
// PostgreSQL's default is made another than READ COMMITTED, a function may read what was there before it was called.
//
// Within the function statements are not interrupted when a context ends, which would close the connection for all:
// contexts are looked at before each statement and at the end. A caller whose context ends while others run, after its
// function has succeeded, returns at once with [ErrCommitUnknown]. After an error of a statement other than a violated
// constraint or bad SQL, the function's later statements fail too, where the database does not see to that itself.
// While rows are open other statements are refused, but on SQLite; [SQLTx] is refused.
//
// WithWait bounds the time until the function is called: the error matches core.ErrTaken then or, where the group has the lock
// and waits for a connection, context.DeadlineExceeded. Grouped has no effect in an open transaction, nor where the
// context carries a lock on the key. On other databases than MySQL, MariaDB, PostgreSQL and SQLite it is an error.
//
// It pays where a COMMIT takes longer than a round trip to the database, as it does where it waits for a slow disk.
//
// The idea is group commit (DeWitt et al., "Implementation techniques for main memory database systems", 1984).
func Grouped(n int) TransactionOption {
	return transactionOption(func(g *guard) { g.group = new(groupOption(n)) })
}

type groupOption int

// size checks what was asked for; 1 is no group.
func (n *groupOption) size(dialect string) (int, error) {
	switch {
	case n == nil:
		return 1, nil
	case *n < 1 || *n > maxGroup:
		return 0, fmt.Errorf("Grouped(%d): it must be between 1 and %d", *n, maxGroup)
	case !slices.Contains([]string{"mysql", "postgres", "sqlite"}, dialect):
		return 0, fmt.Errorf("Grouped does not know the savepoints of %q: leave it out", dialect)
	}
	return int(*n), nil
}

// group is one database transaction for several callers.
type group struct {
	lines  *lines
	name   lineName
	line   *line
	demand demand
	open   time.Duration
	time   time.Duration
	base   context.Context
	cancel context.CancelCauseFunc

	t       *transaction
	ctx     context.Context // of its statements: ends with the lock, and after groupTime
	locks   core.Locks
	closing time.Time
	locked  bool        // lines.mu is held
	had     bool        // the lock and a transaction; lines.mu is held
	taken   int         // callers, so far
	more    atomic.Bool // another caller's turn is likely to come

	statements prepared

	mu        sync.Mutex
	savepoint bool      // stands, with nothing after it
	kept      int       // callers whose work is to be committed
	read      time.Time // the first time, after which others may have committed what no function sees any more
	doubtful  bool      // a statement since the savepoint may have ended the transaction
	err       error     // why nobody of them succeeds
	over      bool
	outcome   chan struct{} // closed when err is final
}

// lead takes the lock, lets the callers in one after the other, and commits. It is a goroutine of its own, as the
// context of any caller may end.
func (g *group) lead() {
	defer g.cancel(nil)
	if err := g.t.guard(g.base, g.demand); err != nil {
		g.refuse(err)
		return
	}
	g.lines.mu.Lock()
	g.locked = true
	g.lines.mu.Unlock()
	g.t.patience = defaultWait
	timer := time.AfterFunc(g.time, func() { g.cancel(fmt.Errorf("%w, more than %v", errGroupTime, g.time)) })
	defer timer.Stop()
	g.ctx, g.locks = g.t.carry(g.base), g.t.locks
	begun := g.mark() // before anybody is let in: who waits may leave while there is no connection
	g.closing = time.Now().Add(g.open)
	for s := g.admit(begun); s != nil; s = g.admit(nil) {
		g.run(s)
	}
	g.finish()
}

// run gives a caller its turn, and waits for its end.
func (g *group) run(s *turn) {
	if s.group = g; s.ctx.Err() != nil {
		s.ready <- guardError(g.demand.keys, &core.TakenError{Key: g.demand.keys[0], Cause: s.ctx.Err()})
		return
	}
	err := g.mark()
	s.ready <- err
	if err != nil {
		return
	}
	select {
	case <-s.ended:
	case <-g.ctx.Done():
		g.t.abort()
	}
}

// admit returns who is next. When the group takes nobody any more, those who wait get another. If it has not begun, one is
// to be told why.
func (g *group) admit(begun error) *turn {
	full := g.taken >= g.name.size || g.failed() != nil || !time.Now().Before(g.closing)
	if begun != nil {
		full = context.Cause(g.base) == errNobody // who waits came while the group was being ended
	}
	since := g.snapshot()
	g.lines.mu.Lock()
	defer g.lines.mu.Unlock()
	g.had = true
	if !full && len(g.line.waiting) > 0 && (since.IsZero() || g.line.waiting[0].came.Before(since)) {
		g.taken++
		s := g.line.shift()
		g.more.Store(g.taken < g.name.size && len(g.line.waiting) > 0)
		return s
	}
	g.pass()
	return nil
}

// pass gives the line to the next group; that waits for the lock behind this one. lines.mu is held.
func (g *group) pass() {
	g.line.next = nil
	if len(g.line.waiting) == 0 {
		delete(g.lines.all, g.name)
		return
	}
	g.lines.start(g.t.pool, g.name, g.line, g.demand)
}

// refuse tells all who wait that the lock was not had.
func (g *group) refuse(err error) {
	g.lines.mu.Lock()
	defer g.lines.mu.Unlock()
	if context.Cause(g.base) != errNobody { // else these came while the wait was being ended
		for len(g.line.waiting) > 0 {
			g.line.shift().ready <- err
		}
	}
	g.pass()
}

// failed says why nobody succeeds, if that is known already.
func (g *group) failed() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil && !g.over && g.ctx.Err() != nil {
		g.t.mu.Lock()
		g.err = g.t.usable()
		g.t.mu.Unlock()
		g.doubt()
	}
	return g.err
}

// finish commits and tells everybody.
func (g *group) finish() {
	err := g.failed()
	if err == nil && g.kept > 0 {
		err = g.t.Commit()
	} else {
		_ = g.t.Rollback()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err, g.over = err, true
	close(g.outcome)
}
