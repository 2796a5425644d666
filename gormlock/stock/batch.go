package stock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/internal/gormkeys"
	"github.com/onelane/onelane/internal/sqlerr"
	"github.com/onelane/onelane/internal/undone"
)

// batch is some calls for one row that share a transaction. Each try writes the results of the calls
// anew.
type batch struct {
	*seller
	ctx     context.Context
	lane    *lane
	calls   []*call
	inline  bool // runs in the goroutine of its only caller
	storing bool // the statement that runs is about orders
}

const (
	conflictTries = 3
	conflictPause = 5 * time.Millisecond
)

// serializationFailure is what PostgreSQL says from REPEATABLE READ on.
const serializationFailure = "40001"

// errNobody rolls back a transaction in which no order is stored. Each call has its result.
var errNobody = errors.New("no order is stored")

// sellBatch decides about a batch.
func (s *seller) sellBatch(l *lane, calls []*call, inline bool) {
	ctx, cancel := context.WithTimeout(s.db.Statement.Context, s.within)
	defer cancel()
	ctx, end := s.reported.batch(ctx, calls)
	defer end()
	_ = (&batch{seller: s, ctx: ctx, lane: l, calls: calls, inline: inline}).sell()
}

// sell tries the whole batch first. If the database refuses an order, a second transaction finds out
// which. If that is not possible, each order gets its own transaction.
func (b *batch) sell() error {
	err := b.try(b.plainly)
	if duplicate(err) {
		b.looks.Store(lookBatches)
	}
	if len(b.calls) > 1 && b.aboutOrders(err) {
		b.reported.splits.Add(b.ctx, 1)
		if err = b.try(b.carefully); b.aboutOrders(err) {
			b.oneByOne()
			return nil
		}
	}
	b.settle(err)
	return err
}

// plainly sells as if no order would be refused. The UPDATE is first, because it locks the row.
func (b *batch) plainly(tx *gorm.DB) error {
	b.reset()
	if b.looksAhead() {
		return b.locked(tx, true, b.insertFitting)
	}
	switch enough, err := b.take(tx, b.calls); {
	case err != nil:
		return err
	case !enough:
		return b.locked(tx, false, b.insertFitting)
	}
	return b.insert(tx, b.calls)
}

// reset forgets an earlier try.
func (b *batch) reset() {
	b.storing = false
	for _, c := range b.calls {
		c.result = result{}
	}
}

// locked locks the row first. So the stock and the stored orders stay as this read shows them.
func (b *batch) locked(tx *gorm.DB, looks bool, insert func(tx *gorm.DB, calls []*call, left int64) ([]*call, error)) error {
	left, err := b.lockRow(tx)
	calls := b.calls
	if err == nil && looks {
		calls, err = b.look(tx, calls)
	}
	if err != nil {
		return err
	}
	served, err := insert(tx, calls, left)
	switch {
	case err != nil:
		return err
	case len(served) == 0:
		b.remember(b.lane, left)
		return errNobody
	}
	enough, err := b.take(tx, served)
	if err == nil && !enough {
		err = errors.New("the row changed while it was locked")
	}
	return err
}

// fitting returns the calls that can be served, first come, first served. A smaller one may still fit
// behind a larger one that does not.
func (b *batch) fitting(calls []*call, left int64) (served []*call) {
	for _, c := range calls {
		c.result = result{}
		if c.n > left {
			c.err = b.insufficient(b.lane.key, c.n, left)
			continue
		}
		left -= c.n
		served = append(served, c)
	}
	return served
}

func (b *batch) insertFitting(tx *gorm.DB, calls []*call, left int64) ([]*call, error) {
	served := b.fitting(calls, left)
	return served, b.insert(tx, served)
}

