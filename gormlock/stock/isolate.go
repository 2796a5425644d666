package stock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"gorm.io/gorm"

	"github.com/onelane/onelane/internal/gormkeys"
	"github.com/onelane/onelane/internal/sqlerr"
)

// chunk is how many orders of a refused batch are tried together. With 1 to 10 % of refused orders,
// eight need the fewest round trips.
const chunk = 8

// carefully finds out which orders are refused.
func (b *batch) carefully(tx *gorm.DB) error {
	b.reset()
	return b.locked(tx, b.looksAhead(), b.insertApart)
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
	direct := gormkeys.Unprepared(tx)
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

// oneByOne sells each order in its own transaction, until the database fails.
func (b *batch) oneByOne() {
	for i := range b.calls {
		one := &batch{seller: b.seller, ctx: b.ctx, lane: b.lane, calls: b.calls[i : i+1]}
		if err := one.sell(); errors.Is(err, errBegin) || b.ended() != nil {
			b.calls = b.calls[i+1:]
			b.settle(cmp.Or(err, b.ended()))
			return
		}
	}
}

// aboutOrders reports whether a transaction may have failed because of single orders, so that the
// others can be sold without them. While orders are stored, this may be any error, unless the
// database is gone or busy, or time is up. At the row and at COMMIT it must be a server's refusal of
// what was written.
func (b *batch) aboutOrders(err error) bool {
	switch {
	case err == nil, b.ended() != nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return false
	case errors.Is(err, errBegin), errors.Is(err, ErrCommitUnknown), sqlerr.Conflict(err), sqlerr.Unavailable(err):
		return false
	}
	return b.storing || sqlerr.Refused(err)
}
