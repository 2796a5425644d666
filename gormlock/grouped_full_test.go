package gormlock_test

import (
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// docs/guarantees.md: "At most WithMaxWaiters callers wait for one key in one process, counted exactly.
// One more is refused at once."
func TestGrouped_MaxWaiters(t *testing.T) {
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		l := locker(t, backendtest.Memory(), core.WithMaxWaiters(2))
		ok(t, "Use", db.Use(gormlock.New(l)))
		k, err := l.Acquire(t.Context(), "k")
		ok(t, "Acquire", err)
		var all sync.WaitGroup
		errs := make(chan error, 20)
		for range cap(errs) {
			all.Go(func() {
				errs <- gormlock.Transaction(db, "k", func(*gorm.DB) error { return nil }, gormlock.Grouped(8), gormlock.WithWait(time.Minute))
			})
		}
		eventually(t, "all wait, or were refused", func() bool { return gormlock.Waiting(db)+len(errs) == cap(errs) })
		if n := gormlock.Waiting(db); n > 2 {
			t.Errorf("%d callers of this process wait for one key, and WithMaxWaiters is 2", n)
		}
		ok(t, "Release", k.Release(t.Context()))
		all.Wait()
	})
}
