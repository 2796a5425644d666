package idempotency_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// A Gin engine stands behind a middleware of net/http, and streams.
func TestRouter_GinStreamsBehindNetHTTP(t *testing.T) {
	t.Parallel()
	r := gin.New()
	r.POST("/orders/7", func(c *gin.Context) {
		n := 0
		c.Stream(func(w io.Writer) bool {
			n++
			_, _ = io.WriteString(w, "x")
			return n < 3
		})
	})
	lock := idempotency.LockBy(func(*http.Request) (string, error) { return "stream", nil }, idempotency.WithLocker(testutil.Locker(t)))
	serve(t, lock(r)).post(context.Background(), "/orders/7", strings.NewReader("")).want(t, 200, "xxx", false)
}
