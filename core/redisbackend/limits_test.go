package redisbackend

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Calls of a moment share a limit, which never ends before the time-out and at most a sixteenth later.
func TestLimits_Bound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout = 1600 * time.Millisecond
		var l limits
		made := map[context.Context]bool{}
		for range 200 {
			now := time.Now()
			bound := l.bound(t.Context(), now, timeout)
			made[bound] = true
			if bound.Err() != nil {
				t.Fatalf("it has ended: %v", bound.Err())
			}
			end, ok := bound.Deadline()
			if late := end.Sub(now.Add(timeout)); !ok || late < 0 || late > timeout/limitParts {
				t.Fatalf("it ends %v after the time-out", late)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if len(made) > 20 {
			t.Errorf("200 calls in 2 s had %d limits", len(made))
		}
		short := l.bound(t.Context(), time.Now(), timeout/4)
		began := time.Now()
		<-short.Done()
		if took := time.Since(began); took < timeout/4 || took > timeout/4*(limitParts+1)/limitParts {
			t.Errorf("a shorter time-out ended after %v", took)
		}
		if !errors.Is(short.Err(), context.DeadlineExceeded) {
			t.Errorf("it ended with %v", short.Err())
		}
		time.Sleep(2 * timeout)
	})
}

// A caller that gives up before the time-out does not share.
func TestLimits_Caller(t *testing.T) {
	t.Parallel()
	var l limits
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	sooner, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	later, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	for what, ctx := range map[string]context.Context{"canceled": canceled, "sooner": sooner} {
		if l.bound(ctx, time.Now(), 2*time.Minute) != ctx {
			t.Errorf("a context that ended or ends %s is replaced", what)
		}
	}
	if l.bound(later, time.Now(), 2*time.Minute) == later {
		t.Error("a context that ends later bounds the call")
	}
	soon, cancel := context.WithTimeout(t.Context(), 2*time.Minute+time.Second)
	defer cancel()
	bound := l.bound(soon, time.Now(), 2*time.Minute)
	end, _ := bound.Deadline()
	if deadline, _ := soon.Deadline(); end.After(deadline) {
		t.Errorf("a call may end %v after its caller's deadline", end.Sub(deadline))
	}
}
