package backendtest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onelane/onelane/core"
)

// every lets three instances have a job, one of which stops in the middle. A slot runs once, and a
// recorded slot never runs again.
func (s *suite) every() {
	const interval, slots = 100 * time.Millisecond, 6
	name, lockers := s.plainKeys(1)[0], s.lockers(4)
	var runs, at atomic.Int64
	job := func(context.Context) error {
		if at.Add(1) > 1 {
			s.Errorf("two runs at a time")
		}
		runs.Add(1)
		time.Sleep(time.Millisecond)
		at.Add(-1)
		return nil
	}
	began := time.Now()
	var all sync.WaitGroup
	instance := func(l *core.Locker, interval time.Duration) (stop func()) {
		ctx, cancel := context.WithCancel(s.ctx)
		all.Go(func() {
			if err := core.Every(ctx, l, name, interval, job); !errors.Is(err, context.Canceled) {
				s.Errorf("Every: %v", err)
			}
		})
		return cancel
	}
	stops := []func(){instance(lockers[0], interval), instance(lockers[1], interval), instance(lockers[2], interval)}
	for i, stop := range stops {
		s.await("its slots", func() bool { return runs.Load() >= int64((i+1)*slots) })
		stop()
	}
	all.Wait()
	// Each measurement of a slot is as exact as a round trip, on a busy machine, too.
	if most := int64(time.Since(began)/(interval*3/4)) + 1; runs.Load() > most {
		s.Errorf("%d runs, want %d at most", runs.Load(), most)
	}
	before := runs.Load()
	stop := instance(lockers[3], time.Hour)
	time.Sleep(5 * look)
	stop()
	all.Wait()
	if n := runs.Load() - before; n > 0 {
		s.Errorf("an instance that came later ran a recorded slot")
	}
}
