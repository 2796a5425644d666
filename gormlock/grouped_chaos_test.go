package gormlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// TestGrouped_Chaos: many callers that fail, panic, leave and go on after errors: what was told is what is there.
func TestGrouped_Chaos(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10000)
		put(t, db, 43, 10000)
		pool(t, db).SetMaxOpenConns(4)
		var sold, unknown atomic.Int64
		call := func(ctx context.Context) (err error) {
			defer func() {
				if p := recover(); p != nil {
					err = fmt.Errorf("panic: %v", p)
				}
			}()
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if rand.IntN(4) == 0 {
				time.AfterFunc(rand.N(5*time.Millisecond), cancel)
			}
			return gormlock.Transaction(db.WithContext(ctx), "k", func(tx *gorm.DB) error {
				if err := take(tx, 42); err != nil {
					return err
				}
				switch rand.IntN(8) {
				case 0:
					return boom
				case 1:
					panic(boom)
				case 2:
					_ = tx.Create(&Stock{SKU: 42}).Error // PostgreSQL refuses what follows
				case 3:
					_ = tx.Transaction(func(tx *gorm.DB) error { return errors.Join(take(tx, 43), boom) })
				case 4:
					_, _ = tx.Model(&Stock{}).Rows()
				case 5:
					return tx.Rollback().Error
				}
				return nil
			}, gormlock.Grouped(1+rand.IntN(8)))
		}
		var all sync.WaitGroup
		for range 24 {
			all.Go(func() {
				for range 10 {
					switch err := call(t.Context()); {
					case err == nil:
						sold.Add(1)
					case errors.Is(err, gormlock.ErrCommitUnknown):
						unknown.Add(1)
					}
				}
			})
		}
		all.Wait()
		eventually(t, "nothing is held", func() bool { return inUse(t, db) == 0 && !held(t, l, "k") && gormlock.Waiting(db) == 0 })
		gone := 10000 - left(t, db, 42)
		if sold.Load() == 0 || gone < sold.Load() || gone > sold.Load()+unknown.Load() {
			t.Errorf("%d callers were told success and %d do not know, %d were sold", sold.Load(), unknown.Load(), gone)
		}
		wantLeft(t, db, 43, 10000)
	})
}
