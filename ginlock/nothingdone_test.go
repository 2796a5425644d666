package ginlock_test

import (
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// Gin's own Context works as the request's, with and without its fallback.
func TestNothingDone_GinsContext(t *testing.T) {
	t.Parallel()
	for _, fallback := range []bool{false, true} {
		var runs atomic.Int64
		s := serve(t, func(r *gin.Engine) {
			r.ContextWithFallback = fallback
			r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(testutil.Locker(t))), func(c *gin.Context) {
				runs.Add(1)
				idempotency.NothingDone(c)
				c.Status(http.StatusInternalServerError)
			})
		})
		for range 2 {
			s.do(http.MethodPost, "/orders", "7", idempotencyKey, "k")
		}
		if runs.Load() != 2 {
			t.Errorf("fallback %v: %d runs", fallback, runs.Load())
		}
	}
}
