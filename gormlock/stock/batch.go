package stock

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/internal/sqlerr"
)

// batch is some calls for one row, and what becomes of them.
type batch struct {
	*seller
	ctx    context.Context
	lane   *lane
	calls  []*call
	fates  []fate // of the calls; each transaction decides anew
	inline bool   // runs in the goroutine of its only caller
	splits int
}

// fate is what becomes of a call if the transaction commits, or found that nobody can be served.
type fate struct {
	left   int64
	err    error
	stored reflect.Value
}

const (
	conflictTries = 3
	conflictPause = 5 * time.Millisecond
)

// errNobody rolls back a transaction in which no order is stored. Each call has its fate.
var errNobody = errors.New("no order is stored")

// sellBatch decides about a batch.
func (s *seller) sellBatch(l *lane, calls []*call, inline bool) {
	ctx, cancel := context.WithTimeout(s.db.Statement.Context, s.within)
	defer cancel()
	ctx, ended := s.reported.batch(ctx, calls)
	b := &batch{seller: s, ctx: ctx, lane: l, calls: calls, inline: inline}
	defer ended(b)
	b.sell()
}

// sell tries the whole batch first. If the database refuses an order, all are tried once more in one
// transaction, in which the refused ones are found. If it refuses the transaction, each order gets
// one of its own.
func (b *batch) sell() {
	err := b.try(b.plain)
	if b.duplicate(err) {
		b.lookAhead()
	}
	switch {
	case len(b.calls) == 1:
		b.settle(b.explain(b.calls[0], err))
		return
	case b.mayIsolate(err, atOrders):
		b.splits++
		err = b.try(b.isolate)
	}
	if b.mayIsolate(err, atOrders) || b.mayIsolate(err, atRow) || b.mayIsolate(err, atCommit) {
		b.splits++
		b.oneByOne()
		return
	}
	b.settle(err)
}

// settle gives each call its fate, or the error of all.
func (b *batch) settle(err error) {
	err = b.late(err)
	for i, c := range b.calls {
		f := b.fates[i]
		if err != nil {
			f = fate{err: fmt.Errorf("stock: sell %d of %s: %w", c.n, b.row(b.lane.key), err)}
			if p := (*panicError)(nil); errors.As(err, &p) {
				f.err = p
			}
		}
		c.left, c.err, c.stored = f.left, f.err, f.stored
	}
}

// late returns an error that matches the context's, if the time of the batch is over. Some drivers
// report only that the connection is bad, because they closed it.
func (b *batch) late(err error) error {
	ended := b.ctx.Err()
	if !errors.Is(err, driver.ErrBadConn) || ended == nil || errors.Is(err, ended) || errors.Is(err, ErrCommitUnknown) {
		return err
	}
	return fmt.Errorf("%w: %w", ended, err)
}

// oneByOne sells each order in a transaction of its own, until the database fails.
func (b *batch) oneByOne() {
	var down error
	for _, c := range b.calls {
		one := &batch{seller: b.seller, ctx: b.ctx, lane: b.lane, calls: []*call{c}}
		err := down
		if down == nil {
			err = one.try(one.plain)
			if one.mayIsolate(err, atOrders) {
				err = one.explain(c, err)
			} else if err != nil && !one.mayIsolate(err, atRow) && !one.mayIsolate(err, atCommit) && stageOf(err) != unknown {
				down = err
			}
		}
		if down != nil {
			one.fates = make([]fate, 1)
		}
		one.settle(err)
	}
}

// try runs fn in a transaction, again after a conflict with others.
func (b *batch) try(fn func(tx *gorm.DB) error) error {
	for try := 1; ; try++ {
		b.fates = make([]fate, len(b.calls))
		err := b.protected(func() error {
			return transact(b.session(b.ctx), b.rows.Table, b.begin, fn)
		})
		switch {
		case errors.Is(err, errNobody):
			return nil
		case err == nil || try == conflictTries || !sqlerr.Conflict(err) || stageOf(err) == atBegin:
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
			if returned {
				return
			}
			value := recover()
			err = &panicError{value: value, stack: debug.Stack(), goexit: value == nil}
		}()
		err = fn()
		returned = true
	}()
	<-done
	return err
}

