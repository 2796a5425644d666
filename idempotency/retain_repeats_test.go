package idempotency_test

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

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