// try runs fn in a transaction, again after a conflict with others.
func (b *batch) try(fn func(tx *gorm.DB) error) error {
	levels := true
	for try := 1; ; try++ {
		var opts *sql.TxOptions
		if levels && b.explicit.Load() {
			opts = &sql.TxOptions{Isolation: sql.LevelReadCommitted}
		}
		err := b.protected(func() error {
			return transact(b.db.Session(&gorm.Session{NewDB: true, Context: b.ctx}), b.rows.Table, opts, func(tx *gorm.DB) error {
				if err := b.askLevel(tx); err != nil {
					return err
				}
				return fn(tx)
			})
		})
		// MariaDB isolates SERIALIZABLE transactions from what others committed, since 11.6.2.
		if sqlerr.PostgresState(err) == serializationFailure || sqlerr.MySQLNumber(err) == sqlerr.MySQLChangedRow {
			b.explicit.Store(true)
		}
		// With autocommit off, an earlier read has left a transaction open. Only a BEGIN without a level ends it.
		if levels && sqlerr.MySQLNumber(err) == sqlerr.MySQLInTransaction {
			levels = false
			continue
		}
		switch {
		case errors.Is(err, errNobody):
			return nil
		case try >= conflictTries || errors.Is(err, errBegin) || !sqlerr.Conflict(err):
			return err
		}
		select {
		case <-time.After(conflictPause/2 + rand.N(conflictPause)):
		case <-b.ctx.Done():
			return err
		}
	}
}

// askLevel asks PostgreSQL in the first transaction for its default level. The row's lock orders the
// sales, so READ COMMITTED is enough. Most servers have it by default, and asking for it costs the
// server a tenth of a sale. A conflict may reach a hook, which hides it, so it is no way to find out.
func (b *batch) askLevel(tx *gorm.DB) error {
	if b.dialect != "postgres" || b.levelKnown.Load() {
		return nil
	}
	var level string
	if err := gormkeys.Unprepared(tx).Raw("SHOW default_transaction_isolation").Scan(&level).Error; err != nil {
		return err
	}
	b.explicit.Store(level != "read committed")
	b.levelKnown.Store(true)
	return nil
}

// protected runs fn. Hooks of several callers may panic in it or end the goroutine, so it runs in a
// separate goroutine then.
func (b *batch) protected(fn func() error) (err error) {
	if b.inline {
		return fn()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		returned := false
		defer func() {
			if !returned {
				value := recover()
				err = &panicError{value: value, stack: debug.Stack(), goexit: value == nil}
			}
		}()
		err = fn()
		returned = true
	}()
	<-done
	return err
}

// settle gives each call the error, or leaves it the result that it has.
func (b *batch) settle(err error) {
	// Drivers report the end of the context in their own words.
	if ended := b.ended(); err != nil && ended != nil && !errors.Is(err, ended) && !errors.Is(err, ErrCommitUnknown) {
		err = fmt.Errorf("%w: %w", ended, err)
	}
	answer := errors.Is(err, ErrClosed) || errors.Is(err, gorm.ErrRecordNotFound) || b.aboutOrders(err)
	if !answer && !errors.Is(err, ErrCommitUnknown) {
		err = undone.Mark(err)
	}
	var refused []*call
	for _, c := range b.calls {
		if err != nil {
			c.result = result{err: b.failed(b.lane.key, c.n, err)}
		}
		if c.values != nil && duplicate(c.err) {
			refused = append(refused, c)
		}
	}
	if len(refused) > 0 {
		b.explain(refused)
	}
}

// ended returns why the batch must end, or nil. Drivers watch the deadline by themselves, and may be
// earlier than the context.
func (b *batch) ended() error {
	if deadline, ok := b.ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return b.ctx.Err()
}

// explain asks for the orders because of which a unique index refused others. They may be deleted
// softly, or be equal to the database only. If one is there, its call gets [ErrDuplicate].
func (b *batch) explain(refused []*call) {
	// If this fails, the calls keep the database's error.
	_ = b.try(func(tx *gorm.DB) error {
		tx = tx.Unscoped().Session(&gorm.Session{})
		rest, err := b.look(tx, refused)
		for _, c := range rest {
			if err == nil {
				_, err = b.look(tx, []*call{c})
			}
		}
		return cmp.Or(err, errNobody)
	})
}

func sum(calls []*call) (n int64) {
	for _, c := range calls {
		n += c.n
	}
	return n
}
