package ginlock_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// All routes and methods of one order exclude each other, other orders do not.
func TestLockByKey_OneAtATimePerOrder(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	g, l := newGate(t), lockerOn(t, testutil.Redis(t), core.WithInstance("secret-host:1"))
	s := serve(t, func(r *gin.Engine) {
		byID := ginlock.LockByKey("order:{param.id}", idempotency.WithLocker(l))
		r.POST("/orders/:id/grab", byID, g.behind(counter(&runs)))
		r.DELETE("/orders/:id", byID, counter(&runs))
		r.GET("/orders/:id", byID, counter(&runs))
		r.GET("/orders/:id/lines/:line", ginlock.LockByKey("line:{param.line}", idempotency.WithLocker(l)), counter(&runs))
		r.POST("/users/:id", ginlock.LockByKey("user:{param.id}", idempotency.WithLocker(l)), counter(&runs))
	})
	first := later(func() answer { return s.do("POST", "/orders/42/grab", "") })
	g.wait(t)
	for _, busy := range [][2]string{{"POST", "/orders/42/grab"}, {"DELETE", "/orders/42"}, {"GET", "/orders/42"}} {
		a := s.do(busy[0], busy[1], "")
		a.wantProblem(t, 409, idempotency.CodeLockBusy)
		if a.header.Get("Retry-After") == "" || !a.problem(t).Retryable || strings.Contains(a.body, "secret-host") {
			t.Errorf("%v %s", a.header, a.body)
		}
	}
	var taken *core.TakenError
	if _, err := l.TryAcquire(context.Background(), "order:42"); !errors.As(err, &taken) {
		t.Errorf("the key of the lock is not order:42: %v", err)
	}
	for _, free := range [][2]string{{"DELETE", "/orders/43"}, {"POST", "/users/42"}, {"GET", "/orders/42/lines/42"}, {"GET", "/orders/42%2Fgrab"}} {
		if a := s.do(free[0], free[1], ""); a.status != 201 && a.status != 404 {
			t.Errorf("%v: %d %s", free, a.status, a.body)
		}
	}
	close(g.open)
	if a := <-first; a.status != 201 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := s.do("DELETE", "/orders/42", ""); a.status != 201 {
		t.Errorf("the lock was not released: %d %s", a.status, a.body)
	}
}

func TestLockByKey_ByHeader(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	g, l := newGate(t), testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.Use(ginlock.LockByKey("header:{header.x-account}", idempotency.WithLocker(l), idempotency.Methods("POST")))
		r.Any("/a", g.behind(counter(&runs)))
		r.Any("/b", counter(&runs))
	})
	first := later(func() answer { return s.do("POST", "/a", "", "X-Account", "1") })
	g.wait(t)
	s.do("POST", "/b", "", "X-Account", `"1"`).wantProblem(t, 409, idempotency.CodeLockBusy)
	s.do("POST", "/b", "", "X-Account", "2").want(t, 201, "run 1", false)
	s.do("POST", "/b", "").wantProblem(t, 400, idempotency.CodeKeyMissing)
	s.do("PUT", "/b", "", "X-Account", "1").want(t, 201, "run 2", false) // left out by Methods
	close(g.open)
	<-first
}

func TestLockByKey_Wait(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	var inside, runs atomic.Int64
	var all sync.WaitGroup
	for range 2 {
		l := lockerOn(t, n)
		s := serve(t, func(r *gin.Engine) {
			r.POST("/orders/:id", ginlock.LockByKey("order:{param.id}", idempotency.Wait(time.Minute), idempotency.WithLocker(l)), func(c *gin.Context) {
				if inside.Add(1) != 1 {
					t.Error("two at a time")
				}
				runs.Add(1)
				inside.Add(-1)
			})
		})
		for range 40 {
			all.Go(func() {
				if a := s.do("POST", "/orders/1", ""); a.status != 200 {
					t.Errorf("%d %s", a.status, a.body)
				}
			})
		}
	}
	all.Wait()
	if n := runs.Load(); n != 80 {
		t.Errorf("%d runs", n)
	}
}

