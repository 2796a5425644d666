package idempotency_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// A handler limits the time of its body, as huma does with 5 s, and then works for longer. The body was
// read before, for the key. The deadline must not end the work.
func TestBody_ReadDeadlineOfTheHandler(t *testing.T) {
	t.Parallel()
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).SetReadDeadline(time.Now()); err != nil {
			t.Error(err)
		}
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		select {
		case <-r.Context().Done():
			t.Errorf("the context ended: %v", context.Cause(r.Context()))
		case <-time.After(500 * time.Millisecond):
		}
		_, _ = w.Write(b)
	})
	mux := http.NewServeMux()
	mux.Handle("POST /orders", idempotency.LockByKey("order:{json.order}", idempotency.WithLocker(testutil.Locker(t)))(handler))
	a := serve(t, mux).post(context.Background(), "/orders", strings.NewReader(`{"order":7}`), "Content-Type", "application/json")
	a.want(t, 200, `{"order":7}`, false)
}
