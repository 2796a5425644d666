package idempotency_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
)

// A handler under a plain lock sees the deadline of the server, and how its context ended.
func TestLockByKey_Deadline(t *testing.T) {
	t.Parallel()
	for want, end := range map[error]func(cancel func()){
		context.DeadlineExceeded: func(func()) { time.Sleep(time.Second) },
		context.Canceled:         func(cancel func()) { cancel() },
	} {
		synctest.Test(t, func(t *testing.T) {
			lock := idempotency.LockByKey("stock:42", idempotency.WithLocker(check.Locker(t, backendtest.Memory())))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			h := lock(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				got, _ := r.Context().Deadline()
				if deadline, _ := ctx.Deadline(); !got.Equal(deadline) {
					t.Errorf("the handler has the deadline %v, want %v", got, deadline)
				}
				end(cancel)
				<-r.Context().Done()
				if err := r.Context().Err(); err != want {
					t.Errorf("the handler's context ended with %v, want %v", err, want)
				}
			}))
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "POST", "/", nil))
		})
	}
}
