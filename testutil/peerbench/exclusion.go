package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// exclusion is the fixture that every figure rests on: a peer's locks exclude, between goroutines
// and between processes. Two lockers that share nothing but Redis increment a counter without a
// mutex, and it must come out exact.
func exclusion(ctx context.Context, p peer, addr string) error {
	const goroutines, increments = 4, 10
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // for a waiter that nobody wakes: another test looks for that
	defer cancel()
	var c counter
	var held atomic.Int64
	var all sync.WaitGroup
	errs := make(chan error, 2*goroutines)
	for range 2 {
		l, closeIt, err := p.open(addr)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		defer closeIt()
		for range goroutines {
			all.Go(func() {
				for range increments {
					unlock, err := l.lock(ctx, "exclusion")
					if ctx.Err() != nil {
						return
					}
					if err != nil {
						errs <- err
						return
					}
					held.Add(1)
					c.increment(func() { time.Sleep(100 * time.Microsecond) })
					if err := unlock(ctx); err != nil && ctx.Err() == nil {
						errs <- err
						return
					}
				}
			})
		}
	}
	all.Wait()
	if err := c.check(held.Load()); err != nil { // before other errors, which may be forgiven
		return fmt.Errorf("%s: %w", p.name, err)
	}
	select {
	case err := <-errs:
		return fmt.Errorf("%s: %w", p.name, err)
	default:
	}
	if held.Load() < goroutines*increments {
		return fmt.Errorf("%s: in 5 s it was held %d times only", p.name, held.Load())
	}
	return nil
}
