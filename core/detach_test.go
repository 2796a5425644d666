package core_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
)

type detachKey struct{}

// detached returns the context of a clean-up for a caller that has a second.
func detached(t *testing.T) (ctx context.Context, cancelCaller, cancel context.CancelFunc) {
	caller, cancelCaller := context.WithTimeout(context.WithValue(t.Context(), detachKey{}, "value"), time.Second)
	ctx, cancel = core.Detach(caller)
	return ctx, cancelCaller, cancel
}

func TestDetach_EndsAtTheDeadlineOnly(t *testing.T) {
	for _, waits := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancelCaller, cancel := detached(t)
			defer cancel()
			child, cancelChild := context.WithCancel(context.Background())
			if waits {
				cancelChild()
				child, cancelChild = context.WithCancel(ctx)
			}
			defer cancelChild()
			cancelCaller()
			time.Sleep(time.Second - 1)
			synctest.Wait()
			if ctx.Err() != nil || child.Err() != nil {
				t.Errorf("it ended with its caller's context or too soon: %v, its child %v", ctx.Err(), child.Err())
			}
			if ctx.Value(detachKey{}) != "value" {
				t.Error("it lost the caller's values")
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				t.Errorf("after its deadline: %v", ctx.Err())
			}
			if waits && !errors.Is(child.Err(), context.DeadlineExceeded) {
				t.Errorf("its child after the deadline: %v", child.Err())
			}
			select {
			case <-ctx.Done():
			default:
				t.Error("Done is open after the deadline")
			}
		})
	}
}

// A child ends together with its parent, and so without a goroutine of its own that waits for that.
func TestDetach_Cancel(t *testing.T) {
	ctx, cancelCaller, cancel := detached(t)
	defer cancelCaller()
	child, cancelChild := context.WithCancel(ctx)
	defer cancelChild()
	cancel()
	if !errors.Is(child.Err(), context.Canceled) || !errors.Is(ctx.Err(), context.Canceled) {
		t.Errorf("after cancel: %v, its child %v", ctx.Err(), child.Err())
	}

	ctx, cancelCaller, cancel = detached(t)
	defer cancelCaller()
	cancel()
	if !errors.Is(ctx.Err(), context.Canceled) {
		t.Errorf("after cancel, and nobody waited: %v", ctx.Err())
	}
	<-ctx.Done()
}

func TestDetach_CancelAndThenTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancelCaller, cancel := detached(t)
		defer cancelCaller()
		cancel()
		time.Sleep(2 * time.Second)
		if !errors.Is(ctx.Err(), context.Canceled) {
			t.Errorf("canceled before its deadline: %v", ctx.Err())
		}
	})
}

// Package fmt may write a context while others use it.
func TestDetach_String(t *testing.T) {
	ctx, cancelCaller, cancel := detached(t)
	defer cancelCaller()
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() {
		for range 100 {
			_ = fmt.Sprint(ctx)
		}
	})
	all.Go(func() { ctx.Done() })
	all.Wait()
	if text := fmt.Sprint(ctx); !strings.Contains(text, "detached") {
		t.Errorf("it is written as %q", text)
	}
}
