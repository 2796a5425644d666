package idempotency_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/idempotency"
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
