package stock

import (
	"fmt"
	"slices"

	"gorm.io/gorm"
)

// chunk is how many orders of a refused batch are tried together.
const chunk = 16

// isolate sells to the calls of a batch that the database refused, and finds out which of them it
// refuses. The row is locked, and orders are stored in chunks behind a savepoint. Those of a refused
// chunk are stored one by one.
func (b *batch) isolate(tx *gorm.DB) error {
	looks := b.looksAhead()
	left, err := b.lockRow(tx, looks)
	if err != nil {
		return err
	}
	calls := indexes(len(b.calls))
	if looks {
		if calls, err = b.withoutDuplicates(tx, calls); err != nil {
			return err
		}
	}
	rest := left
	var sold []int
	for some := range slices.Chunk(calls, min(chunk, max(1, len(calls)/4))) {
		served := b.fitting(some, rest)
		refused, err := b.behindSavepoint(tx, served)
		if err != nil {
			return err
		}
		if refused == nil {
			rest -= b.sum(served)
			sold = append(sold, served...)
			continue
		}
		for _, i := range some {
			b.fates[i] = fate{}
			alone := b.fitting([]int{i}, rest)
			switch refused, err = b.behindSavepoint(tx, alone); {
			case err != nil:
				return err
			case refused != nil:
				if err := b.refuse(tx, i, refused); err != nil {
					return err
				}
			default:
				rest -= b.sum(alone)
				sold = append(sold, alone...)
			}
		}
	}
	if len(sold) == 0 {
		return errNobody
	}
	after, enough, err := b.take(tx, left-rest)
	if err == nil && !enough {
		err = fmt.Errorf("%s changed while it was locked", b.seller.row(b.lane.key))
	}
	if err != nil {
		return failedAt(atRow, err)
	}
	for _, i := range slices.Backward(sold) {
		b.fates[i].left = after
		after += b.calls[i].n
	}
	return nil
}

// refuse gives a call that was tried alone its error.
func (b *batch) refuse(tx *gorm.DB, i int, refused error) error {
	c := b.calls[i]
	b.fates[i] = fate{err: fmt.Errorf("stock: sell %d of %s: the order was refused, nothing was done: %w", c.n, b.row(b.lane.key), refused)}
	if p, ok := refused.(*panicError); ok {
		b.fates[i].err = p
	}
	if b.duplicate(refused) && c.unique != "" {
		f, err := b.storedFate(tx, c)
		if err != nil {
			return failedAt(atRow, err)
		}
		if f.err != nil {
			b.fates[i] = f
		}
	}
	return nil
}

// behindSavepoint stores the orders of some calls, or none and returns why. err is why the
// transaction cannot go on.
func (b *batch) behindSavepoint(tx *gorm.DB, calls []int) (refused, err error) {
	if len(calls) == 0 {
		return nil, nil
	}
	const name = "onelane_stock"
	direct := unprepared(tx)
	if err := direct.Exec("SAVEPOINT " + name).Error; err != nil {
		return nil, failedAt(atOrders, err)
	}
	refused = b.protected(func() error { return b.insert(tx, calls) })
	if refused == nil {
		return nil, failedAt(atOrders, direct.Exec("RELEASE SAVEPOINT "+name).Error)
	}
	if !b.mayIsolate(refused, atOrders) {
		return nil, refused
	}
	if err := direct.Exec("ROLLBACK TO SAVEPOINT " + name).Error; err != nil {
		return nil, failedAt(atOrders, fmt.Errorf("%w (and ROLLBACK TO SAVEPOINT failed: %v)", refused, err))
	}
	return refused, failedAt(atOrders, direct.Exec("RELEASE SAVEPOINT "+name).Error)
}
