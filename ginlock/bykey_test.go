package ginlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// lockedAs is a server that answers POST /orders/:id with the name of the one lock that a middleware took, as core
// knows it.
func lockedAs(t testing.TB, by func(...idempotency.LockOption) gin.HandlerFunc, opts ...idempotency.LockOption) *server {
	t.Helper()
	n := testutil.Redis(t)
	opts = append([]idempotency.LockOption{idempotency.WithLocker(lockerOn(t, n))}, opts...)
	return serve(t, func(r *gin.Engine) {
		r.POST("/orders/:id", by(opts...), func(c *gin.Context) {
			var held []string
			for _, key := range n.Client().Keys(context.Background(), "onelane:*").Val() {
				if key, ok := strings.CutSuffix(key, "}"); ok {
					held = append(held, strings.TrimPrefix(key, "onelane:{"))
				}
			}
			body, _ := c.GetRawData()
			c.String(200, "%s %s", strings.Join(held, " "), body)
		})
	})
}

func TestByKey_Fields(t *testing.T) {
	t.Parallel()
	s := lockedAs(t, func(opts ...idempotency.LockOption) gin.HandlerFunc {
		return ginlock.LockByKey("o:{param.id}:{header.X-User}:{query.q}:{cookie.c}:{json.order.id}:{principal}", opts...)
	}, ginlock.Principal(func(c *gin.Context) string { return c.GetHeader("X-Who") }))
	body := `{"other":[{"id":1}], "order": {"ID": 12345678901234567890, "x": 1.5}}`
	a := s.do("POST", "/orders/4:2?q=a%3Ab&r=1", body, "X-User", `"ann"`, "Cookie", "a=1; c=%C3%A4", "X-Who", "bob")
	a.want(t, 200, `o:4%253A2:ann:a%253Ab:ä:12345678901234567890:bob `+body, false)
}

