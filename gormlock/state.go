package gormlock

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/undone"
)

// transaction is a gorm.Tx that begins in the database when its first statement runs, after the
// locks of its guard. Without a guard it does what the *sql.Tx in it does.
type transaction struct {
	pool *pool
	ctx  context.Context
	opts *sql.TxOptions

	mu        sync.Mutex
	keys      []string // the guard's
	locks     core.Locks
	fenced    bool
	patience  time.Duration             // of the guard, for the locks and then for the fence.
	watch     []func() bool             // stop watching the locks.
	real      gorm.Tx                   // nil before BEGIN.
	interrupt func()                    // ends the context of real, under a guard.
	cancel    []context.CancelCauseFunc // of the contexts that live as long as the transaction.
	over      bool                      // nothing is open or locked any more.
	failed    error                     // why it was given up; its Rollback has nothing left to do then.
	gone      error                     // why MySQL rolled it back, without a guard.
	holds     atomic.Bool               // it has locks, for those who must not wait for mu.
	rows      []*sql.Rows               // handed out, whose errors only their reader sees.
	answer    error                     // the last error of its connection.
	undone    undoLog                   // what a rollback takes back, and COMMIT runs.
}

// transactionOf finds the transaction in a connection pool; open says that there is one, t is nil
// if it is not ours.
func transactionOf(c gorm.ConnPool) (t *transaction, open bool) {
	for {
		switch x := c.(type) {
		case *transaction:
			return x, x != nil
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

// usable returns why no statement may run any more. t.mu is held.
func (t *transaction) usable() error {
	switch {
	case t.failed != nil:
		return t.failed
	case t.over:
		return sql.ErrTxDone
	case len(t.locks) == 0:
		return nil // the *sql.Tx knows
	}
	for _, k := range t.locks {
		if err := k.Err(); err != nil {
			return undone.Mark(guardError(t.keys, fmt.Errorf("the transaction is rolled back: %w", err)))
		}
	}
	switch err := t.ctx.Err(); {
	case err != nil:
		return undone.Mark(guardError(t.keys, fmt.Errorf("the transaction is rolled back, as its context ended: %w", err)))
	}
	return nil
}
