package core_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// In production the backend is redisbackend.New(redisClient).
func Example() {
	locker, err := core.New(backendtest.Memory())
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	err = locker.Do(context.Background(), "stock:42", func(ctx context.Context) error {
		fmt.Println("one at a time")
		return nil
	})
	fmt.Println(err)
	// Output:
	// one at a time
	// <nil>
}

func ExampleLocker_TryAcquire() {
	locker, _ := core.New(backendtest.Memory(), core.WithInstance("shop-1"))
	defer locker.Close()
	ctx := context.Background()
	lock, err := locker.TryAcquire(ctx, core.Join("order", "7"), core.WithTag("courier 1"))
	fmt.Println(lock.Key(), err)

	_, err = locker.TryAcquire(ctx, "order:7")
	var taken *core.TakenError
	fmt.Println(errors.Is(err, core.ErrTaken), errors.As(err, &taken), taken.Tag)

	fmt.Println(lock.Release(ctx))
	// Output:
	// order:7 <nil>
	// true true courier 1
	// <nil>
}

// A seal ends a lock by leaving a value instead of freeing the key.
func ExampleLock_Seal() {
	locker, _ := core.New(backendtest.Memory())
	defer locker.Close()
	ctx := context.Background()
	lock, _ := locker.Acquire(ctx, "payment:9")
	fmt.Println(lock.Seal(ctx, []byte("charged"), 24*time.Hour))

	_, err := locker.Acquire(ctx, "payment:9")
	var sealed *core.SealedError
	if errors.As(err, &sealed) {
		fmt.Printf("%s\n", sealed.Value)
	}
	fmt.Println(locker.Unseal(ctx, "payment:9"))
	// Output:
	// <nil>
	// charged
	// <nil>
}

func ExampleWithLock() {
	locker, _ := core.New(backendtest.Memory())
	defer locker.Close()
	lock, _ := locker.Acquire(context.Background(), "k")
	ctx := core.WithLock(context.Background(), lock)

	again, err := locker.TryAcquire(ctx, "k") // does not wait for itself
	fmt.Println(err, again.Owner() == lock.Owner())
	_, err = locker.TryAcquire(core.WithLock(ctx, nil), "k")
	fmt.Println(errors.Is(err, core.ErrTaken))
	// Output:
	// <nil> true
	// true
}
