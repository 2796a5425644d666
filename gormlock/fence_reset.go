package gormlock

import (
	"context"
	"errors"
	"fmt"
	"math"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
)

// ResetFence lets the holders of key pass its fence again after the source of fencing tokens has
// changed. The new source may be another Redis, or a [Table] instead of Redis, whose clock is
// behind. Without it [Fenced] refuses every transaction until the new tokens exceed the old ones.
//
// Call it when no process uses the old source any more and every lease granted there has ended.
// Stop or redeploy all of them, and wait for one TTL. Then call it once per key, in any process of
// the new source. A holder from the old source that wakes up later has a larger token, so the fence
// would let it pass. Holders from the new source may be active. ResetFence waits for the lock on
// key, and for an open transaction that has the fence, at most 5 s each or until ctx ends.
//
// ResetFence acquires the lock on key with the plugin's Locker and puts its token into the fence.
// Each earlier holder from the new source is then refused. A fence that is smaller already, or
// missing, stays as it is. After an error, call ResetFence again. Without the plugin the error
// matches [ErrNotRegistered]. If the lock or the fence is not free in time, it matches
// core.ErrTaken.
func ResetFence(ctx context.Context, db *gorm.DB, key string) error {
	if err := resetFence(ctx, db, key); err != nil {
		return fmt.Errorf("gormlock: ResetFence %q: %w", key, err)
	}
	return nil
}

var errFenceStays = errors.New("the UPDATE of onelane_fences changed nothing, although the row is there: " +
	"KILL QUERY may have ended it; call ResetFence again")

func resetFence(ctx context.Context, db *gorm.DB, key string) (err error) {
	p, err := registered(db)
	if err != nil {
		return err
	}
	d, err := dialectOf(db)
	if err != nil {
		return err
	}
	if _, open := transactionOf(db.Statement.ConnPool); open {
		return fmt.Errorf("it needs a transaction of its own; call it outside: %w", gorm.ErrInvalidTransaction)
	}
	locker, err := p.lockerInUse()
	if err != nil {
		return err
	}
	conns, err := db.DB()
	if err != nil {
		return err
	}
	k, err := locker.Acquire(ctx, key, core.WithWait(defaultWait), core.WithToken())
	if err != nil {
		return err
	}
	defer func() {
		// If the lock was lost before COMMIT, the transaction says so.
		if released := k.Release(ctx); !errors.Is(released, core.ErrLost) {
			err = errors.Join(err, released)
		}
	}()
	token, err := k.Token(ctx)
	if err != nil {
		return err
	}
	if token > math.MaxInt64 {
		return fmt.Errorf("token %d is larger than the database's largest number", token)
	}
	const lower = `UPDATE onelane_fences SET token = ?, owner = ?, registered_at = {now} WHERE name = ? AND token > ?`
	const left = `SELECT COUNT(*) FROM onelane_fences WHERE name = ? AND token > ?`
	held, cancel := context.WithTimeoutCause(k.Context(), defaultWait, errFenceHeld)
	defer cancel()
	err = retry(held, func() error {
		return inTransaction(held, conns, d, nil, func(tx gorm.Tx) error {
			_, err := tx.ExecContext(held, d.sql(lower), int64(token), []byte(k.Owner()), []byte(key), int64(token))
			if err != nil {
				return err
			}
			var larger int
			if err := tx.QueryRowContext(held, d.sql(left), []byte(key), int64(token)).Scan(&larger); err != nil {
				return err
			}
			if larger > 0 {
				return errFenceStays
			}
			return nil
		})
	})
	if cause := context.Cause(held); err != nil && cause != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	if lockWaitTimedOut(err) {
		return fmt.Errorf("%w: %w", errFenceHeld, err)
	}
	return err
}
