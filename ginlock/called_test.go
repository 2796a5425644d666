package ginlock_test

import (
	"bytes"
	"context"
	"math"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// oapi-codegen generates this for GinServerOptions{Middlewares: …}: the middlewares are called
// before the handler, and not around it.
func generated(handler gin.HandlerFunc, middlewares ...gin.HandlerFunc) gin.HandlerFunc {
	return func(c *gin.Context) {
		for _, middleware := range middlewares {
			middleware(c)
			if c.IsAborted() {
				return
			}
		}
		handler(c)
	}
}

// A middleware that cannot protect the handler refuses the request.
func TestWiring_CalledByTheLastHandler(t *testing.T) {
	t.Parallel()
	l := idempotency.WithLocker(testutil.Locker(t))
	var runs atomic.Int64
	handler := func(c *gin.Context) {
		if _, err := idempotency.Token(c.Request.Context()); err != nil {
			t.Errorf("%s: the handler runs without its lock: %v", c.Request.URL.Path, err)
		}
		counter(&runs)(c)
	}
	s := serve(t, func(r *gin.Engine) {
		r.POST("/orders/:id/grab", generated(handler, ginlock.LockByKey("order:{param.id}", l)))
		r.POST("/orders", generated(handler, ginlock.ByHeader(idempotencyKey, l)))
		r.POST("/chained", ginlock.ByHeader(idempotencyKey, l), generated(handler))
	})
	for _, path := range []string{"/orders/7/grab", "/orders"} {
		if a := s.do("POST", path, "", idempotencyKey, "k"); a.status != 500 || runs.Load() != 0 {
			t.Errorf("%s: got %d %q after %d runs, want a refusal", path, a.status, a.body, runs.Load())
		} else {
			a.wantProblem(t, 500, idempotency.CodeMisconfigured)
		}
	}
	runs.Store(0)
	s.do("POST", "/chained", "", idempotencyKey, "k").want(t, 201, "run 1", false)
	s.do("POST", "/chained", "", idempotencyKey, "k").want(t, 201, "run 1", true)
}

// Nothing was done, so the key around is free, as after any other refusal. When the wiring is
// right, the retry must run.
func TestWiring_RefusalIsNotRecorded(t *testing.T) {
	t.Parallel()
	l := idempotency.WithLocker(testutil.Locker(t))
	var runs atomic.Int64
	s := serve(t, func(r *gin.Engine) {
		r.POST("/orders", ginlock.ByHeader(idempotencyKey, l), generated(counter(&runs), ginlock.LockByKey("orders", l)))
	})
	for range 2 {
		a := s.do("POST", "/orders", "", idempotencyKey, "k")
		a.wantProblem(t, 500, idempotency.CodeMisconfigured)
		if a.replayed() {
			t.Errorf("the refusal is replayed: %d %s", a.status, a.body)
		}
	}
}

// One function calls two middlewares: the first has run the handler and sent the answer.
func TestWiring_CalledAfterTheHandler(t *testing.T) {
	t.Parallel()
	l := idempotency.WithLocker(testutil.Locker(t))
	var runs atomic.Int64
	s := serve(t, func(r *gin.Engine) {
		first, second := ginlock.ByHeader(idempotencyKey, l), ginlock.LockByKey("orders", l)
		r.POST("/orders", func(c *gin.Context) { first(c); second(c) }, counter(&runs))
	})
	s.do("POST", "/orders", "", idempotencyKey, "k").want(t, 201, "run 1", false)
}

// As TestWiring_CalledAfterTheHandler, but the answer is a status alone, which Gin sends at the
// end. The order is placed, and its client must not get 500: it would send the order again.
func TestWiring_CalledAfterAStatusAlone(t *testing.T) {
	t.Parallel()
	l := idempotency.WithLocker(testutil.Locker(t))
	s := serve(t, func(r *gin.Engine) {
		first, second := ginlock.LockByKey("stock", l), ginlock.LockByKey("orders", l)
		r.POST("/orders", func(c *gin.Context) { first(c); second(c) }, func(c *gin.Context) { c.Status(204) })
	})
	s.do("POST", "/orders", "").want(t, 204, "", false)
}

// As TestWiring_CalledByTheLastHandler, but another middleware is called first and calls c.Next, as
// Gin's own do. Nothing follows, so the handler has not run: the client must not get 200.
func TestWiring_CalledByTheLastHandlerAfterNext(t *testing.T) {
	t.Parallel()
	l := idempotency.WithLocker(testutil.Locker(t))
	var runs atomic.Int64
	validator := func(c *gin.Context) { c.Next() }
	s := serve(t, func(r *gin.Engine) {
		r.POST("/orders", generated(counter(&runs), validator, ginlock.ByHeader(idempotencyKey, l)))
		r.POST("/around", ginlock.ByHeader(idempotencyKey, l), generated(counter(&runs), validator, ginlock.LockByKey("orders", l)))
	})
	for _, path := range []string{"/orders", "/around"} {
		a := s.do("POST", path, "", idempotencyKey, "k")
		if a.status != 500 {
			t.Errorf("%s: got %d %q after %d runs, want a refusal", path, a.status, a.body, runs.Load())
			continue
		}
		a.wantProblem(t, 500, idempotency.CodeMisconfigured)
	}
}

// One function may call several middlewares. If the first one refuses the request, nothing is left
// to protect. Then the log must not say that the wiring is wrong: anybody could fill the log.
func TestWiring_CalledAfterARefusal(t *testing.T) {
	l := idempotency.WithLocker(testutil.Locker(t))
	s := serve(t, func(r *gin.Engine) {
		lock := ginlock.LockByKey("orders", l)
		login := func(c *gin.Context) { c.AbortWithStatus(401) }
		r.POST("/orders", func(c *gin.Context) { login(c); lock(c) }, func(c *gin.Context) { c.Status(204) })
	})
	log := defaultLog(t)
	s.do("POST", "/orders", "").want(t, 401, "", false)
	if log.Len() > 0 {
		t.Errorf("the log of a request that was refused: %s", log.String())
	}
}

// As TestWiring_CalledAfterTheHandler, but the handler answers by AbortWithStatusJSON. It has run
// without the second lock, and the log must say so.
func TestWiring_CalledAfterAHandlerThatAborts(t *testing.T) {
	l := idempotency.WithLocker(testutil.Locker(t))
	s := serve(t, func(r *gin.Engine) {
		first, second := ginlock.LockByKey("stock", l), ginlock.LockByKey("orders", l)
		r.POST("/orders", func(c *gin.Context) { first(c); second(c) },
			func(c *gin.Context) { c.AbortWithStatusJSON(201, "ordered") })
	})
	log := defaultLog(t)
	s.do("POST", "/orders", "").want(t, 201, `"ordered"`, false)
	if !bytes.Contains(log.Bytes(), []byte("no handler follows in Gin's chain")) {
		t.Error("the handler ran without its second lock, and the log does not say so")
	}
}

// As TestWiring_CalledAfterARefusal, but the answer is a preflight's 204, as gin-contrib/cors gives
// it, or a page from a cache. No handler has run and none is to be protected. Anybody may send such
// requests, and each one writes a line at ERROR.
func TestWiring_CalledAfterAPreflight(t *testing.T) {
	l := idempotency.WithLocker(testutil.Locker(t))
	s := serve(t, func(r *gin.Engine) {
		lock := ginlock.LockByKey("orders", l)
		cors := func(c *gin.Context) {
			if c.Request.Method == "OPTIONS" {
				c.AbortWithStatus(204)
			}
		}
		r.Any("/orders", func(c *gin.Context) { cors(c); lock(c) }, func(c *gin.Context) { c.String(201, "ordered") })
	})
	log := defaultLog(t)
	s.do("POST", "/orders", "").want(t, 201, "ordered", false) // it is protected
	for range 2 {
		s.do("OPTIONS", "/orders", "").want(t, 204, "", false)
	}
	if n := bytes.Count(log.Bytes(), []byte("\n")); n > 1 {
		t.Errorf("%d lines: %s", n, log.String())
	}
}

// As TestWiring_CalledAfterAHandlerThatAborts, but somebody has sent a preflight before.
func TestWiring_CalledAfterAHandlerThatAbortsAndAPreflight(t *testing.T) {
	l := idempotency.WithLocker(testutil.Locker(t))
	s := serve(t, func(r *gin.Engine) {
		first, second := ginlock.LockByKey("stock", l), ginlock.LockByKey("orders", l)
		cors := func(c *gin.Context) {
			if c.Request.Method == "OPTIONS" {
				c.AbortWithStatus(204)
			}
		}
		r.Any("/orders", func(c *gin.Context) { cors(c); first(c); second(c) },
			func(c *gin.Context) { c.AbortWithStatusJSON(201, "ordered") })
	})
	s.do("OPTIONS", "/orders", "").want(t, 204, "", false)
	log := defaultLog(t)
	s.do("POST", "/orders", "").want(t, 201, `"ordered"`, false)
	if !bytes.Contains(log.Bytes(), []byte("no handler follows in Gin's chain")) {
		t.Error("the handler ran without its second lock, and the log does not say so")
	}
}

// TestWiring_InsideDo: how a request inside a function ends says nothing about that function, which may
// have done something before.
func TestWiring_InsideDo(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	r := gin.New()
	middleware := ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l))
	r.POST("/misplaced", middleware)
	r.POST("/unrendered", middleware, func(c *gin.Context) { c.JSON(200, math.Inf(1)) })
	for path, want := range map[string]int{"/misplaced": 500, "/unrendered": 200} {
		runs := 0
		for range 2 {
			status, err := idempotency.Do(t.Context(), l, path, func(ctx context.Context) (int, error) {
				runs++
				w, req := httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "POST", path, nil)
				req.Header.Set(idempotencyKey, "k")
				r.ServeHTTP(w, req)
				return w.Code, nil
			}, idempotency.Retain(time.Hour))
			if err != nil || status != want || runs != 1 {
				t.Errorf("%s: got %d, %v after %d runs", path, status, err, runs)
			}
		}
	}
}