func TestByKey_BadRequests(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		field, query, contentType, body string
		header                          []string
		code                            string // "": it is taken
	}{
		{field: "header.X-User", code: idempotency.CodeKeyMissing},
		{field: "header.X-User", header: []string{"X-User", ""}, code: idempotency.CodeKeyInvalid},
		{field: "header.X-User", header: []string{"X-User", "a", "X-User", "a"}, code: idempotency.CodeKeyInvalid},
		{field: "query.q", code: idempotency.CodeKeyMissing},
		{field: "query.q", query: "q=", code: idempotency.CodeKeyInvalid},
		{field: "query.q", query: "q=1&q=1", code: idempotency.CodeKeyInvalid},
		{field: "query.q", query: "q=1;q=2", code: idempotency.CodeKeyInvalid},
		{field: "query.q", query: "q=1&x=%zz", code: idempotency.CodeKeyInvalid},
		{field: "query.q", query: "q=%00", code: idempotency.CodeKeyInvalid},
		{field: "query.q", query: "q=" + strings.Repeat("x", 256), code: idempotency.CodeKeyInvalid},
		{field: "query.q", query: "q=" + strings.Repeat("x", 255)},
		{field: "cookie.c", code: idempotency.CodeKeyMissing},
		{field: "cookie.c", header: []string{"Cookie", "c=1; c=2"}, code: idempotency.CodeKeyInvalid},
		{field: "cookie.c", header: []string{"Cookie", "c=1", "Cookie", "c=2"}, code: idempotency.CodeKeyInvalid},
		{field: "cookie.c", header: []string{"Cookie", "c=%"}, code: idempotency.CodeKeyInvalid},
		{field: "principal", code: idempotency.CodePrincipalMissing},
		{field: "param.nope", code: idempotency.CodeMisconfigured},
		{field: "json.a.b", body: `{"a":{"b":"x"}}`},
		{field: "json.a.b", body: `{"a":{"b":"x"}}`, contentType: "application/vnd.api+json; charset=utf-8"},
		{field: "json.a.b", body: `{"a":{"b":-7}}`},
		{field: "json.a.b", body: `{"a":{"c":1}}`, code: idempotency.CodeKeyMissing},
		{field: "json.a.b", body: `{"a":{"b":null}}`, code: idempotency.CodeKeyMissing},
		{field: "json.a.b", body: `{"a":[{"b":1}]}`, code: idempotency.CodeKeyMissing},
		{field: "json.a.b", body: `[]`, code: idempotency.CodeKeyMissing},
		{field: "json.a.b", body: ``, code: idempotency.CodeKeyInvalid},
		{field: "json.a.b", body: `{"a":{"b":""}}`, code: idempotency.CodeKeyInvalid},
		{field: "json.a.b", body: `{"a":{"b":true}}`, code: idempotency.CodeKeyInvalid},
		{field: "json.a.b", body: `{"a":{"b":{}}}`, code: idempotency.CodeKeyInvalid},
		{field: "json.a.b", body: `{"a":{"b":1.0}}`, code: idempotency.CodeKeyInvalid},
		{field: "json.a.b", body: `{"a":{"b":1e2}}`, code: idempotency.CodeKeyInvalid},
		{field: "json.a.b", body: `{"a":{"b":-0}}`, code: idempotency.CodeKeyInvalid},
		{field: "json.a.b", body: `{"a":{"b":1,"b":2}}`, code: idempotency.CodeKeyInvalid},
		{field: "json.a.b", body: `{"a":{"b":1,"B":2}}`, code: idempotency.CodeKeyInvalid},
		{field: "json.k", body: "{\"k\":1,\"\u212a\":2}", code: idempotency.CodeKeyInvalid}, // the Kelvin sign, for encoding/json
		{field: "json.a.b", body: `{"a":{"b":1},"a":{"b":2}}`, code: idempotency.CodeKeyInvalid},
		{field: "json.a.b", body: `{"a":{"b":1}}{"a":{"b":2}}`, code: idempotency.CodeKeyInvalid},
		{field: "json.a.b", body: `{"a":{"b":1}`, code: idempotency.CodeKeyInvalid},
		{field: "json.a.b", body: "{\"a\":{\"b\":\"\xff\"}}", code: idempotency.CodeKeyInvalid},
		{field: "json.a.b", body: `{"a":{"b":"\u0000"}}`, code: idempotency.CodeKeyInvalid},
		{field: "json.id", body: `{"x":"&id=2&","id":1}`, contentType: "application/x-www-form-urlencoded", code: idempotency.CodeKeyInvalid},
		{field: "json.id", body: `{"id":"` + strings.Repeat("x", 2000) + `"}`, code: idempotency.CodeRequestTooLarge},
	} {
		t.Run(fmt.Sprintf("%s %.40s %.40s %v", tc.field, tc.query, tc.body, tc.header), func(t *testing.T) {
			t.Parallel()
			var opts []idempotency.LockOption
			if strings.HasPrefix(tc.field, "json") {
				opts = append(opts, idempotency.MaxRequestBody(1000))
			}
			l, err := core.New(backendtest.Memory())
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			opts = append(opts, idempotency.WithLocker(l))
			s := serve(t, func(r *gin.Engine) {
				r.POST("/x", ginlock.LockByKey("lock:{"+tc.field+"}", opts...), func(*gin.Context) {})
			})
			header := tc.header
			if tc.contentType != "" {
				header = append(header, "Content-Type", tc.contentType)
			}
			a := s.do("POST", "/x?"+tc.query, tc.body, header...)
			status := map[string]int{"": 200, idempotency.CodeMisconfigured: 500, idempotency.CodeRequestTooLarge: 413,
				idempotency.CodePrincipalMissing: 401}[tc.code]
			if status == 0 {
				status = 400
			}
			if tc.code == "" {
				a.want(t, 200, "", false)
				return
			}
			a.wantProblem(t, status, tc.code)
			_, name, _ := strings.Cut(tc.field, ".")
			if status == 400 && !strings.Contains(a.body, name) {
				t.Errorf("%s does not name the field", a.body)
			}
		})
	}
}

// Recorded, a key of a template belongs to a principal, method and route, and a retry is replayed.
func TestByKey_Records(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.Use(gin.BasicAuth(gin.Accounts{"ann": "a", "bob": "b"}))
		byOrder := ginlock.ByKey("{json.order}", idempotency.WithLocker(l))
		r.POST("/pay", byOrder, counter(&runs))
		r.POST("/cancel", byOrder, counter(&runs))
	})
	const ann, bob = "Basic YW5uOmE=", "Basic Ym9iOmI="
	pay := func(path, body, who string) answer { return s.do("POST", path, body, "Authorization", who) }
	pay("/pay", `{"order":1}`, ann).want(t, 201, "run 1", false)
	pay("/pay", `{"order":1}`, ann).want(t, 201, "run 1", true)
	pay("/pay", `{"order":1, "more":1}`, ann).wantProblem(t, 422, idempotency.CodeKeyReused)
	pay("/pay", `{"order":1}`, bob).want(t, 201, "run 2", false)
	pay("/cancel", `{"order":1}`, ann).want(t, 201, "run 3", false)
	pay("/pay", `{"order":2}`, ann).want(t, 201, "run 4", false)
	pay("/pay", `{}`, ann).wantProblem(t, 400, idempotency.CodeKeyMissing)
}

