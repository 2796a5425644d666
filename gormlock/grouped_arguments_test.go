package gormlock_test

import (
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// A caller of a group gets the error of its function at once. From then on its arguments are its own
// again, and the group must not read them: it would seal a key that has stock.
func TestGrouped_ArgumentsOfACallerThatIsBack(t *testing.T) {
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
		l := locker(t, backendtest.Memory())
		ok(t, "Use", db.Use(gormlock.New(l)))
		ok(t, "Create", db.Create(&[]Stock{{SKU: 42, Name: "A", Left: 3}, {SKU: 43, Name: "B", Left: 0}}).Error)
		gormlock.SetGroupTimes(db, time.Minute, time.Minute)
		defer gormlock.SetGroupTimes(db, 0, 0)

		k, err := l.Acquire(t.Context(), "stock:A")
		ok(t, "Acquire", err)
		var all sync.WaitGroup
		reused := make(chan struct{})
		buy := func(name any, n int64) error {
			return gormlock.Transaction(db, "stock:A", func(tx *gorm.DB) error {
				return decrement(tx.Model(&Stock{}).Where("name IN ?", name), "left", n, gormlock.SealWhenOut(time.Hour))
			}, gormlock.Grouped(8), gormlock.WithWait(time.Minute))
		}
		all.Go(func() {
			defer close(reused)
			names := []string{"A"}
			want(t, "5 of 3", buy(names, 5), gormlock.ErrInsufficient)
			names[0] = "B" // the caller goes on with its own slice
		})
		eventually(t, "it waits", func() bool { return gormlock.Waiting(db) == 1 })
		all.Go(func() {
			ok(t, "another caller", gormlock.Transaction(db, "stock:A", func(tx *gorm.DB) error {
				<-reused
				return tx.Create(&Item{StockID: 1, Name: "x"}).Error
			}, gormlock.Grouped(8), gormlock.WithWait(time.Minute)))
		})
		eventually(t, "both wait", func() bool { return gormlock.Waiting(db) == 2 })
		ok(t, "Release", k.Release(t.Context()))
		all.Wait()
		eventually(t, "the group is over", func() bool { return !held(t, l, "stock:A") })
		if sealed(t, l, "stock:A") {
			t.Errorf("stock:A is sealed as sold out, and there are %d", left(t, db, 42))
		}
		ok(t, "1 of 3", buy([]string{"A"}, 1))
	})
}
