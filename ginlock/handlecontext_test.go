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

// The same without a refusal holds: 409 of the route itself is not kept.
func TestHandleContext_409(t *testing.T) {
	l := testutil.Locker(t)
	var charges atomic.Int64
	s := serve(t, func(r *gin.Engine) {
		r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), func(c *gin.Context) {
			charges.Add(1)
			c.Request.URL.Path = "/ship"
			r.HandleContext(c)
		})
		r.POST("/ship", func(c *gin.Context) { c.String(409, "x") })
	})
	s.order("k", "{}")
	s.order("k", "{}").wantProblem(t, 409, idempotency.CodeResponseNotKept)
}