func TestLockByKey_WaitEnds(t *testing.T) {
	t.Parallel()
	g, l := newGate(t), testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.POST("/orders/:id", ginlock.LockByKey("order:{param.id}", idempotency.WithLocker(l)), g.handle)
		r.PUT("/orders/:id", ginlock.LockByKey("order:{param.id}", idempotency.Wait(20*time.Millisecond), idempotency.WithLocker(l)), g.handle)
	})
	first := later(func() answer { return s.do("POST", "/orders/1", "") })
	g.wait(t)
	began := time.Now()
	// A busy machine may give no answer in 20 ms.
	until(t, func() answer { return s.do("PUT", "/orders/1", "") }, func(a answer) bool { return a.status != 503 }).
		wantProblem(t, 409, idempotency.CodeLockBusy)
	if waited := time.Since(began); waited < 20*time.Millisecond {
		t.Errorf("Wait(20ms) waited %v", waited)
	}
	close(g.open)
	<-first
}

func TestLockByKey_Lost(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	l := lockerOn(t, n, core.WithTTL(2*time.Second))
	lose := func(c *gin.Context) {
		n.Client().Del(context.Background(), "onelane:{order:1}")
		<-c.Request.Context().Done()
	}
	s := serve(t, func(r *gin.Engine) {
		byID := ginlock.LockByKey("order:{param.id}", idempotency.WithLocker(l))
		r.POST("/orders/:id/silent", byID, lose)
		r.POST("/orders/:id/status", byID, func(c *gin.Context) { lose(c); c.Status(204) })
		r.POST("/orders/:id/panic", byID, func(c *gin.Context) { lose(c); panic("boom") })
		r.POST("/orders/:id/answer", byID, func(c *gin.Context) { lose(c); c.String(500, "%v", context.Cause(c.Request.Context())) })
	})
	s.do("POST", "/orders/1/silent", "").wantProblem(t, 409, idempotency.CodeLockLost)
	s.do("POST", "/orders/1/status", "").wantProblem(t, 409, idempotency.CodeLockLost)
	s.do("POST", "/orders/1/panic", "").want(t, 500, "", false) // is left to Recovery
	if a := s.do("POST", "/orders/1/answer", ""); a.status != 500 || !strings.Contains(a.body, "lock is lost") {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestLockByKey_PanicReleases(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.POST("/orders/:id", ginlock.LockByKey("order:{param.id}", idempotency.WithLocker(l)), func(*gin.Context) { panic("boom") })
	})
	for range 2 {
		if a := s.do("POST", "/orders/1", ""); a.status != 500 {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
}

// Once the application has sealed the key, whoever comes is turned away.
func TestLockByKey_Sealed(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.POST("/stock/:sku", ginlock.LockByKey("stock:{param.sku}", idempotency.WithLocker(l)), func(*gin.Context) {})
	})
	k, err := l.Acquire(context.Background(), "stock:42")
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Seal(context.Background(), []byte("sold out"), time.Minute); err != nil {
		t.Fatal(err)
	}
	s.do("POST", "/stock/42", "").wantProblem(t, 409, idempotency.CodeLockSealed)
}

// The request's context carries the lock and the claim: what takes the same key inside enters again.
func TestContextCarriesLockAndClaim(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.Use(ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)))
		r.POST("/orders/:id", ginlock.LockByKey("order:{param.id}", idempotency.WithLocker(l)), func(c *gin.Context) {
			ctx := c.Request.Context()
			if token, err := idempotency.Token(ctx); err != nil || token == 0 {
				t.Errorf("the claim's token is %d, %v", token, err)
			}
			k, err := l.TryAcquire(ctx, "order:1")
			if err != nil {
				t.Errorf("re-entrance: %v", err)
				return
			}
			if err := k.Release(ctx); err != nil {
				t.Error(err)
			}
			c.String(http.StatusCreated, "made")
		})
	})
	s.do("POST", "/orders/1", "", idempotencyKey, "k").want(t, 201, "made", false)
	s.do("POST", "/orders/1", "", idempotencyKey, "k").want(t, 201, "made", true)
}

// The options of an inner one would be ignored: two on one route are a mistake, unless their keys differ.
func TestByHeader_UsedTwice(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.Use(ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)))
		r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), counter(&runs))
		r.POST("/orders/:id", ginlock.ByKey("{param.id}", idempotency.WithLocker(l)), counter(&runs))
	})
	for range 2 {
		s.order("k", "").wantProblem(t, 500, idempotency.CodeMisconfigured)
	}
	if n := runs.Load(); n != 0 {
		t.Errorf("%d runs", n)
	}
	for i, key := range []string{"a", "a", "b"} { // the third has another key and the same order
		s.do("POST", "/orders/1", "", idempotencyKey, key).want(t, 201, "run 1", i > 0)
	}
}
