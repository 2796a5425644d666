package gormlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onelane/onelane/core"
)

const (
	maxGroup = 64
	// groupOpen is how long after BEGIN a group takes callers in.
	groupOpen = 100 * time.Millisecond
	// groupTime is how long a group may take from its lock to its COMMIT.
	groupTime = 10 * time.Second
)

var errGroupTime = errors.New("the group took too long")

// Grouped lets up to n (2 to 64) callers of this process that wait for the same key share one
// database transaction. The hot row is locked and written once for many. The callers run one after
// the other, each behind its own savepoint, and one COMMIT ends all. Each caller has its own
// result. An error of its function rolls back to its savepoint and is returned at once. Success is
// returned after the COMMIT, and never without one. Grouped pays if a COMMIT takes longer than a
// round trip to the database, as with a slow disk.
//
// An error that ends the transaction is the error of every caller in the group. It may be a
// deadlock on MySQL or MariaDB, a broken connection, the loss of the lock, or a refused COMMIT.
// Nothing was written then, and no function runs again unless [WithRetry] asks for it. A COMMIT
// without an answer is [ErrCommitUnknown] for all of them. The error is the same if a function ends
// the transaction in a way that the plugin does not see.
//
// A group takes callers in for 100 ms at most. After its first read on MySQL, MariaDB or SQLite, it
// takes in only callers that came before that read. A group lasts 10 s at most. WithWait bounds the
// time until the function is called. When that time is over, the error matches core.ErrTaken, also
// if the backend of the locks has not answered. It is context.DeadlineExceeded if the group has the
// lock and waits for a connection or its fence. core.WithMaxWaiters bounds how many callers wait
// for the same key.
//
// The state of the transaction is the group's: SET LOCAL, temporary tables, cursors and row locks
// stay for the functions that follow. A deferred constraint fails for all. now() on PostgreSQL is
// the time of BEGIN. If PostgreSQL's default isolation is not READ COMMITTED, a function may read
// what was there before it was called.
//
// In the function no statement is interrupted when a context ends, because that would close the
// connection for all. Contexts are checked before each statement and at the end. If a caller's
// context ends after its function succeeded and before the COMMIT, the error is [ErrCommitUnknown].
// After an error other than a violated constraint or bad SQL, later statements of the function fail
// too. While rows are open, other statements are refused, except on SQLite. [SQLTx] is refused.
//
// Grouped has no effect in an open transaction, or if the context carries a lock on the key. On
// databases other than MySQL, MariaDB, PostgreSQL and SQLite it is an error.
//
// The idea is group commit (DeWitt et al., "Implementation techniques for main memory database
// systems", 1984).
func Grouped(n int) TransactionOption {
	return transactionOption(func(g *guard) {
		g.group = n
		if n < 1 || n > maxGroup {
			g.err = fmt.Errorf("Grouped(%d): the size must be between 1 and %d", n, maxGroup)
		}
	})
}

// groupPhase is how far a group is until it takes no more callers.
type groupPhase int

const (
	groupLocks  groupPhase = iota // waits for the lock
	groupBegins                   // waits for a connection, or for its fence
	groupAdmits                   // gives callers their turns
)

// group is one database transaction for several callers. Its goroutine runs lead.
type group struct {
	queues *groupQueues
	key    queueKey
	queue  *queue
	phase  groupPhase // queues.mu is held
	demand demand
	open   time.Duration // see groupOpen
	limit  time.Duration // see groupTime
	base   groupContext
	cancel context.CancelCauseFunc

	t       *transaction
	ctx     context.Context // of its statements: ends with the lock, and after its time
	locks   core.Locks
	closing time.Time   // when it takes no more callers
	taken   int         // callers, so far
	more    atomic.Bool // another turn is likely to follow

	statements prepared

	mu        sync.Mutex
	savepoint bool          // stands, with nothing after it.
	kept      int           // callers whose work is to be committed.
	read      time.Time     // of the first read, if later turns do not see what others commit after it.
	doubtful  bool          // a statement since the savepoint may have ended the transaction
	err       error         // why no caller succeeds
	outcome   chan struct{} // closed when err is final
}

