package ginlock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// never is a handler and a middleware that Check must not run.
func never(*gin.Context) { panic("Check ran a handler") }

func TestCheck(t *testing.T) {
	t.Parallel()
	who := ginlock.Principal(func(*gin.Context) string { panic("Check asked for the principal") })
	byFunc := func(key string) gin.HandlerFunc {
		return ginlock.By(func(*gin.Context) (string, error) { return key, nil })
	}
	once := ginlock.ByHeader("Idempotency-Key")
	for _, tc := range []struct {
		name   string
		wire   func(r *gin.Engine)
		routes []string
		want   []string // parts of the lines, or none
	}{
		{"right", func(r *gin.Engine) {
			r.Use(gin.Recovery(), gin.BasicAuth(gin.Accounts{"a": "b"}), never, ginlock.ByHeader("Idempotency-Key", who), never)
			r.POST("/orders", never)
			r.POST("/orders/:id/grab", ginlock.LockByKey("order:{param.id}"), never)
			r.PUT("/files/*path", ginlock.ByKey("{param.path}"), never)
			r.GET("/orders/:id", never)
		}, []string{"POST /orders", "POST /orders/:id/grab", "PUT /files/*path"}, nil},
		{"different keys", func(r *gin.Engine) {
			r.Use(byFunc("a"), ginlock.ByHeader("A"), ginlock.ByKey("{header.A}"), ginlock.RefuseRepeats(time.Second), ginlock.LockByKey("a"))
			r.POST("/orders", byFunc("b"), ginlock.ByHeader("B"), ginlock.RefuseRepeats(time.Second), ginlock.LockByKey("a"),
				ginlock.ByHeader("A", idempotency.Service("shop")), ginlock.ByHeader("A", who), never)
		}, nil, nil},
		{"different methods", func(r *gin.Engine) {
			r.Use(ginlock.ByHeader("A", idempotency.Methods("POST")), ginlock.ByKey("{param.id}", idempotency.Methods("POST")))
			r.PUT("/orders", ginlock.ByHeader("A"), never)
			r.GET("/orders", never)
		}, nil, nil},
		{"some routes before Use", func(r *gin.Engine) {
			r.POST("/login", never)
			r.Use(ginlock.ByHeader("A"))
			r.POST("/orders", never)
		}, nil, nil},
		{"twice", func(r *gin.Engine) {
			r.Use(ginlock.ByHeader("Idempotency-Key"))
			r.POST("/orders", ginlock.ByHeader("idempotency-key"), never)
			r.GET("/orders", ginlock.ByHeader("idempotency-key"), never)
		}, nil, []string{`POST /orders cannot be protected: ByHeader("Idempotency-Key") and, inside of it, ByHeader("Idempotency-Key") take the same key`}},
		{"the same value twice", func(r *gin.Engine) {
			r.Use(once)
			r.Group("/v1").Use(once).POST("/orders", never)
		}, nil, []string{"POST /v1/orders cannot be protected: ByHeader"}},
		{"the same principal twice", func(r *gin.Engine) {
			r.Use(ginlock.ByHeader("A", who))
			r.POST("/orders", ginlock.ByHeader("A", who), never)
		}, nil, []string{"take the same key"}},
		{"no such parameter", func(r *gin.Engine) {
			r.Use(ginlock.LockByKey("order:{param.id}"))
			r.POST("/orders/:ident", never)
			r.POST("/orders/:ident/x/:id", never)
		}, nil, []string{`POST /orders/:ident cannot be protected: LockByKey("order:{param.id}"): the route has no parameter {param.id}`}},
		{"no handler", func(r *gin.Engine) { r.POST("/orders", ginlock.ByHeader("A")) }, nil, []string{"no handler follows"}},
		{"Recovery inside", func(r *gin.Engine) {
			r.Use(ginlock.ByHeader("A"), gin.CustomRecovery(nil))
			r.POST("/orders", never)
			r.GET("/orders", never)
		}, nil, []string{`POST /orders cannot be protected: gin.Recovery is inside of ByHeader("A")`}},
		{"BasicAuth inside", func(r *gin.Engine) {
			r.Use(ginlock.ByKey("{header.A}"))
			r.POST("/orders", gin.BasicAuthForRealm(gin.Accounts{"a": "b"}, "shop"), never)
		}, nil, []string{"gin.BasicAuth is inside of ByKey"}},
		{"Use after all routes", func(r *gin.Engine) {
			r.POST("/orders", never)
			r.Use(ginlock.ByHeader("A"))
		}, nil, []string{`ByHeader("A") protects no route`}},
		{"named and unprotected", func(r *gin.Engine) {
			r.POST("/login", never)
			r.Use(ginlock.ByHeader("A"))
			r.POST("/orders", never)
			r.GET("/orders", never)
		}, []string{"POST /login", "POST /orders", "GET /orders", "POST /order"}, []string{
			"POST /login cannot be protected: no middleware", "GET /orders cannot be protected: no middleware",
			"POST /order cannot be protected: there is no such route",
		}},
		{"a backend without records", func(r *gin.Engine) {
			l := check.Locker(t, check.LeasesOnly{Backend: backendtest.Memory()})
			r.POST("/grab", ginlock.LockByKey("a", idempotency.WithLocker(l)), never)
		}, []string{"POST /grab"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := gin.New()
			tc.wire(r)
			wantErrors(t, ginlock.Check(r, tc.routes...), "ginlock: ", tc.want)
		})
	}
}

func wantErrors(t *testing.T, err error, begins string, want []string) {
	t.Helper()
	var lines []string
	if err != nil {
		lines = strings.Split(err.Error(), "\n")
	}
	if len(lines) != len(want) {
		t.Fatalf("Check says %q, want %d lines", lines, len(want))
	}
	for _, part := range want {
		found := false
		for _, line := range lines {
			found = found || strings.HasPrefix(line, begins) && strings.Contains(line, part)
		}
		if !found {
			t.Errorf("%q does not say %q", lines, part)
		}
	}
}

// The Locker came after the middleware, and keeps no records.
func TestCheck_DefaultLocker(t *testing.T) {
	r := gin.New()
	r.POST("/orders", ginlock.ByHeader("A"), never)
	r.POST("/grab", ginlock.LockByKey("a"), never)
	core.SetDefault(check.Locker(t, check.LeasesOnly{Backend: backendtest.Memory()}))
	t.Cleanup(func() { core.SetDefault(nil) })
	wantErrors(t, ginlock.Check(r), "ginlock: POST /orders cannot be protected: ", []string{"the Locker cannot keep records"})
	core.SetDefault(testutil.Locker(t))
	wantErrors(t, ginlock.Check(r), "", nil)
}

// TestFields fails if Gin changes what fields.go knows of it: Check would find no route, or no
// middleware.
func TestFields(t *testing.T) {
	t.Parallel()
	r := gin.New()
	paths := []string{"/", "/orders", "/orders/:id", "/orders/:id/grab", "/order", "/files/*path", "/o"}
	var want []string
	for _, path := range paths {
		for _, method := range []string{"POST", "PUT", "QUERY"} {
			r.Handle(method, path, gin.Recovery(), never)
			want = append(want, method+" "+path)
		}
	}
	err := ginlock.Check(r, want...)
	if err == nil || strings.Count(err.Error(), "no middleware of this package covers it") != len(want) || strings.Contains(err.Error(), "no such route") {
		t.Errorf("of %d routes, Check says %v", len(want), err)
	}
}
