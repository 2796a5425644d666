package ginlock_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// defaultLog returns what the default logger writes during a test. No other test may run beside it.
func defaultLog(t *testing.T) *bytes.Buffer {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return &log
}

// A handler of engine.NoRoute is not protected, and one log line says so.
func TestNoRoute_UnprotectedAndWarned(t *testing.T) {
	log := defaultLog(t)
	l := testutil.Locker(t)
	var runs atomic.Int64
	s := serve(t, func(r *gin.Engine) {
		r.NoRoute(ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), func(c *gin.Context) {
			runs.Add(1)
			if c.Request.URL.Path == "/none" {
				c.String(http.StatusNotFound, "none")
				return
			}
			c.String(http.StatusCreated, "made")
		})
	})
	send := func(method, path string) { s.do(method, path, "", idempotencyKey, "k") }
	send("POST", "/none")
	send("GET", "/pay")
	if log.Len() > 0 {
		t.Errorf("warned although nothing was done: %s", log)
	}
	send("POST", "/pay")
	send("POST", "/pay")
	if n := runs.Load(); n != 4 {
		t.Errorf("%d runs, want 4", n)
	}
	if n := bytes.Count(log.Bytes(), []byte("ran unprotected")); n != 1 {
		t.Errorf("%d warnings, want 1: %s", n, log)
	}
}

// A handler that writes nothing has answered 200, whatever it or a middleware inside puts into c.Keys.
func TestErrors_KeysAreNoAnswer(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	for name, inner := range map[string]gin.HandlerFunc{
		"before":  func(c *gin.Context) { c.Set("tenant", "acme") },
		"form":    func(c *gin.Context) { _ = c.PostForm("a") },
		"after":   func(c *gin.Context) { c.Next(); c.Set("took", 1) },
		"nothing": func(*gin.Context) {},
	} {
		s := serve(t, func(r *gin.Engine) {
			r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), inner, func(*gin.Context) { runs.Add(1) })
		})
		s.order(name, "{}").want(t, 200, "", false)
		s.order(name, "{}").want(t, 200, "", true)
	}
	if n := runs.Load(); n != 4 {
		t.Errorf("%d runs", n)
	}
}

// A handler of engine.NoRoute sends the request on to a route, which is protected. So nothing ran
// unprotected.
func TestNoRoute_HandleContextIsProtected(t *testing.T) {
	log := defaultLog(t)
	l := testutil.Locker(t)
	var runs atomic.Int64
	s := serve(t, func(r *gin.Engine) {
		r.Use(ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)))
		r.POST("/v1/orders", counter(&runs))
		r.NoRoute(func(c *gin.Context) {
			c.Request.URL.Path = "/v1" + c.Request.URL.Path
			r.HandleContext(c)
		})
	})
	s.order("k", "{}").want(t, 201, "run 1", false)
	s.order("k", "{}").want(t, 201, "run 1", true)
	if n := bytes.Count(log.Bytes(), []byte("ran unprotected")); n != 0 {
		t.Errorf("%d warnings, want none: %s", n, log)
	}
}
