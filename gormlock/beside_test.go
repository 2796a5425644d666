package gormlock_test

import (
	"context"
	"database/sql/driver"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/internal/check"
)

// A transaction on db with the context of the block would commit by itself, under the lock that the block relies on.
func TestTransaction_OnDBWithItsContext(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 2)
		for name, nested := range map[string]func(tx *gorm.DB) error{
			"Transaction": func(tx *gorm.DB) error {
				return gormlock.Transaction(db.WithContext(tx.Statement.Context), "k", func(tx *gorm.DB) error { return take(tx, 42) })
			},
			"within another one": func(tx *gorm.DB) error {
				return gormlock.Transaction(db.WithContext(tx.Statement.Context), "other", func(tx *gorm.DB) error {
					return gormlock.Transaction(db.WithContext(tx.Statement.Context), "k", func(tx *gorm.DB) error { return take(tx, 42) })
				})
			},
			"Guard": func(tx *gorm.DB) error {
				return db.WithContext(tx.Statement.Context).Scopes(gormlock.Guard("k")).Exec("UPDATE stocks SET left = left - 1").Error
			},
		} {
			want(t, "outer", gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
				want(t, name, nested(tx), core.ErrTaken)
				return errNo
			}), errNo)
			wantLeft(t, db, 42, 2)
			wantIdle(t, db, l, "k")
		}
	})
}

// A goroutine whose context carries no lock waits for the block.
func TestTransaction_OnDBWithoutItsLock(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		put(t, db, 42, 2)
		later := make(chan error, 1)
		ok(t, "block", gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
			ctx := core.WithLock(context.WithoutCancel(tx.Statement.Context), nil)
			go func() {
				later <- gormlock.Transaction(db.WithContext(ctx), "k", func(*gorm.DB) error { return nil },
					gormlock.WithWait(time.Minute))
			}()
			time.Sleep(50 * time.Millisecond) // most of the time it waits by then
			return take(tx, 42)
		}))
		ok(t, "the goroutine", <-later)
	})
}

type valuerFunc func() (driver.Value, error)

func (f valuerFunc) Value() (driver.Value, error) { return f() }

// A statement's argument begins a transaction, while the rollback of its own one waits for the statement.
func TestTransaction_InAnArgumentWhileItsContextEnds(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		put(t, db, 42, 2)
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() {
			defer close(over)
			_ = gormlock.Transaction(db.WithContext(ctx), "k", func(tx *gorm.DB) error {
				return tx.Exec("UPDATE stocks SET left = ? WHERE sku = 42", valuerFunc(func() (driver.Value, error) {
					cancel()
					time.Sleep(100 * time.Millisecond) // most of the time ROLLBACK waits for this statement by then
					return int64(1), gormlock.Transaction(db.WithContext(tx.Statement.Context), "other", func(*gorm.DB) error { return nil })
				})).Error
			})
		}()
		select {
		case <-over:
		case <-time.After(check.Patience):
			t.Fatal("deadlock")
		}
	})
}
