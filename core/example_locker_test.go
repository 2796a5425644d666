package core_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// exampleLocker is a Locker in memory; a service has core.New(redisbackend.New(redisClient)).
func exampleLocker(opts ...core.Option) *core.Locker {
	locker, err := core.New(backendtest.Memory(), opts...)
	if err != nil {
		panic(err)
	}
	return locker
}

// The second caller waits until the first is done, and has the larger token.
func ExampleLocker_Acquire() {
	locker := exampleLocker()
	defer locker.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second) // waits so long at most
	defer cancel()

	first, err := locker.Acquire(ctx, "stock:42")
	if err != nil {
		panic(err)
	}
	go func() {
		fmt.Println("the first works")
		_ = first.Release(ctx)
	}()
	second, err := locker.Acquire(ctx, "stock:42")
	if err != nil {
		panic(err)
	}
	defer second.Release(ctx)
	fmt.Println("then the second")
	// Output:
	// the first works
	// then the second
}

// Money goes from one account to another: both are locked, or none. Two transfers in opposite
// directions do not wait for each other forever.
func ExampleLocker_AcquireAll() {
	locker := exampleLocker()
	defer locker.Close()
	ctx := context.Background()
	locks, err := locker.AcquireAll(ctx, []string{"account:2", "account:1"}, core.WithWait(10*time.Second))
	if err != nil {
		panic(err)
	}
	for _, lock := range locks {
		fmt.Println(lock.Key())
	}
	fmt.Println(locks.Release(ctx))
	// Output:
	// account:1
	// account:2
	// <nil>
}

