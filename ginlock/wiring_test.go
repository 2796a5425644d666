package ginlock_test

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// The middleware may be wired before the Locker is there.
func TestDefaultLocker(t *testing.T) {
	var runs atomic.Int64
	s := serve(t, func(r *gin.Engine) {
		r.Use(ginlock.ByHeader("Idempotency-Key"))
		r.POST("/orders", counter(&runs))
		r.POST("/orders/:id/grab", ginlock.LockByKey("order:{param.id}"), counter(&runs))
	})
	for _, path := range []string{"/orders", "/orders/1/grab"} {
		a := s.do("POST", path, "", idempotencyKey, "k")
		a.wantProblem(t, 503, idempotency.CodeLockUnavailable)
		if !strings.Contains(a.body, "core.SetDefault") {
			t.Errorf("%s does not say what to do", a.body)
		}
	}
	core.SetDefault(testutil.Locker(t))
	t.Cleanup(func() { core.SetDefault(nil) })
	s.order("k", "").want(t, 201, "run 1", false)
	s.order("k", "").want(t, 201, "run 1", true)
	s.do("POST", "/orders/1/grab", "").want(t, 201, "run 2", false)
}

func TestWiringPanics(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, want string
		wire       func()
	}{
		{"no header", "pass the name of a header", func() { ginlock.ByHeader("") }},
		{"bad header", "pass the name of a header", func() { ginlock.ByHeader("a b") }},
		{"Host", "reads r.Host", func() { ginlock.ByHeader("host") }},
		{"a header of the connection", "use another header", func() { ginlock.ByHeader("trailer") }},
		{"field of the Host", "reads r.Host", func() { ginlock.LockByKey("a:{header.HOST}") }},
		{"field of the connection", "use another header", func() { ginlock.ByKey("a:{header.Transfer-Encoding}") }},
		{"nil locker", "check the error of core.New", func() { ginlock.ByHeader("K", idempotency.WithLocker(nil)) }},
		{"nil principal", "Principal(nil)", func() { ginlock.ByHeader("K", ginlock.Principal(nil)) }},
		{"nil problem writer", "WithProblemWriter(nil)", func() { ginlock.ByHeader("K", idempotency.WithProblemWriter(nil)) }},
		{"nil Decide", "Decide(nil)", func() { ginlock.ByHeader("K", idempotency.Decide(nil)) }},
		{"nil Fingerprint", "Fingerprint(nil)", func() { ginlock.ByHeader("K", idempotency.Fingerprint(nil)) }},
		{"negative wait", "Wait(-1s)", func() { ginlock.ByHeader("K", idempotency.Wait(-time.Second)) }},
		{"short retention", "Retain(1ms)", func() { ginlock.ByHeader("K", idempotency.Retain(time.Millisecond)) }},
		{"large MaxBody", "MaxBody", func() { ginlock.ByHeader("K", idempotency.MaxBody(1<<30)) }},
		{"negative MaxRequestBody", "MaxRequestBody", func() { ginlock.ByHeader("K", idempotency.MaxRequestBody(-1)) }},
		{"bad Headers", "it is no header name", func() { ginlock.ByHeader("K", idempotency.Headers("a b")) }},
		{"no Methods", "name at least one", func() { ginlock.ByHeader("K", idempotency.Methods()) }},
		{"safe method", "the method has no effect to record", func() { ginlock.ByHeader("K", idempotency.Methods("get")) }},
		{"nil function", "pass a function", func() { ginlock.By(nil) }},
		{"nil function of a lock", "pass a function", func() { ginlock.LockBy(nil) }},
		{"nil Recover", "Recover(nil)", func() { ginlock.ByHeader("K", idempotency.Recover(nil)) }},
		{"no service", "pass a name", func() { ginlock.ByHeader("K", idempotency.Service("")) }},
		{"no time to run", "it must be positive", func() { ginlock.ByHeader("K", idempotency.MaxRun(0)) }},
		{"empty template", "the template is empty", func() { ginlock.ByKey("") }},
		{"open brace", "braces must be pairs", func() { ginlock.ByKey("a:{param.id") }},
		{"unknown field", "a field is {header.NAME}", func() { ginlock.ByKey("a:{req.id}") }},
		{"field without a name", "a field is {header.NAME}", func() { ginlock.ByKey("a:{param}") }},
		{"principal with a name", "a field is {header.NAME}", func() { ginlock.ByKey("a:{principal.id}") }},
		{"field with a bad header", "pass the name of a header", func() { ginlock.ByKey("a:{header.a b}") }},
		{"field with a bad cookie", "is no name of a cookie", func() { ginlock.ByKey("a:{cookie.a=b}") }},
		{"field with a bad path", "the path has an empty part", func() { ginlock.ByKey("a:{json.a..b}") }},
		{"one key for all answers", "would get the first answer", func() { ginlock.ByKey("all") }},
		{"short window", "must be at least 10ms", func() { ginlock.RefuseRepeats(0) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, "idempotency: ") || !strings.Contains(got, tc.want) {
					t.Errorf("panic %q does not say %q", got, tc.want)
				}
			}()
			tc.wire()
		})
	}
	ginlock.ByHeader("K", nil, idempotency.Wait(0)) // nil options are ignored
}

// After the retention a key runs anew.
func TestRetry_Retention(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := post(t, counter(&runs), idempotency.Retain(50*time.Millisecond))
	s.order("k", "").want(t, 201, "run 1", false)
	until(t, func() answer { return s.order("k", "") }, func(a answer) bool { return !a.replayed() }).want(t, 201, "run 2", false)
}

// The server removes the files of an uploaded form, although it knows only its own request.
func TestMultipartFilesAreRemoved(t *testing.T) {
	l := testutil.Locker(t)
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	files := func() int {
		all, err := os.ReadDir(tmp)
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	handle := func(c *gin.Context) {
		if err := c.Request.ParseMultipartForm(1); err != nil {
			t.Error(err)
		}
		c.String(200, "%d", files())
	}
	s := serve(t, func(r *gin.Engine) {
		r.POST("/locked/:id", ginlock.LockByKey("order:{param.id}", idempotency.WithLocker(l)), handle)
		r.POST("/once/:id", ginlock.ByKey("{param.id}", idempotency.WithLocker(l)), handle)
	})
	for _, path := range []string{"/locked/1", "/once/1"} {
		body := "--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\r\n" + strings.Repeat("x", 1<<10) + "\r\n--b--\r\n"
		a := s.do("POST", path, body, "Content-Type", "multipart/form-data; boundary=b")
		a.want(t, 200, "1", false)
		until(t, func() answer { return answer{status: files()} }, func(a answer) bool { return a.status == 0 })
	}
}
