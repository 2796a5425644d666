package ginlock_test

import (
	"bytes"
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

// A middleware outside may hold the answer back. Its status and its headers are sent, also of a replay
// and of a refusal.
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
