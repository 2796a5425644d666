package gormlock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/gormlock/optimistic"
	"github.com/onelane/onelane/gormlock/stock"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// An errgroup cancels its context with the first error, and that is the cause. ErrCommitUnknown "reports that
// COMMIT was sent", and ErrInsufficient that there is not enough left: not of a transaction that never began.
// (core drops its own errors from such a cause: TestEnded_AnothersErrorIsNotThisOnes.)
func TestEnded_AnothersOutcomeIsNotThisOnes(t *testing.T) {
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}))
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 10)
		ok(t, "Use", db.Use(gormlock.New(locker(t, backendtest.Memory()))))
		for _, outcome := range []error{
			gormlock.ErrCommitUnknown, &stock.InsufficientError{Table: "stocks", Row: "sku = 43", N: 1, Left: 0},
			stock.ErrInsufficient, optimistic.ErrStale, gormlock.ErrMismatch, gormlock.ErrUnfinished,
		} {
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(fmt.Errorf("item 43: %w", outcome)) // of another transaction
			for name, run := range map[string]func(*gorm.DB) error{
				"Transaction": func(db *gorm.DB) error {
					return gormlock.Transaction(db, "stock:42", func(tx *gorm.DB) error { return take(tx, 42) })
				},
				"Guard": func(db *gorm.DB) error { return take(db.Scopes(gormlock.Guard("stock:42")), 42) },
				"Once": func(db *gorm.DB) error {
					_, err := gormlock.Once(ctx, db, "pay:42", func(tx *gorm.DB) (int, error) { return 1, take(tx, 42) })
					return err
				},
			} {
				err := run(db.WithContext(ctx))
				if want(t, name, err, context.Canceled); errors.Is(err, outcome) {
					t.Errorf("%s never began, and its error matches %q: %v", name, outcome, err)
				}
			}
		}
		wantLeft(t, db, 42, 10)
	})
}
