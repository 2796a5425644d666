package gormlock_test

import (
	"errors"
	"math"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// The largest number is "until the context ends", and not "never".
func TestWithRetry_Largest(t *testing.T) {
	t.Parallel()
	onceDB(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		run := func(do func(fn func(tx *gorm.DB) error) error) (tries int, err error) {
			err = do(func(tx *gorm.DB) error {
				if tries++; tries == 1 {
					return errors.Join(take(tx, 42), gormlock.ErrStale)
				}
				return take(tx, 42)
			})
			return tries, err
		}
		tries, err := run(func(fn func(tx *gorm.DB) error) error {
			return gormlock.Transaction(db, "k", fn, gormlock.WithRetry(math.MaxInt))
		})
		if err != nil || tries != 2 {
			t.Errorf("Transaction: %v after %d tries, want none after 2", err, tries)
		}
		tries, err = run(func(fn func(tx *gorm.DB) error) error {
			_, err := gormlock.Once(t.Context(), db, "pay:1", func(tx *gorm.DB) (int, error) { return 1, fn(tx) },
				gormlock.WithRetry(math.MaxInt))
			return err
		})
		if err != nil || tries != 2 {
			t.Errorf("Once: %v after %d tries, want none after 2", err, tries)
		}
		wantIdle(t, db, l, "k")
	})
}