// groupContext ends with the cause as its error.
type groupContext struct{ context.Context }

func (c groupContext) Err() error {
	if c.Context.Err() == nil {
		return nil
	}
	return context.Cause(c.Context)
}

// lead acquires the lock, gives the callers their turns, and commits.
func (g *group) lead() {
	defer g.cancel(nil)
	asked := time.Now()
	if err := g.t.guard(g.base, g.demand); err != nil {
		g.refuse(err, asked)
		return
	}
	g.queues.mu.Lock()
	g.phase = groupBegins
	g.queues.mu.Unlock()
	g.t.patience = defaultWait
	timer := time.AfterFunc(g.limit, func() {
		g.cancel(fmt.Errorf("%w, more than %v", errGroupTime, g.limit))
	})
	defer timer.Stop()
	g.ctx, g.locks = g.t.carry(g.base), g.t.locks
	// The transaction begins before the first turn: a waiter may leave while there is no
	// connection.
	begun := g.mark()
	g.closing = time.Now().Add(g.open)
	for s := g.admit(begun); s != nil; s = g.admit(nil) {
		g.run(s)
	}
	g.finish()
}

// run gives a caller its turn and waits for its end.
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

// admit returns the next caller. If the group takes no more, the waiters get another group. If
// BEGIN failed, one caller is still admitted, to get the error.
func (g *group) admit(begun error) *turn {
	full := g.taken >= g.key.size || g.failed() != nil || !time.Now().Before(g.closing)
	if begun != nil {
		full = g.abandoned()
	}
	g.mu.Lock()
	read := g.read
	g.mu.Unlock()
	g.queues.mu.Lock()
	defer g.queues.mu.Unlock()
	g.phase = groupAdmits
	full = full || g.abandoned() // the last waiter has just left
	if !full && len(g.queue.waiting) > 0 && (read.IsZero() || g.queue.waiting[0].came.Before(read)) {
		g.taken++
		s := g.queue.shift()
		g.more.Store(g.taken < g.key.size && len(g.queue.waiting) > 0)
		return s
	}
	g.pass()
	return nil
}

// abandoned reports whether the group was ended because nobody waited. Those who wait now came
// later.
func (g *group) abandoned() bool { return g.base.Err() == errNobody }

// refuse returns err to the waiters: the lock was not acquired. Those who came after the lock was
// asked for get no old answer about a seal or an orphan: it may be gone.
func (g *group) refuse(err error, asked time.Time) {
	old := errors.Is(err, core.ErrSealed) || errors.Is(err, core.ErrOrphaned)
	g.queues.mu.Lock()
	defer g.queues.mu.Unlock()
	if !g.abandoned() {
		for len(g.queue.waiting) > 0 && !(old && g.queue.waiting[0].came.After(asked)) {
			g.queue.shift().ready <- err
		}
	}
	g.pass()
}

// pass gives the waiters to a new group, which waits for the lock behind this one. queues.mu is
// held.
func (g *group) pass() {
	g.queue.next = nil
	if len(g.queue.waiting) == 0 {
		delete(g.queues.all, g.key)
		return
	}
	g.queues.start(g.t.pool, g.key, g.queue, g.demand)
}

// failed returns why no caller succeeds, if that is known already.
func (g *group) failed() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil && !g.decided() && g.ctx.Err() != nil {
		g.t.mu.Lock()
		g.err = g.t.usable()
		g.t.mu.Unlock()
		g.doubt()
	}
	return g.err
}

// decided reports whether the outcome is known.
func (g *group) decided() bool {
	select {
	case <-g.outcome:
		return true
	default:
		return false
	}
}

// finish commits and publishes the outcome.
func (g *group) finish() {
	err := g.failed()
	if err == nil && g.kept > 0 {
		g.t.pool.plugin.instruments().group.Record(g.base, int64(g.kept))
		err = g.t.Commit()
	} else {
		if errors.Is(err, ErrCommitUnknown) { // a function ended the transaction
			g.t.pool.plugin.instruments().unknown.Add(g.base, 1)
		}
		_ = g.t.Rollback()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = err
	close(g.outcome)
}
