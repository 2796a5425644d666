package idempotency_test

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

// 401 frees a form whatever Decide says, so that it can be sent after the login.
func TestRefuseRepeats_401(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	keep := idempotency.Decide(func(int, http.Header) idempotency.Fate { return idempotency.KeepAnswer })
	l := idempotency.WithLocker(testutil.Locker(t))
	h := idempotency.RefuseRepeats(time.Minute, l, idempotency.Principal(byUser), keep)
	s := serve(t, h(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if runs.Add(1) == 1 {
			w.WriteHeader(401)
			return
		}
		fmt.Fprint(w, "made")
	})))
	_ = s.order("form", "X-User", "ann")
	s.order("form", "X-User", "ann", "Authorization", "right").want(t, 200, "made", false)
}

// A Retry-After of a middleware outside does not make a 503 of the handler "nothing was done".
func TestRefuseRepeats_RetryAfterFromOutside(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	form := idempotency.RefuseRepeats(time.Minute, idempotency.WithLocker(testutil.Locker(t)))
	h := form(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		runs.Add(1)
		w.WriteHeader(503)
	}))
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "3") // every answer of the gateway has it
		h.ServeHTTP(w, r)
	}))
	s.order("form")
	s.order("form")
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}

// The window is a retention, and has its limits: the Locker would refuse it with each request.
func TestRefuseRepeats_LongWindow(t *testing.T) {
	t.Parallel()
	const tenYears = 10 * 365 * 24 * time.Hour
	for _, window := range []time.Duration{math.MaxInt64, tenYears + 1} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, "must be at most 87600h0m0s") {
					t.Errorf("RefuseRepeats(%v): panic %q does not say the limit", window, got)
				}
			}()
			idempotency.RefuseRepeats(window)
		}()
	}
	idempotency.RefuseRepeats(tenYears)
}

// RetainFor is about the answer, which ByHeader records, and not about the window of RefuseRepeats.
func TestRetainFor_AndRefuseRepeats(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := idempotency.WithLocker(testutil.Locker(t))
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		idempotency.RetainFor(r.Context(), time.Hour)
		counter(&runs)(w, r)
	})
	s := serve(t, idempotency.ByHeader("Idempotency-Key", l, idempotency.Retain(20*time.Millisecond))(
		idempotency.RefuseRepeats(20*time.Millisecond, l)(h)))
	s.order("form", "Idempotency-Key", "first").want(t, 201, "run 1", false)
	time.Sleep(200 * time.Millisecond)
	// The answer is still recorded.
	if a := s.order("form", "Idempotency-Key", "first"); !a.replayed() {
		t.Errorf("after the window the retry got %d %s, want the recorded answer", a.status, a.body)
	}
	// The same order may be placed once more: the window is over.
	check.Eventually(t, "the window is over", func() bool {
		return s.order("form", "Idempotency-Key", "second").status == http.StatusCreated
	})
}