func stageOf(err error) stage {
	if f := (*failure)(nil); errors.As(err, &f) {
		return f.stage
	}
	return atOrders
}

// mayIsolate reports whether a transaction failed at a stage because of single orders, so that the
// others may be sold without them. It is not so if the database is gone or busy, or if time is up.
// At the orders, any other error may be that of one of them. At the row and at COMMIT it must be a
// server's refusal of what was written.
func (b *batch) mayIsolate(err error, at stage) bool {
	if err == nil || stageOf(err) != at || b.ctx.Err() != nil || sqlerr.Conflict(err) {
		return false
	}
	state, number := sqlerr.PostgresState(err), sqlerr.MySQLNumber(err)
	if b.dialect == "mysql" {
		state = ""
	}
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return false
	case number == sqlerr.MySQLLockWaitTimeout, number == sqlerr.MySQLLockTableFull, state == "55P03":
		return false
	case len(state) == 5 && slices.Contains([]string{"08", "25", "40", "53", "57", "58"}, state[:2]):
		return false
	case at == atOrders:
		return true
	}
	code, isSQLite := sqlerr.SQLiteCode(err)
	return number != 0 && refusesMySQL(err) || isSQLite && code&0xff == sqlerr.SQLiteConstraint ||
		len(state) == 5 && slices.Contains([]string{"22", "23", "P0"}, state[:2])
}

// refusesMySQL reports whether MySQL or MariaDB refused values: data, constraints, signals.
func refusesMySQL(err error) bool {
	state := sqlerr.MySQLState(err)
	return slices.ContainsFunc([]string{"22", "23", "45"}, func(class string) bool { return strings.HasPrefix(state, class) }) ||
		sqlerr.MySQLNumber(err) == mysqlCheckViolated || sqlerr.MySQLNumber(err) == mysqlConstraintFailed
}

// The numbers of a violated CHECK.
const (
	mysqlCheckViolated    = 3819 // MySQL
	mysqlConstraintFailed = 4025 // MariaDB
)

// plain sells to all calls as if no order would be refused.
func (b *batch) plain(tx *gorm.DB) error {
	served := indexes(len(b.calls))
	locked := false
	var left int64
	if b.looksAhead() {
		var err error
		if left, err = b.lockRow(tx, true); err != nil {
			return err
		}
		locked = true
		if served, err = b.withoutDuplicates(tx, served); err != nil {
			return err
		}
		if served = b.fitting(served, left); len(served) == 0 {
			b.remember(b.lane, left)
			return errNobody
		}
	}
	rest, enough, err := b.take(tx, b.sum(served))
	if err == nil && !enough && !locked {
		if left, err = b.lockRow(tx, false); err != nil {
			return err
		}
		if served = b.fitting(served, left); len(served) == 0 {
			b.remember(b.lane, left)
			return errNobody
		}
		rest, enough, err = b.take(tx, b.sum(served))
	}
	if err == nil && !enough {
		err = fmt.Errorf("%s changed while it was locked", b.seller.row(b.lane.key))
	}
	if err != nil {
		return failedAt(atRow, err)
	}
	if err := b.insert(tx, served); err != nil {
		return failedAt(atOrders, err)
	}
	for _, i := range slices.Backward(served) {
		b.fates[i].left = rest
		rest += b.calls[i].n
	}
	return nil
}

func indexes(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

func (b *batch) sum(calls []int) (sum int64) {
	for _, i := range calls {
		sum += b.calls[i].n
	}
	return sum
}

// fitting returns the calls that can be served from left, in their order. A smaller one may still
// fit behind a larger one that does not.
func (b *batch) fitting(calls []int, left int64) (served []int) {
	for _, i := range calls {
		if c := b.calls[i]; c.n > left {
			b.fates[i] = fate{err: b.insufficient(b.lane.key, c.n, left)}
			continue
		}
		left -= b.calls[i].n
		served = append(served, i)
	}
	return served
}
