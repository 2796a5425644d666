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

// TestGrouped_BooksOfLargeGroups is TestGrouped_Books with as many callers in one group as there may be.
func TestGrouped_BooksOfLargeGroups(t *testing.T) {
	t.Parallel()
	const size = 64
	how := chaos{
		group:  func() int { return size },
		wait:   func() time.Duration { return time.Minute },
		short:  20,
		faults: 400 * time.Millisecond,
	}
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		how := how
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Entry{}))
		put(t, db, 42, 100000)
		put(t, db, 43, 100000)
		through, p := behindProxy(t, db)
		if p == nil {
			through = db
		} else {
			defer p.chance.Store(0)
		}
		h := &hooked{Sealer: backendtest.Memory()}
		l := locker(t, h, core.WithTTL(time.Second))
		ok(t, "Use", through.Use(gormlock.New(l)))
		gormlock.SetGroupTimes(through, time.Second, 2*time.Second)
		var calls []*call
		inGroup := make(map[uint64]int)
		largest := 0
		for round := 0; round < 5 || round < 12 && largest < size; round++ {
			if round >= 5 { // a slow machine needs more time for a large group
				slower := time.Duration(round - 3)
				gormlock.SetGroupTimes(through, slower*time.Second, 2*slower*time.Second)
				how.faults = slower * 400 * time.Millisecond
			}
			k, err := l.Acquire(t.Context(), "k", core.WithTTL(time.Minute))
			ok(t, "Acquire", err)
			var callers, faults sync.WaitGroup
			now := calls[len(calls):]
			for range 2 * size { // some leave early
				c := &call{id: len(calls) + 1, key: "k"}
				calls, now = append(calls, c), append(now, c)
				callers.Go(func() { c.err = c.run(t.Context(), through, how) })
			}
			eventually(t, "all wait", func() bool { return gormlock.Waiting(through) >= size+size/4 })
			if p != nil {
				p.chance.Store(1)
			}
			ok(t, "Release", k.Release(t.Context()))
			done := make(chan struct{})
			faults.Go(func() { disturb(t, db, h, how.faults, done) })
			callers.Wait()
			close(done)
			faults.Wait()
			eventually(t, "nothing is held", func() bool {
				return inUse(t, through) == 0 && !held(t, l, "k") && gormlock.Queues(through) == 0
			})
			for _, c := range now {
				if c.group != 0 { // it ran, and its group's lock was not lost
					inGroup[c.group]++
					largest = max(largest, inGroup[c.group])
				}
			}
		}
		t.Logf("the largest group had %d callers, in %d calls", largest, len(calls))
		if largest > size || largest <= size/2 { // on a busy machine time ends a group early
			t.Errorf("the largest group had %d callers, want %d", largest, size)
		}
		audit(t, db, calls)
	})
}
