package ginlock_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/testutil"
)

func TestRule04_BasicAuthUser(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.Use(gin.BasicAuth(gin.Accounts{"ann": "1", "bob": "2"}), ginlock.ByHeader(idempotencyKey, ginlock.WithLocker(l)))
		r.POST("/orders", counter(&runs))
	})
	ann, bob := "Basic YW5uOjE=", "Basic Ym9iOjI="
	s.order("k", "{}", "Authorization", ann).want(t, 201, "run 1", false)
	s.order("k", "{}", "Authorization", bob).want(t, 201, "run 2", false)
	s.order("k", "{}", "Authorization", ann, "Cookie", "other=1").want(t, 201, "run 1", true)
	// Authentication runs before a replay.
	if a := s.order("k", "{}", "Authorization", "Basic bm9ib2R5OjE="); a.status != 401 || a.replayed() {
		t.Errorf("%d, replayed %v", a.status, a.replayed())
	}
}

func TestRule04_UserThatIsNoName(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	type user struct{ name string }
	for _, value := range []any{&user{"ann"}, user{"ann"}, "", 7, nil} {
		s := serve(t, func(r *gin.Engine) {
			r.Use(func(c *gin.Context) { c.Set(gin.AuthUserKey, value) }, ginlock.ByHeader(idempotencyKey, ginlock.WithLocker(l)))
			r.POST("/orders", counter(&runs))
		})
		s.order("k", "").wantProblem(t, 500, ginlock.CodeMisconfigured)
	}
	if n := runs.Load(); n != 0 {
		t.Errorf("%d runs", n)
	}
}

func TestRule04_CredentialsChanged(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	g := newGate(t)
	s := post(t, g.behind(counter(&runs)))
	first := later(func() answer { return s.order("k", "{}", "Authorization", "Bearer a", "Cookie", "s=1") })
	g.wait(t)
	others := func() {
		t.Helper()
		for _, header := range [][]string{
			{"Authorization", "Bearer b", "Cookie", "s=1"}, {"Authorization", "Bearer a", "Cookie", "s=2"}, {"Authorization", "Bearer a"}, {},
			{"Authorization", "Bearer a", "Authorization", "Bearer a", "Cookie", "s=1"},
		} {
			s.order("k", "{}", header...).wantProblem(t, 422, ginlock.CodeCredentialsChanged)
			// The same answer whatever the payload: a stranger cannot guess at it.
			s.order("k", `{"n":1}`, header...).wantProblem(t, 422, ginlock.CodeCredentialsChanged)
		}
	}
	others()
	close(g.open)
	(<-first).want(t, 201, "run 1", false)
	others()
	s.order("k", "{}", "Authorization", "Bearer a", "Cookie", "s=1").want(t, 201, "run 1", true)
	s.order("k", `{"n":1}`, "Authorization", "Bearer a", "Cookie", "s=1").wantProblem(t, 422, ginlock.CodeKeyReused)
	if n := runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

func TestRule04_PrincipalOption(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := post(t, counter(&runs), ginlock.Principal(func(c *gin.Context) string { return c.GetHeader("X-User") }))
	s.order("k", "{}", "X-User", "ann", "Authorization", "Bearer a").want(t, 201, "run 1", false)
	s.order("k", "{}", "X-User", "ann", "Authorization", "Bearer new").want(t, 201, "run 1", true)
	s.order("k", "{}", "X-User", "bob", "Authorization", "Bearer a").want(t, 201, "run 2", false)
	// Anonymous: the last resort.
	s.order("k", "{}").want(t, 201, "run 3", false)
	s.order("k", "{}", "Authorization", "Bearer a").wantProblem(t, 422, ginlock.CodeCredentialsChanged)
}

func TestRule10_Fingerprint(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.POST("/orders/:id", ginlock.ByHeader(idempotencyKey, ginlock.WithLocker(l)), counter(&runs))
		r.POST("/custom", ginlock.ByHeader(idempotencyKey, ginlock.WithLocker(l), ginlock.Fingerprint(func(c *gin.Context, body []byte) []byte {
			return append([]byte(c.Query("n")), body[:1]...)
		})), counter(&runs))
	})
	send := func(path, contentType, body string) answer {
		req, err := http.NewRequest("POST", s.url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(idempotencyKey, "k")
		req.Header.Set("Content-Type", contentType)
		return s.send(req)
	}
	send("/orders/1?a=1", "text/plain", "hello").want(t, 201, "run 1", false)
	send("/orders/1?a=1", "text/plain", "hello").want(t, 201, "run 1", true)
	for _, other := range [][3]string{
		{"/orders/2?a=1", "text/plain", "hello"}, {"/orders/1?a=2", "text/plain", "hello"}, {"/orders/1", "text/plain", "hello"},
		{"/orders/1?a=1", "application/json", "hello"}, {"/orders/1?a=1", "text/plain", "hello!"}, {"/orders/1?a=1", "text/plain", ""},
	} {
		if a := send(other[0], other[1], other[2]); a.status != 422 {
			t.Errorf("%v: %d %s", other, a.status, a.body)
		}
	}
	// Two identical bodies under different keys are two requests.
	s.do("POST", "/orders/1?a=1", "hello", idempotencyKey, "another").want(t, 201, "run 2", false)

	send("/custom?n=1&x=1", "text/plain", "hello").want(t, 201, "run 3", false)
	send("/custom?n=1&x=2", "text/html", "huhu").want(t, 201, "run 3", true)
	send("/custom?n=2", "text/plain", "hello").wantProblem(t, 422, ginlock.CodeKeyReused)
}

