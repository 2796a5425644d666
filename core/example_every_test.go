package core_test

import (
	"context"
	"fmt"
	"time"

	"github.com/onelane/onelane/core"
)

// Each instance of a service calls Every, and one of them runs the job each hour.
func ExampleEvery() {
	locker := exampleLocker()
	defer locker.Close()
	ctx, stop := context.WithCancel(context.Background()) // ends when the service stops
	cleanUp := func(context.Context) error {
		fmt.Println("cleaned up")
		stop()
		return nil
	}
	err := core.Every(ctx, locker, "clean-up", time.Hour, cleanUp)
	fmt.Println(err)
	// Output:
	// cleaned up
	// context canceled
}

// The report of a day is sent at most once. If nobody could begin it within an hour, it is left out.
func ExampleWithMisfireGrace() {
	locker := exampleLocker()
	defer locker.Close()
	ctx, stop := context.WithCancel(context.Background())
	send := func(context.Context) error {
		fmt.Println("sent")
		stop()
		return nil
	}
	err := core.Every(ctx, locker, "report", 24*time.Hour, send,
		core.WithMisfireGrace(time.Hour), core.WithAtMostOnce(), core.WithMaxHold(2*time.Hour))
	fmt.Println(err)
	// Output:
	// sent
	// context canceled
}
