package ginlock_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

func TestPrincipal_BasicAuthUser(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.Use(gin.BasicAuth(gin.Accounts{"ann": "1", "bob": "2"}), ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)))
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

func TestPrincipal_UserThatIsNoName(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	type user struct{ name string }
	for _, value := range []any{&user{"ann"}, user{"ann"}, "", 7, nil} {
		s := serve(t, func(r *gin.Engine) {
			r.Use(func(c *gin.Context) { c.Set(gin.AuthUserKey, value) }, ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)))
			r.POST("/orders", counter(&runs))
		})
		s.order("k", "").wantProblem(t, 500, idempotency.CodeMisconfigured)
	}
	if n := runs.Load(); n != 0 {
		t.Errorf("%d runs", n)
	}
}

func TestPrincipal_CredentialsChanged(t *testing.T) {
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
			{"Authorization", "Bearer a", "Authorization", "Bearer a", "Cookie", "s=1"}, {"Authorization", "Bearer a", "Cookie", "s=1", "X-Api-Key", "x"},
		} {
			s.order("k", "{}", header...).wantProblem(t, 422, idempotency.CodeCredentialsChanged)
			// The same answer whatever the payload: a stranger cannot guess at it.
			s.order("k", `{"n":1}`, header...).wantProblem(t, 422, idempotency.CodeCredentialsChanged)
		}
	}
	others()
	close(g.open)
	(<-first).want(t, 201, "run 1", false)
	others()
	s.order("k", "{}", "Authorization", "Bearer a", "Cookie", "s=1").want(t, 201, "run 1", true)
	s.order("k", `{"n":1}`, "Authorization", "Bearer a", "Cookie", "s=1").wantProblem(t, 422, idempotency.CodeKeyReused)
	if n := runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
	s.order("k2", "{}", "X-Api-Key", "ann").want(t, 201, "run 2", false)
	s.order("k2", "{}", "X-Api-Key", "ann").want(t, 201, "run 2", true)
	s.order("k2", "{}", "X-Api-Key", "bob").wantProblem(t, 422, idempotency.CodeCredentialsChanged)
	s.order("k2", "{}").wantProblem(t, 422, idempotency.CodeCredentialsChanged)
}

func TestPrincipal_PrincipalOption(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := post(t, counter(&runs), ginlock.Principal(func(c *gin.Context) string { return c.GetHeader("X-User") }))
	s.order("k", "{}", "X-User", "ann", "Authorization", "Bearer a").want(t, 201, "run 1", false)
	s.order("k", "{}", "X-User", "ann", "Authorization", "Bearer new").want(t, 201, "run 1", true)
	s.order("k", "{}", "X-User", "bob", "Authorization", "Bearer a").want(t, 201, "run 2", false)
	// Anonymous: the last resort.
	s.order("k", "{}").want(t, 201, "run 3", false)
	s.order("k", "{}", "Authorization", "Bearer a").wantProblem(t, 422, idempotency.CodeCredentialsChanged)
}

// A mux of net/http beside Gin gets the same options. Its requests have no gin.Context.
func TestPrincipal_OutsideGin(t *testing.T) {
	who := ginlock.Principal(func(c *gin.Context) string { return c.GetString(gin.AuthUserKey) })
	h := idempotency.ByHeader(idempotencyKey, who, idempotency.WithLocker(testutil.Locker(t)))(http.NotFoundHandler())
	r := httptest.NewRequest("POST", "/orders", nil)
	r.Header.Set(idempotencyKey, "k")
	defer func() {
		if got := fmt.Sprint(recover()); !strings.Contains(got, "pass idempotency.Principal") {
			t.Errorf("panic %q does not say what to pass", got)
		}
	}()
	h.ServeHTTP(httptest.NewRecorder(), r)
}
