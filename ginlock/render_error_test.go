package ginlock_test

import (
	"errors"
	"math"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// A handler logs an error with c.Error, redirects the form, and stops the chain. A redirect has no
// body after a POST, but it is the whole answer, and a retry gets it.
func TestErrors_RedirectBesideAnError(t *testing.T) {
	t.Parallel()
	for _, status := range []int{201, 303} {
		var runs atomic.Int64
		s := post(t, func(c *gin.Context) {
			runs.Add(1)
			_ = c.Error(errors.New("a mail was not sent"))
			c.Redirect(status, "/orders/7")
			c.Abort()
		})
		s.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		s.orderBy(s.client, "k").want(t, status, "", false)
		a := s.orderBy(s.client, "k")
		a.want(t, status, "", true)
		if got := a.header.Get("Location"); got != "/orders/7" {
			t.Errorf("Location %q", got)
		}
		if n := runs.Load(); n != 1 {
			t.Errorf("%d runs", n)
		}
	}
}

// ByHeader stands around RefuseRepeats, as the documents say. The answer cannot be rendered: the
// outer key must not replay the empty one either.
func TestErrors_RenderErrorUnderTwoKeys(t *testing.T) {
	t.Parallel()
	l := idempotency.WithLocker(testutil.Locker(t))
	s := serve(t, func(r *gin.Engine) {
		r.POST("/orders", ginlock.ByHeader(idempotencyKey, l), ginlock.RefuseRepeats(time.Minute, l),
			func(c *gin.Context) { c.JSON(201, math.NaN()) })
	})
	s.order("k", "").want(t, 201, "", false)
	s.order("k", "").wantProblem(t, 409, idempotency.CodeResponseNotKept)
}
