package ginlock_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// A handler charges and forwards to a route that is refused.
func TestHandleContext_Refused(t *testing.T) {
	l := testutil.Locker(t)
	busy, err := l.TryAcquire(context.Background(), "ship")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Release(context.Background())
	var charges atomic.Int64
	s := serve(t, func(r *gin.Engine) {
		r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), func(c *gin.Context) {
			charges.Add(1)
			c.Request.URL.Path = "/ship"
			r.HandleContext(c)
		})
		r.POST("/ship", ginlock.LockByKey("ship", idempotency.WithLocker(l)), func(c *gin.Context) { c.String(200, "x") })
	})
	s.order("k", "{}")
	b := s.order("k", "{}")
	if charges.Load() != 1 {
		t.Errorf("%d charges: %v", charges.Load(), b)
	}
}

// embedding is a writer of an application between two middlewares. It has no Unwrap.
type embedding struct{ gin.ResponseWriter }

// Another middleware of this package stands outside of ByHeader, or none. HandleContext writes past
// them. The refused order must not be replayed as an empty 200, and a 409 does not free the key.
func TestHandleContext_TwoMiddlewares(t *testing.T) {
	t.Parallel()
	between := func(c *gin.Context) {
		c.Writer = embedding{c.Writer}
		c.Next()
	}
	for name, more := range map[string][]gin.HandlerFunc{"directly": {}, "with a writer between": {between}, "alone": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := idempotency.WithLocker(testutil.Locker(t))
			var runs atomic.Int64
			status := http.StatusInternalServerError
			if more == nil {
				status = http.StatusConflict
			}
			s := serve(t, func(r *gin.Engine) {
				var chain []gin.HandlerFunc
				if more != nil {
					chain = append([]gin.HandlerFunc{ginlock.LockByKey("shop", l)}, more...)
				}
				chain = append(chain, ginlock.ByHeader(idempotencyKey, l), func(c *gin.Context) {
					runs.Add(1)
					c.Request.URL.Path = "/v2/orders"
					r.HandleContext(c)
				})
				r.POST("/orders", chain...)
				r.POST("/v2/orders", func(c *gin.Context) { c.String(status, "charged, not shipped") })
			})
			s.order("k", "{}").want(t, status, "charged, not shipped", false)
			s.order("k", "{}").wantProblem(t, 409, idempotency.CodeResponseNotKept)
			if n := runs.Load(); n != 1 {
				t.Errorf("%d runs", n)
			}
		})
	}
}
