package stock

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/internal/sqlerr"
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
	split   bool
}

const (
	conflictTries = 3
	conflictPause = 5 * time.Millisecond
	// chunk is how many orders of a refused batch are tried together.
	chunk = 16
)

// errNobody rolls back a transaction in which no order is stored. Each call has its result.
var errNobody = errors.New("no order is stored")

// sellBatch decides about a batch.
func (s *seller) sellBatch(l *lane, calls []*call, inline bool) {
	ctx, cancel := context.WithTimeout(s.db.Statement.Context, s.within)
	defer cancel()
	ctx, end := s.reported.batch(ctx, calls)
	b := &batch{seller: s, ctx: ctx, lane: l, calls: calls, inline: inline}
	defer end(b)
	b.sell()
}

// sell tries the whole batch first. If the database refuses an order, a second transaction finds out
// which. If that is not possible, each order gets a transaction of its own.
func (b *batch) sell() {
	err := b.try(b.plainly)
	if duplicate(err) {
		b.looks.Store(lookBatches)
	}
	if len(b.calls) > 1 && b.aboutOrders(err) {
		b.split = true
		if err = b.try(b.carefully); b.aboutOrders(err) {
			b.oneByOne()
			return
		}
	}
	b.settle(err)
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

// carefully finds out which orders are refused.
func (b *batch) carefully(tx *gorm.DB) error {
	b.reset()
	return b.locked(tx, b.looksAhead(), b.insertApart)
}

// reset forgets an earlier try.
func (b *batch) reset() {
	b.storing = false
	for _, c := range b.calls {
		c.result = result{}
	}
}

// locked locks the row first. So what is left, and which orders are stored, stays as it is seen.
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

func (b *batch) insertApart(tx *gorm.DB, calls []*call, left int64) ([]*call, error) {
	return b.insertChunks(tx, calls, left, max(1, min(chunk, len(calls)/4)))
}

// insertChunks stores orders in chunks behind savepoints, and those of a refused chunk one by one.
func (b *batch) insertChunks(tx *gorm.DB, calls []*call, left int64, size int) (served []*call, err error) {
	for some := range slices.Chunk(calls, size) {
		fit := b.fitting(some, left)
		refused, err := b.behindSavepoint(tx, fit)
		if refused != nil && size > 1 {
			fit, err = b.insertChunks(tx, some, left, 1)
		} else if refused != nil {
			fit[0].result = result{err: b.failed(b.lane.key, fit[0].n, fmt.Errorf("the order was refused, nothing was done: %w", refused))}
			fit = nil
		}
		if err != nil {
			return nil, err
		}
		served = append(served, fit...)
		left -= sum(fit)
	}
	return served, nil
}

// behindSavepoint stores the orders of some calls, or none and returns why. err is why the
// transaction cannot go on.
func (b *batch) behindSavepoint(tx *gorm.DB, calls []*call) (refused, err error) {
	if len(calls) == 0 {
		return nil, nil
	}
	const name = "onelane_stock"
	b.storing = true
	direct := unprepared(tx)
	if err := direct.Exec("SAVEPOINT " + name).Error; err != nil {
		return nil, err
	}
	refused = b.protected(func() error { return b.insert(tx, calls) })
	switch {
	case refused == nil:
	case !b.aboutOrders(refused):
		return nil, refused
	default:
		if err := direct.Exec("ROLLBACK TO SAVEPOINT " + name).Error; err != nil {
			return nil, fmt.Errorf("%w (and ROLLBACK TO SAVEPOINT failed: %v)", refused, err)
		}
	}
	err = direct.Exec("RELEASE SAVEPOINT " + name).Error
	b.storing = err != nil
	return refused, err
}

// oneByOne sells each order in a transaction of its own, until the database fails.
func (b *batch) oneByOne() {
	for i, c := range b.calls {
		one := &batch{seller: b.seller, ctx: b.ctx, lane: b.lane, calls: []*call{c}}
		err := one.try(one.plainly)
		down := err != nil && !one.aboutOrders(err) && !errors.Is(err, ErrCommitUnknown)
		if down {
			one.calls = b.calls[i:]
		}
		if one.settle(err); down {
			return
		}
	}
}

// try runs fn in a transaction, again after a conflict with others.
func (b *batch) try(fn func(tx *gorm.DB) error) error {
	for try := 1; ; try++ {
		err := b.protected(func() error {
			return transact(b.db.WithContext(b.ctx), b.rows.Table, b.begin, fn)
		})
		switch {
		case errors.Is(err, errNobody):
			return nil
		case try == conflictTries || errors.Is(err, errBegin) || !sqlerr.Conflict(err):
			return err
		}
		select {
		case <-time.After(conflictPause/2 + rand.N(conflictPause)):
		case <-b.ctx.Done():
			return err
		}
	}
}

// protected runs fn. Hooks of several callers may panic in it or end the goroutine, so it runs in one
// of its own then.
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

// aboutOrders reports whether a transaction may have failed because of single orders, so that the
// others can be sold without them. While orders are stored, this may be any error, unless the
// database is gone or busy, or time is up. At the row and at COMMIT it must be a server's refusal of
// what was written.
func (b *batch) aboutOrders(err error) bool {
	switch {
	case err == nil, b.ctx.Err() != nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return false
	case errors.Is(err, errBegin), errors.Is(err, ErrCommitUnknown), sqlerr.Conflict(err), sqlerr.Unavailable(err):
		return false
	}
	return b.storing || sqlerr.Refused(err)
}

// settle gives each call the error, or leaves it the result that it has.
func (b *batch) settle(err error) {
	// Some drivers report only that the connection is bad, because they closed it at the end of ctx.
	if ended := b.ctx.Err(); ended != nil && errors.Is(err, driver.ErrBadConn) && !errors.Is(err, ErrCommitUnknown) {
		err = fmt.Errorf("%w: %w", ended, err)
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
