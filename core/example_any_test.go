package core_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/onelane/onelane/core"
)

// A pool of shared phone numbers: each caller gets one that is idle, and gives it back.
func ExampleLocker_AcquireAny() {
	locker := exampleLocker()
	defer locker.Close()
	ctx := context.Background()
	numbers := []string{"phone:555-0101", "phone:555-0102"}

	first, err := locker.AcquireAny(ctx, numbers)
	if err != nil {
		panic(err)
	}
	second, err := locker.AcquireAny(ctx, numbers)
	if err != nil {
		panic(err)
	}
	fmt.Println(first.Key() != second.Key())

	_, err = locker.AcquireAny(ctx, numbers, core.WithWait(0))
	fmt.Println(errors.Is(err, core.ErrTaken))

	_ = first.Release(ctx)
	third, err := locker.AcquireAny(ctx, numbers)
	fmt.Println(third.Key() == first.Key(), err)
	// Output:
	// true
	// true
	// true <nil>
}

// A semaphore with N slots is N keys. Never more than three exports run at a time, in all processes
// that share the backend.
func ExampleLocker_AcquireAny_semaphore() {
	locker := exampleLocker()
	defer locker.Close()
	ctx := context.Background()
	var exports sync.WaitGroup
	slots := make(chan struct{}, 3) // the example checks itself
	for range 20 {
		exports.Go(func() {
			lock, err := locker.AcquireAny(ctx, []string{"export:1", "export:2", "export:3"}) // three exports at a time, in all processes
			if err != nil {
				panic(err)
			}
			defer lock.Release(ctx)
			select {
			case slots <- struct{}{}:
				<-slots
			default:
				fmt.Println("too many")
			}
		})
	}
	exports.Wait()
	fmt.Println("20 exports are done")
	// Output: 20 exports are done
}

// Every instance starts the report at the full hour, by its own clock. One of them runs it. The slot
// is an hour, so that a retention of two hours is longer than the slot plus the largest difference of
// the clocks.
func ExampleLocker_DoOnce() {
	locker := exampleLocker()
	defer locker.Close()
	ctx := context.Background()
	report := func(ctx context.Context) error {
		fmt.Println("the report of", "2026-11-22T13")
		return nil
	}
	for range 3 { // three instances
		slot := time.Date(2026, 11, 22, 13, 0, 7, 0, time.UTC).Truncate(time.Hour).Format("2006-01-02T15") // of time.Now().UTC()
		ran, err := locker.DoOnce(ctx, core.Join("report", slot), 2*time.Hour, report)
		fmt.Println(ran, err)
	}
	// Output:
	// the report of 2026-11-22T13
	// true <nil>
	// false <nil>
	// false <nil>
}

// In a flash sale ten thousand requests may want one key. A few may wait; the others are turned away
// at once.
func ExampleWithMaxWaiters() {
	locker := exampleLocker(core.WithMaxWaiters(1))
	defer locker.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if _, err := locker.Acquire(ctx, "stock:42"); err != nil {
		panic(err)
	}
	answers := make(chan error)
	for range locker.MaxWaiters() + 1 {
		go func() {
			_, err := locker.Acquire(ctx, "stock:42")
			answers <- err
		}()
	}
	var taken *core.TakenError
	fmt.Println(errors.As(<-answers, &taken) && taken.QueueFull)
	cancel() // the other one waits until the context ends
	fmt.Println(errors.As(<-answers, &taken) && taken.QueueFull)
	// Output:
	// true
	// false
}
