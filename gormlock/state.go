package gormlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/undone"
)

// transaction begins in the database when its first statement runs, after the locks of its guard.
// Without a guard it does what the *sql.Tx in it does.
//
// mu guards the fields below it. It stays locked while a method waits for the locks or for the
// database. Methods whose names end in Locked need it. Order of mutexes: mu, then those of carried
// and of core.
type transaction struct {
	pool   *pool
	ctx    context.Context
	opts   *sql.TxOptions
	direct connection // of statements that are not prepared
	single *singleTx  // Nil unless it was begun for one guarded statement.

	mu    sync.Mutex
	now   atomic.Int32 // The state. Only moveLocked writes it; state reads it without mu.
	cause error        // Of stateFailed and stateUnknown.
	held  *heldLocks   // Nil without a guard.

	real   gorm.Tx     // Nil before BEGIN.
	rows   []*sql.Rows // Only their reader sees their errors.
	answer error       // The last error of its connection.
	gone   error       // Why MySQL rolled it back, in statePlain.
	undone undoLog     // A rollback takes it back, and COMMIT runs it.
}

// heldLocks are the locks of a transaction, and what ends with them. Transactions without a guard
// have none, so that they stay small. It is there before the locks are acquired.
type heldLocks struct {
	demand    demand // Whose keys are locked.
	locks     core.Locks
	watches   []func() bool // Stop watching the locks.
	interrupt func()        // Ends the context of the transaction in the database.
	carried   carried
}

func newTransaction(ctx context.Context, p *pool, opts *sql.TxOptions) *transaction {
	t := &transaction{pool: p, ctx: ctx, opts: opts}
	t.direct.transaction = t
	return t
}

// state is how far a transaction is.
type state int32

const (
	stateIdle       state = iota // Nothing is locked, nothing was sent.
	stateLocked                  // The locks are held, nothing was sent.
	statePlain                   // BEGIN succeeded, nothing is locked.
	stateGuarded                 // BEGIN succeeded under the locks.
	stateCommitted               // COMMIT succeeded, or there was nothing to commit.
	stateRolledBack              // The caller rolled back, or COMMIT failed without locks.
	stateFailed                  // It was given up, or COMMIT was rejected. It is rolled back.
	stateUnknown                 // COMMIT was sent under the locks. Its outcome is unknown.
)

// final reports whether nothing is open or locked any more.
func (s state) final() bool { return s >= stateCommitted }

// holds reports whether the locks are held.
func (s state) holds() bool { return s == stateLocked || s == stateGuarded }

// event moves a transaction.
type event int

const (
	eventLocked event = iota
	eventBegun
	eventCommitted
	eventRolledBack
	eventGivenUp
	eventUnknown
)

// advance returns the state after an event. An event that cannot happen in a state changes nothing.
func advance(s state, e event) state {
	switch {
	case s.final():
		return s
	case e == eventLocked && s == stateIdle:
		return stateLocked
	case e == eventBegun && s == stateIdle:
		return statePlain
	case e == eventBegun && s == stateLocked:
		return stateGuarded
	case e == eventCommitted:
		return stateCommitted
	case e == eventRolledBack:
		return stateRolledBack
	case e == eventGivenUp:
		return stateFailed
	case e == eventUnknown && s == stateGuarded:
		return stateUnknown
	}
	return s
}

// moveLocked moves the transaction. When it ends, its locks are released, or lapse if COMMIT may
// still be on its way. After that its contexts end with cause.
func (t *transaction) moveLocked(e event, cause error) {
	was := t.state()
	is := advance(was, e)
	if is.final() && !was.final() {
		t.cause = cause
		t.endLocked(is)
	}
	t.now.Store(int32(is))
}

func (t *transaction) endLocked(is state) {
	h := t.held
	if h == nil {
		return
	}
	for _, stop := range h.watches {
		stop()
	}
	if is == stateUnknown {
		for _, k := range h.locks {
			k.Lapse()
		}
	} else if err := h.locks.Release(t.ctx); err != nil && !errors.Is(err, core.ErrLost) {
		// A loss was reported before COMMIT, or came after it.
		t.pool.log.Warn(t.ctx, "gormlock: the lock on %s was not released; its key is free when its lease ends: %v",
			quoted(h.demand.keys), err)
	}
	h.carried.end(t.cause)
	if h.interrupt != nil {
		h.interrupt()
	}
}

// state may be called without t.mu.
func (t *transaction) state() state { return state(t.now.Load()) }

// guarded reports whether the transaction holds locks; t may be nil.
func (t *transaction) guarded() bool { return t != nil && t.state().holds() }

// usableLocked returns why no statement may run any more.
func (t *transaction) usableLocked() error {
	switch s := t.state(); {
	case t.cause != nil:
		return t.cause
	case s.final():
		return sql.ErrTxDone
	case !s.holds():
		return nil // the *sql.Tx knows
	}
	failed := func(why string, err error) error {
		return undone.Mark(guardError(t.held.demand.keys, fmt.Errorf("the transaction is rolled back%s: %w", why, err)))
	}
	for _, k := range t.held.locks {
		if err := k.Err(); err != nil {
			return failed("", err)
		}
	}
	if err := t.ctx.Err(); err != nil {
		return failed(", as its context ended", err)
	}
	return nil
}

// transactionOf finds the transaction in a connection pool; open says that there is one, t is nil
// if it is not ours.
func transactionOf(c gorm.ConnPool) (t *transaction, open bool) {
	for {
		switch x := c.(type) {
		case *connection:
			if x == nil {
				return nil, false
			}
			return x.transaction, true
		case *gorm.PreparedStmtTX:
			c = x.Tx
		case *pool:
			return nil, false
		default:
			_, open := c.(gorm.TxCommitter)
			return nil, open
		}
	}
}