func TestRule10_Multipart(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := post(t, counter(&runs))
	form := func(boundary, file, content string) answer {
		body := fmt.Sprintf("--%[1]s\r\nContent-Disposition: form-data; name=\"n\"\r\n\r\n1\r\n--%[1]s\r\nContent-Disposition: form-data; name=\"f\"; filename=%[2]q\r\nContent-Type: text/plain\r\n\r\n%[3]s\r\n--%[1]s--\r\n", boundary, file, content)
		req, err := http.NewRequest("POST", s.url+"/orders", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(idempotencyKey, "k")
		req.Header.Set("Content-Type", "multipart/form-data; boundary="+boundary)
		return s.send(req)
	}
	form("aaa", "a.txt", "hello").want(t, 201, "run 1", false)
	form("bbb", "a.txt", "hello").want(t, 201, "run 1", true)
	form("ccc", "b.txt", "hello").wantProblem(t, 422, ginlock.CodeKeyReused)
	form("ddd", "a.txt", "hello!").wantProblem(t, 422, ginlock.CodeKeyReused)
}

// A middleware that has read the body left it under gin.BodyBytesKey; what is left to read is empty.
func TestRule10_BodyReadBefore(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.Use(func(c *gin.Context) {
			var v map[string]any
			_ = c.ShouldBindBodyWithJSON(&v)
		}, ginlock.ByHeader(idempotencyKey, ginlock.WithLocker(l), ginlock.MaxRequestBody(100)))
		r.POST("/orders", counter(&runs))
	})
	s.order("k", `{"n":1}`).want(t, 201, "run 1", false)
	s.order("k", `{"n":2}`).wantProblem(t, 422, ginlock.CodeKeyReused)
	s.order("k", `{"n":1}`).want(t, 201, "run 1", true)
	s.order("l", `{"n":"`+strings.Repeat("x", 100)+`"}`).wantProblem(t, 413, ginlock.CodeRequestTooLarge)
}

func TestRule20_RequestBody(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.POST("/orders", ginlock.ByHeader(idempotencyKey, ginlock.WithLocker(l), ginlock.MaxRequestBody(64)), func(c *gin.Context) {
			var a, b map[string]any
			if err := c.ShouldBindBodyWithJSON(&a); err != nil {
				t.Error(err)
			}
			if err := c.ShouldBindBodyWithJSON(&b); err != nil {
				t.Error(err)
			}
			c.String(200, "%v %v %d %v", a["n"], b["n"], c.Request.ContentLength, c.Request.TransferEncoding)
		})
		r.POST("/raw", ginlock.ByHeader(idempotencyKey, ginlock.WithLocker(l)), func(c *gin.Context) {
			b, err := c.GetRawData()
			c.String(200, "%s %v", b, err)
		})
	})
	s.order("k", `{"n":1}`).want(t, 200, "1 1 7 []", false)
	// Chunked: the length is known once the body is read.
	req, err := http.NewRequest("POST", s.url+"/orders", struct{ *strings.Reader }{strings.NewReader(`{"n":2}`)})
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(idempotencyKey, "chunked")
	s.send(req).want(t, 200, "2 2 7 []", false)
	s.do("POST", "/raw", "body", idempotencyKey, "k").want(t, 200, "body <nil>", false)

	large := `{"n":"` + strings.Repeat("x", 64) + `"}`
	s.order("large", large).wantProblem(t, 413, ginlock.CodeRequestTooLarge)
	req, err = http.NewRequest("POST", s.url+"/orders", struct{ *strings.Reader }{strings.NewReader(large)})
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(idempotencyKey, "large")
	s.send(req).wantProblem(t, 413, ginlock.CodeRequestTooLarge)
	s.order("large", `{"n":3}`).want(t, 200, "3 3 7 []", false) // nothing was locked
}
