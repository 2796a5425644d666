package gormlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onelane/onelane/core"
)

// Reopen lets a guard take a key that [SealWhenOut] sealed, to put stock back:
//
//	err := gormlock.Transaction(db, "stock:42", func(tx *gorm.DB) error { … }, gormlock.Reopen())
//
// The guard unseals the key and takes the lock. A buyer may come in between, find nothing and seal
// the key again. The guard then repeats that for as long as it waits for its keys. Guards of the
// same [New] forget the seal at once, others within the time of [RememberSeals]. A key that is
// sealed with anything else, such as an idempotency record, stays sealed, and the error is
// core.ErrSealed. [Grouped] has no effect with Reopen. As an option of [New] it is an error of
// db.Use: every guard would open what is sold out.
func Reopen() GuardOption { return guardOption(func(g *guard) { g.reopen = true }) }

var errReopenAll = errors.New("Reopen would open every key that is sold out: give it to the guard that puts stock back")

var errNotReopened = errors.New("Reopen opens only a key that SealWhenOut sealed")

// acquire takes the locks of d, and opens keys that are sold out if d says so.
func (p *plugin) acquire(
	ctx context.Context, l *core.Locker, d demand, opts ...core.AcquireOption,
) (core.Locks, error) {
	var sealed error // the last seal that was opened
	end := time.Now().Add(d.wait)
	for wait := d.wait; ; wait = max(0, time.Until(end)) {
		locks, err := p.acquireAll(ctx, l, d.keys, append(opts, core.WithWait(wait)))
		if !d.reopen {
			return locks, err
		}
		key, soldOut := isSoldOut(err)
		switch {
		case err == nil:
			for _, k := range d.keys {
				p.seals.forget(l, k) // another process may have opened it
			}
			return locks, nil
		case errors.Is(err, core.ErrSealed) && !soldOut:
			return nil, fmt.Errorf("%w: %w", errNotReopened, err)
		case ctx.Err() == nil && sealed != nil && !time.Now().Before(end):
			return nil, fmt.Errorf("buyers sealed the key again and again; try again: %w", sealed)
		case !soldOut:
			return nil, err
		}
		if err := l.Unseal(ctx, key); err != nil {
			return nil, err
		}
		p.seals.forget(l, key)
		sealed = err
	}
}
