package ginlock_test

import (
	"bytes"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// signing holds an answer back, as writers that sign, encrypt or limit the time do. Handlers that write
// a body do not call WriteHeaderNow, so it does not override that.
type signing struct {
	gin.ResponseWriter
	status int
	body   bytes.Buffer
}

func (w *signing) WriteHeader(status int)            { w.status = status }
func (w *signing) Write(b []byte) (int, error)       { return w.body.Write(b) }
func (w *signing) WriteString(s string) (int, error) { return w.body.WriteString(s) }

func signed(c *gin.Context) {
	w := &signing{ResponseWriter: c.Writer, status: 200}
	c.Writer = w
	c.Next()
	c.Writer = w.ResponseWriter
	c.Header("X-Signature", strconv.Itoa(w.body.Len()))
	c.Writer.WriteHeader(w.status)
	_, _ = c.Writer.Write(w.body.Bytes())
}

// A middleware outside may hold the answer back. Its status and its headers are sent, even for a
// replay and a refusal.
func TestOrder_HeldBackOutside(t *testing.T) {
	t.Parallel()
	l := idempotency.WithLocker(testutil.Locker(t))
	var runs atomic.Int64
	s := serve(t, func(r *gin.Engine) {
		r.POST("/without", signed, counter(new(atomic.Int64)))
		r.POST("/orders", signed, ginlock.ByHeader(idempotencyKey, l), ginlock.LockByKey("orders", l), counter(&runs))
	})
	s.do("POST", "/without", "").want(t, 201, "run 1", false)
	for _, replayed := range []bool{false, true} {
		a := s.order("k", "")
		a.want(t, 201, "run 1", replayed)
		if got := a.header.Get("X-Signature"); got != "5" {
			t.Errorf("replayed %v: the signature is %q", replayed, got)
		}
	}
	s.order("k", "other").wantProblem(t, 422, idempotency.CodeKeyReused)
}

// An answer may be a status alone, as that of a redirection after a form is.
func TestOrder_StatusAloneHeldBackOutside(t *testing.T) {
	t.Parallel()
	l := idempotency.WithLocker(testutil.Locker(t))
	s := serve(t, func(r *gin.Engine) {
		done := func(c *gin.Context) { c.Redirect(http.StatusSeeOther, "/orders/7") }
		r.POST("/without", signed, done)
		r.POST("/orders", signed, ginlock.ByHeader(idempotencyKey, l), done)
		r.POST("/twice", signed, ginlock.ByHeader(idempotencyKey, l), ginlock.LockByKey("orders", l), done)
	})
	s.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	s.do("POST", "/without", "").want(t, 303, "", false)
	for _, path := range []string{"/orders", "/twice"} {
		for _, replayed := range []bool{false, true} {
			a := s.do("POST", path, "", idempotencyKey, path)
			a.want(t, 303, "", replayed)
			if got := a.header.Get("X-Signature"); got != "0" {
				t.Errorf("%s, replayed %v: the signature is %q", path, replayed, got)
			}
		}
	}
}
