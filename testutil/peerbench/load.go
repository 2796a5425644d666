package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// tally is what came of a load.
type tally struct {
	ops   int           // that ended within the time
	held  int64         // locks taken, including those after the time
	time  time.Duration // what was given
	waits *hdrhistogram.Histogram
}

func newWaits() *hdrhistogram.Histogram { return hdrhistogram.New(1, int64(time.Minute), 2) }

func (t tally) perSecond() float64 { return float64(t.ops) / t.time.Seconds() }

// wait is a quantile of the waits, in ms.
func (t tally) wait(q float64) float64 {
	if t.waits == nil {
		return 0
	}
	return float64(t.waits.ValueAtQuantile(q)) / 1e6
}

// overtime is how long a wait may last when the time of a load is over. A waiter that nobody woke
// is given up then.
const overtime = 12 * time.Second

// load runs op in so many goroutines, again and again until the time is over. op returns how long
// it waited. The load waits for calls under way at the end, and counts them as a wait only.
func load(ctx context.Context, d time.Duration, goroutines int, op func(ctx context.Context, worker int) (time.Duration, error)) (tally, error) {
	t := tally{time: d, waits: newWaits()}
	ctx, cancel := context.WithTimeout(ctx, d+overtime)
	defer cancel()
	var mu sync.Mutex
	var failed error
	var stop atomic.Bool
	var all sync.WaitGroup
	start := make(chan struct{})
	var end time.Time
	for worker := range goroutines {
		all.Go(func() {
			waits, ops, held := newWaits(), 0, int64(0)
			<-start
			var err error
			for !stop.Load() && err == nil {
				var wait time.Duration
				began := time.Now()
				switch wait, err = op(ctx, worker); {
				case err == nil:
					held++
					if time.Now().Before(end) {
						ops++
					}
				case ctx.Err() != nil: // given up
					wait, err = time.Since(began), nil
				default:
					continue
				}
				_ = waits.RecordValue(int64(wait)) // of less than a minute
			}
			mu.Lock()
			defer mu.Unlock()
			t.ops += ops
			t.held += held
			t.waits.Merge(waits)
			if err != nil {
				stop.Store(true)
				failed = err
			}
		})
	}
	end = time.Now().Add(d)
	close(start)
	over := time.AfterFunc(d, func() { stop.Store(true) })
	all.Wait()
	over.Stop()
	return t, failed
}

// The holders of one lock share counter, which has no mutex: increments that overlap are lost.
type counter struct{ n atomic.Int64 }

// increment is a read and a write, as work under a lock has them.
func (c *counter) increment(between func()) {
	n := c.n.Load()
	if between != nil {
		between()
	}
	c.n.Store(n + 1)
}

func (c *counter) check(want int64) error {
	if got := c.n.Load(); got != want {
		return fmt.Errorf("it does not exclude: of %d increments under the lock %d were lost", want, want-got)
	}
	return nil
}

// counters are one for each key.
type counters []counter

// check is counter.check for the sum.
func (cs counters) check(want int64) error {
	var sum counter
	for i := range cs {
		sum.n.Add(cs[i].n.Load())
	}
	return sum.check(want)
}

// count runs op so many times in each goroutine. The time of the tally is what it took.
func count(ctx context.Context, goroutines, each int, op func(ctx context.Context, worker int) (time.Duration, error)) (tally, error) {
	t := tally{ops: goroutines * each, held: int64(goroutines * each), waits: newWaits()}
	var mu sync.Mutex
	var failed error
	var all sync.WaitGroup
	began := time.Now()
	for worker := range goroutines {
		all.Go(func() {
			for range each {
				wait, err := op(ctx, worker)
				mu.Lock()
				if err != nil {
					failed = err
				}
				_ = t.waits.RecordValue(int64(wait))
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	all.Wait()
	t.time = time.Since(began)
	return t, failed
}
