package ginlock_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// Gin's own Context is a context.Context, and it does not look into the request's. A handler passes
// it, or a child of it, all the same.
func TestContext_OfGin(t *testing.T) {
	t.Parallel()
	type own struct{}
	for _, fallback := range []bool{false, true} {
		var runs atomic.Int64
		s := serve(t, func(r *gin.Engine) {
			r.ContextWithFallback = fallback
			r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(testutil.Locker(t))), func(c *gin.Context) {
				runs.Add(1)
				child := context.WithValue(c, own{}, 1)
				want, err := idempotency.DeriveKey(c.Request.Context(), "charge")
				if got, failed := idempotency.DeriveKey(child, "charge"); err != nil || failed != nil || got != want {
					t.Errorf("DeriveKey: %s, %v; want %s, %v", got, failed, want, err)
				}
				idempotency.NothingDone(child)
				c.String(500, "nothing was done")
			})
		})
		s.order("k", "{}").want(t, 500, "nothing was done", false)
		s.order("k", "{}").want(t, 500, "nothing was done", false)
		if n := runs.Load(); n != 2 {
			t.Errorf("fallback %v: %d runs", fallback, n)
		}
	}
}
