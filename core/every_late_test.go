package core_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// paused is a place whose process stands still while it looks at the record under the job's lock.
type paused struct {
	place
	looks int // until then
}

func (p *paused) Inspect(ctx context.Context, key string) (core.State, error) {
	st, err := p.place.Inspect(ctx, key)
	if p.looks--; p.looks == 0 {
		p.away.Store(true)
		time.Sleep(12 * time.Second)
	}
	return st, err
}

// The function does not begin if the lock was lost before: another instance runs the slot then.
func TestEvery_LockLostBeforeRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, j := backendtest.Memory(), newJob()
		p := &paused{looks: 4} // two keys, before the lock and under it
		p.MemoryBackend = b
		stop := every(locker(t, p), func(context.Context) error {
			t.Error("the function begins, and its lock is lost")
			return nil
		})
		time.Sleep(time.Second)
		other := every(locker(t, b), j.run(t, 20*time.Second))
		time.Sleep(30 * time.Second)
		stopped(t, stop)
		stopped(t, other)
		if runs := j.seen(); p.looks > 0 || len(runs) != 1 || runs[0] > 12*time.Second {
			t.Errorf("the other instance ran at %v", runs)
		}
	})
}
