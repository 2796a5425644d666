package backendtest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// A unit test of what runs under a lock needs no Redis.
func ExampleMemory() {
	locker, err := core.New(backendtest.Memory())
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	ctx := context.Background()
	lock, err := locker.Acquire(ctx, "stock:42")
	if err != nil {
		panic(err)
	}
	_, err = locker.TryAcquire(ctx, "stock:42")
	fmt.Println(errors.Is(err, core.ErrTaken))
	fmt.Println(lock.Release(ctx))
	// Output:
	// true
	// <nil>
}

// The tests below are the code in the comments of the functions that take a test.

func TestUsage_TestBackend(t *testing.T) {
	t.Parallel()
	backendtest.TestBackend(t, func(t *testing.T) core.Backend {
		return backendtest.Open(t, backendtest.Memory())
	})
}

func TestUsage_Open(t *testing.T) {
	t.Parallel()
	b := backendtest.Open(t, backendtest.Memory())
	g, err := b.Acquire(t.Context(), core.Request{Key: "stock:42", Owner: "me/1", TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Release(t.Context(), g); err != nil {
		t.Error(err)
	}
}

// A caller that gives up releases with a context that is done, or ends on a busy machine before the
// call begins.
func TestMemory_ReleaseWithADoneContext(t *testing.T) {
	b := backendtest.Open(t, backendtest.Memory())
	r := core.Request{Key: "k", Owner: "a", TTL: time.Minute}
	g, err := b.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Release(ctx, g); err != nil {
		t.Error(err)
	}
	r.Owner = "b"
	if _, err := b.Acquire(t.Context(), r); err != nil {
		t.Error(err)
	}
}