func TestBy(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	byTenant := func(c *gin.Context) (string, error) {
		switch tenant := c.GetHeader("X-Tenant"); tenant {
		case "secret":
			return "", errors.New("the password of the directory is 4711")
		default:
			return tenant, nil
		}
	}
	s := serve(t, func(r *gin.Engine) {
		r.POST("/once", ginlock.By(byTenant, idempotency.WithLocker(l)), counter(&runs))
		r.POST("/required", ginlock.By(byTenant, idempotency.Require(), idempotency.WithLocker(l)), counter(&runs))
		r.POST("/locked", ginlock.LockBy(byTenant, idempotency.WithLocker(l)), func(c *gin.Context) {
			_, err := l.TryAcquire(context.Background(), "acme")
			c.String(200, "%v", errors.Is(err, core.ErrTaken))
		})
	})
	s.do("POST", "/once", "", "X-Tenant", "acme").want(t, 201, "run 1", false)
	s.do("POST", "/once", "", "X-Tenant", "acme").want(t, 201, "run 1", true)
	s.do("POST", "/once", "").want(t, 201, "run 2", false)
	s.do("POST", "/required", "").wantProblem(t, 400, idempotency.CodeKeyMissing)
	a := s.do("POST", "/once", "", "X-Tenant", "secret")
	a.wantProblem(t, 400, idempotency.CodeKeyInvalid)
	if strings.Contains(a.body, "4711") {
		t.Errorf("the client is told %s", a.body)
	}
	s.do("POST", "/locked", "", "X-Tenant", "acme").want(t, 200, "true", false)
	s.do("POST", "/locked", "", "X-Tenant", strings.Repeat("x", 600)).wantProblem(t, 400, idempotency.CodeKeyInvalid)
}

func TestByKey_QueryOnce(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.POST("/orders", ginlock.ByKey("{query.key}", idempotency.WithLocker(l)), counter(&runs))
	})
	s.do("POST", "/orders?key=a", "").want(t, 201, "run 1", false)
	s.do("POST", "/orders?key=a", "").want(t, 201, "run 1", true)
	s.do("POST", "/orders?key=a&x=1", "").wantProblem(t, 422, idempotency.CodeKeyReused)
	s.do("POST", "/orders?key=b", "").want(t, 201, "run 2", false)
	s.do("POST", "/orders?key=a&key=b", "").wantProblem(t, 400, idempotency.CodeKeyInvalid)
	s.do("POST", "/orders", "").wantProblem(t, 400, idempotency.CodeKeyMissing)
}

// A lock has the name that the template makes, without the principal.
func TestLockByKey_Names(t *testing.T) {
	t.Parallel()
	ann := ginlock.Principal(func(*gin.Context) string { return "a:n" })
	for template, want := range map[string]string{
		"order:{param.id}":             "order:7",
		"{principal}:{param.id}":       "a%253An:7",
		"header:{header.X-K}":          "header:v",
		"/orders/{param.id}:{query.q}": "/orders/7:b",
		"all":                          "all",
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			s := lockedAs(t, func(o ...idempotency.LockOption) gin.HandlerFunc { return ginlock.LockByKey(template, o...) }, ann)
			s.do("POST", "/orders/7?q=b", "", "X-K", "v").want(t, 200, want+" ", false)
		})
	}
}

// If gin's ShouldBind takes a body for a form, it reads the query. The order that is locked must be
// the one that ShouldBind finds.
func TestByKey_JSONThatIsBoundAsAForm(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.Any("/x", ginlock.LockByKey("order:{json.order_id}", idempotency.WithLocker(l)), func(c *gin.Context) {
			var in struct {
				OrderID int `json:"order_id"`
			}
			if err := c.ShouldBind(&in); err != nil || in.OrderID != 1 {
				c.String(200, "1 is locked, and %d bound (%v)", in.OrderID, err)
			}
		})
	})
	for _, tc := range []struct{ method, query, contentType, code string }{
		{"POST", "?OrderID=2", "application/json", ""},
		{"POST", "?OrderID=2", "application/json; charset=utf-8", ""},
		{"POST", "?OrderID=2", "Application/JSON", idempotency.CodeKeyInvalid},
		{"POST", "?OrderID=2", "application/json\t;", idempotency.CodeKeyInvalid},
		{"POST", "?OrderID=2", "application/merge-patch+json", idempotency.CodeKeyInvalid},
		{"GET", "?OrderID=2", "application/json", idempotency.CodeKeyInvalid},
	} {
		a := s.do(tc.method, "/x"+tc.query, `{"order_id":1}`, "Content-Type", tc.contentType)
		if tc.code == "" {
			a.want(t, 200, "", false)
		} else if a.status != 400 || !strings.Contains(a.body, tc.code) {
			t.Errorf("%+v: %d %s", tc, a.status, a.body)
		}
	}
}
