package idempotency_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// After StillUnknown the next Recover gets the run that may have charged, not the retry that did
// nothing.
func TestRecover_ToldOfTheFirstRun(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	var told []idempotency.Run
	s := orders(t, shortLocker(t), func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		panic("after the charge")
	}, idempotency.Recover(func(w http.ResponseWriter, r *http.Request, earlier idempotency.Run) idempotency.Recovery {
		told = append(told, earlier)
		return idempotency.StillUnknown
	}))
	s.order("", "X-Request-Id", "first")
	ended(t, func() answer { return s.order("", "X-Request-Id", "second") })
	time.Sleep(500 * time.Millisecond)
	ended(t, func() answer { return s.order("", "X-Request-Id", "third") })
	if len(told) != 2 || told[1].RequestID != "first" || told[1].Begun.Sub(told[0].Begun).Abs() > 10*time.Millisecond {
		t.Errorf("%d runs; Recover was told %+v", runs.Load(), told)
	}
}

// Step in two goroutines of one claim, the first of which did nothing.
func TestStep_TwiceAtOnce(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	s := orders(t, testutil.Locker(t), func(w http.ResponseWriter, r *http.Request) {
		out := make(chan string, 2)
		for range 2 {
			go func() {
				v, err := idempotency.Step(r.Context(), "charge", func(context.Context) (int64, error) {
					time.Sleep(20 * time.Millisecond)
					n := calls.Add(1)
					if n == 1 {
						return 0, idempotency.ErrNothingDone
					}
					return n, nil
				})
				out <- fmt.Sprint(v, err)
			}()
		}
		both := []string{<-out, <-out}
		slices.Sort(both) // either may be heard first
		v, err := idempotency.Step(r.Context(), "charge", func(context.Context) (int64, error) { return calls.Add(1), nil })
		fmt.Fprint(w, both[0], "|", both[1], "|", v, err)
	})
	s.order("").want(t, 200, "0 nothing was done|2 <nil>|2 <nil>", false)
}
