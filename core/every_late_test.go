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

// late is a place whose process stands still before its nth Unseal of a record, which it sends in the end.
type late struct {
	place
	n    int // until then
	ends chan struct{}
}

func (p *late) Unseal(ctx context.Context, key string) error {
	if p.n--; p.n == 0 {
		p.away.Store(true)
		go func() {
			<-p.ends
			if err := p.MemoryBackend.Unseal(context.Background(), key); err != nil {
				panic(err)
			}
		}()
	}
	return p.place.Unseal(ctx, key)
}

// A process that stood still unseals what another instance has recorded since. The last slot runs again, and
// the others keep their times.
func TestEvery_LateUnseal(t *testing.T) {
	t.Parallel()
	for n := 2; n <= 4; n++ { // of the first record alone there is none before
		for _, later := range []time.Duration{15 * time.Second, 75 * time.Second, 135 * time.Second} {
			synctest.Test(t, func(t *testing.T) {
				b, j := backendtest.Memory(), newJob()
				p := &late{n: n, ends: make(chan struct{})}
				p.MemoryBackend = b
				stop := every(locker(t, p), j.run(t, time.Second))
				for !p.away.Load() {
					time.Sleep(time.Second)
				}
				other := every(locker(t, b), j.run(t, time.Second))
				time.Sleep(later)
				close(p.ends)
				time.Sleep(5 * time.Second)
				third := every(locker(t, b), j.run(t, time.Second)) // it looks at once
				time.Sleep(3 * minute)
				stopped(t, stop)
				stopped(t, other)
				stopped(t, third)
				again := 0
				for _, at := range j.seen() {
					if at%minute > 3*time.Second {
						again++
					}
				}
				if again > 2 { // the slot that was not recorded, and the one whose record went
					t.Errorf("the %d. Unseal came %v late: runs at %v", n, later, j.seen())
				}
			})
		}
	}
}