// The function's context ends when its lock is lost, and Do says that it was: what was done may not
// have been alone.
func ExampleLocker_Do() {
	locker := exampleLocker(core.WithTTL(50*time.Millisecond), core.WithMaxHold(50*time.Millisecond))
	defer locker.Close()
	err := locker.Do(context.Background(), "report", func(ctx context.Context) error {
		select {
		case <-time.After(10 * time.Second): // too long for WithMaxHold
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	fmt.Println(errors.Is(err, core.ErrLost))
	// Output: true
}

// The lock lasts for as long as the work is expected to take, and is not renewed: the caller
// extends it.
func ExampleLock_Extend() {
	locker := exampleLocker()
	defer locker.Close()
	ctx := context.Background()
	lock, err := locker.Acquire(ctx, "import", core.WithTTL(5*time.Second), core.WithMaxHold(0))
	if err != nil {
		panic(err)
	}
	defer lock.Release(ctx)
	fmt.Println(time.Until(lock.Deadline()) > 5*time.Second)
	if err := lock.Extend(ctx, time.Minute); err != nil {
		panic(err)
	}
	fmt.Println(time.Until(lock.Deadline()) > 30*time.Second)
	// Output:
	// false
	// true
}

// Work under the lock's context: it ends with the lock, and says why.
func ExampleLock_Context() {
	locker := exampleLocker()
	defer locker.Close()
	ctx := context.Background()
	lock, err := locker.Acquire(ctx, "stock:42", core.WithTTL(20*time.Millisecond), core.WithMaxHold(0))
	if err != nil {
		panic(err)
	}
	<-lock.Context().Done() // the lease has run out
	fmt.Println(errors.Is(context.Cause(lock.Context()), core.ErrLost))
	fmt.Println(errors.Is(lock.Err(), core.ErrLost))
	fmt.Println(errors.Is(lock.Release(ctx), core.ErrLost))
	// Output:
	// true
	// true
	// true
}

// The caller hangs up, and the work goes on. It ends only if the lock is lost.
func ExampleLock_OnLoss() {
	locker := exampleLocker()
	defer locker.Close()
	ctx, hangUp := context.WithCancel(context.Background())
	lock, err := locker.Acquire(ctx, "payment:8")
	if err != nil {
		panic(err)
	}
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	lock.OnLoss(cancel)
	hangUp()
	fmt.Println(work.Err())
	locker.Close() // a process that ends
	fmt.Println(errors.Is(context.Cause(work), core.ErrClosed), locker.Prefix())
	// Output:
	// <nil>
	// true onelane:
}

// A payment was sent and no answer came. The holder cannot know whether the work is over, so no
// other caller gets the key before the lease ends.
func ExampleLock_Lapse() {
	locker := exampleLocker()
	defer locker.Close()
	ctx := context.Background()
	lock, err := locker.Acquire(ctx, "payment:9")
	if err != nil {
		panic(err)
	}
	lock.Lapse()
	_, err = locker.TryAcquire(ctx, "payment:9")
	fmt.Println(errors.Is(err, core.ErrTaken))
	// Output: true
}

// A payment failed in the middle. The next caller learns at once that nobody knows what it did.
func ExampleLock_Orphan() {
	locker := exampleLocker()
	defer locker.Close()
	ctx := context.Background()
	lock, err := locker.Acquire(ctx, "payment:10", core.WithOrphan(24*time.Hour))
	if err != nil {
		panic(err)
	}
	if err := lock.Orphan(ctx); err != nil {
		panic(err)
	}
	_, err = locker.TryAcquire(ctx, "payment:10")
	fmt.Println(errors.Is(err, core.ErrOrphaned))
	// Output: true
}

// A function that must only be called under a lock can check it.
func ExampleLocker_Carries() {
	locker := exampleLocker()
	defer locker.Close()
	take := func(ctx context.Context) error {
		if !locker.Carries(ctx, "stock:42") {
			return errors.New("take needs the lock on stock:42")
		}
		return nil
	}
	ctx := context.Background()
	fmt.Println(take(ctx))
	fmt.Println(locker.Do(ctx, "stock:42", take))
	// Output:
	// take needs the lock on stock:42
	// <nil>
}

// An operator revokes a lock when its holder hangs. The command onelanectl does the same.
func ExampleLocker_Revoke() {
	locker := exampleLocker(core.WithInstance("shop-1"))
	defer locker.Close()
	ctx := context.Background()
	hanging, err := locker.Acquire(ctx, "stock:42", core.WithTag("order 7"))
	if err != nil {
		panic(err)
	}
	state, err := locker.Inspect(ctx, "stock:42")
	fmt.Println(state.Status, err)
	fmt.Println(locker.Revoke(ctx, "stock:42", state.Owner)) // of this owner only
	fmt.Println(errors.Is(hanging.Release(ctx), core.ErrLost))
	// Output:
	// held <nil>
	// <nil>
	// true
}

// A sold-out key answers every caller at once, until there is new stock.
func ExampleLocker_Unseal() {
	locker := exampleLocker()
	defer locker.Close()
	ctx := context.Background()
	lock, err := locker.Acquire(ctx, "stock:42")
	if err != nil {
		panic(err)
	}
	if err := lock.Seal(ctx, []byte("sold out"), time.Hour); err != nil {
		panic(err)
	}
	_, err = locker.Acquire(ctx, "stock:42")
	fmt.Println(errors.Is(err, core.ErrSealed))

	if err := locker.Unseal(ctx, "stock:42"); err != nil { // new stock has come
		panic(err)
	}
	_, err = locker.Acquire(ctx, "stock:42")
	fmt.Println(err)
	// Output:
	// true
	// <nil>
}

// A holder died in the middle of a payment. The key is not free: somebody has to find out what
// happened first.
func ExampleWithOrphan() {
	locker := exampleLocker(core.WithTTL(20 * time.Millisecond))
	defer locker.Close()
	ctx := context.Background()
	holder, err := locker.Acquire(ctx, "payment:9", core.WithOrphan(24*time.Hour), core.WithMaxHold(0))
	if err != nil {
		panic(err)
	}
	<-holder.Context().Done() // its lease ends

	_, err = locker.Acquire(ctx, "payment:9")
	var orphan *core.OrphanedError
	fmt.Println(errors.As(err, &orphan), orphan.Owner == holder.Owner())

	lock, err := locker.Adopt(ctx, orphan)
	fmt.Println(lock.Key(), err)
	// Output:
	// true true
	// payment:9 <nil>
}

// A fencing token is larger than that of every earlier holder. WithToken saves a round trip.
func ExampleLock_Token() {
	locker := exampleLocker(core.WithOutageWait(3 * time.Second)) // an outage of Redis is bridged for 3 s
	defer locker.Close()
	ctx := context.Background()
	var last uint64
	for range 2 {
		lock, err := locker.Acquire(ctx, "stock:42", core.WithToken())
		if err != nil {
			panic(err)
		}
		token, err := lock.Token(ctx)
		fmt.Println(token > last, err)
		last = token
		if err := lock.Release(ctx); err != nil {
			panic(err)
		}
	}
	// Output:
	// true <nil>
	// true <nil>
}

// A service that needs records checks its Locker when it starts. A quorum of Redis masters keeps
// leases and tokens only.
func ExampleLocker_Seals() {
	locker := exampleLocker()
	defer locker.Close()
	if !locker.Seals() {
		panic(core.ErrNoSeals)
	}
	fmt.Println("records can be kept")
	// Output: records can be kept
}
