// ginlock/called_refused_test.go
package ginlock_test

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// One function may call several middlewares. If the first one refuses the request, nothing is left to
// protect. Then the log must not say that the wiring is wrong: anybody could fill the log.
func TestWiring_CalledAfterARefusal(t *testing.T) {
	l := idempotency.WithLocker(testutil.Locker(t))
	s := serve(t, func(r *gin.Engine) {
		lock := ginlock.LockByKey("orders", l)
		login := func(c *gin.Context) { c.AbortWithStatus(401) }
		r.POST("/orders", func(c *gin.Context) { login(c); lock(c) }, func(c *gin.Context) { c.Status(204) })
	})
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	s.do("POST", "/orders", "").want(t, 401, "", false)
	if log.Len() > 0 {
		t.Errorf("the log of a request that was refused: %s", log.String())
	}
}
