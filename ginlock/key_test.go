package ginlock_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

func TestKey_InAHeader(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := post(t, counter(&runs))
	for _, tc := range []struct {
		name  string
		lines []string
	}{
		{"empty", []string{""}},
		{"empty string", []string{`""`}},
		{"unterminated quote", []string{`"k`}},
		{"quote inside", []string{`k"k`}},
		{"something after the quote", []string{`"k" x`}},
		{"list", []string{`"a", "b"`}},
		{"raw list", []string{`a, b`}},
		{"repeated line", []string{`"k"`, `"k"`}},
		{"tab", []string{"a\tb"}},
		{"not ASCII", []string{"clé"}},
		{"bad escape", []string{`"a\b"`}},
		{"escape at the end", []string{`"a\`}},
		{"256 bytes", []string{strings.Repeat("k", 256)}},
		{"256 bytes in quotes", []string{`"` + strings.Repeat("k", 256) + `"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var header []string
			for _, line := range tc.lines {
				header = append(header, idempotencyKey, line)
			}
			a := s.do("POST", "/orders", "", header...)
			a.wantProblem(t, 400, idempotency.CodeKeyInvalid)
			if p := a.problem(t); p.Correction == "" || p.Retryable {
				t.Errorf("%+v does not say what to change", p)
			}
		})
	}
	if n := runs.Load(); n != 0 {
		t.Fatalf("a bad key ran %d times", n)
	}
	s.order(`"k"`, "").want(t, 201, "run 1", false)
	s.order(`k`, "").want(t, 201, "run 1", true) // the raw form names the same key
	s.order(`"k";p=1; q="x"`, "").want(t, 201, "run 1", true)
	s.order(`"a\"\\b"`, "").want(t, 201, "run 2", false)
	s.order(strings.Repeat("k", 255), "").want(t, 201, "run 3", false)
}

func TestKey_MissingKey(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.POST("/optional", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), counter(&runs))
		r.POST("/required", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l), idempotency.Require()), counter(&runs))
		r.Any("/any", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l), idempotency.Require()), counter(&runs))
		r.Any("/patch", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l), idempotency.Require(), idempotency.Methods("PATCH")), counter(&runs))
	})
	s.do("POST", "/optional", "").want(t, 201, "run 1", false)
	s.do("POST", "/optional", "").want(t, 201, "run 2", false)
	s.do("POST", "/required", "").wantProblem(t, 400, idempotency.CodeKeyMissing)
	for _, method := range []string{"GET", "HEAD", "OPTIONS", "TRACE"} {
		for range 2 {
			if a := s.do(method, "/any", "", idempotencyKey, "k"); a.status != 201 || a.replayed() {
				t.Errorf("%s: %d, replayed %v", method, a.status, a.replayed())
			}
		}
		if a := s.do(method, "/any", ""); a.status != 201 {
			t.Errorf("%s without a key: %d", method, a.status)
		}
	}
	before := runs.Load()
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
		s.do(method, "/any", "").wantProblem(t, 400, idempotency.CodeKeyMissing)
	}
	s.do("PATCH", "/patch", "").wantProblem(t, 400, idempotency.CodeKeyMissing)
	s.do("POST", "/patch", "").want(t, 201, fmt.Sprintf("run %d", before+1), false)
}

func TestKey_OfPrincipals(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.Use(ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l), ginlock.Principal(func(c *gin.Context) string { return c.GetHeader("X-User") }),
			idempotency.Fingerprint(func(*http.Request, []byte) []byte { return nil })))
		r.Any("/orders", counter(&runs))
		r.Any("/orders/:id", counter(&runs))
	})
	n := 0
	// Parts that would look alike if they were simply put together, and a key that is too long for a lock.
	long := strings.Repeat("%", 255)
	inner := ":Idempotency-Key:"
	for _, user := range []string{"a", "b", "a:Idempotency-Key", "a" + inner + "b", strings.Repeat(":", 300)} {
		for _, key := range []string{"k", "b" + inner + "k", long, long[1:] + "$"} {
			n++
			first := s.do("POST", "/orders", "", "X-User", user, idempotencyKey, key)
			first.want(t, 201, fmt.Sprintf("run %d", n), false)
			s.do("POST", "/orders", "", "X-User", user, idempotencyKey, key).want(t, 201, first.body, true)
			// Method and path are in the fingerprint, also beside one of the program.
			s.do("PUT", "/orders", "", "X-User", user, idempotencyKey, key).wantProblem(t, 422, idempotency.CodeKeyReused)
			s.do("POST", "/orders/1", "", "X-User", user, idempotencyKey, key).wantProblem(t, 422, idempotency.CodeKeyReused)
		}
	}
}

// A key may come from the path, too: PUT /orders/:id, if the client chooses the id.
func TestByKey_Param(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.PUT("/orders/:id", ginlock.ByKey("{param.id}", idempotency.WithLocker(l)), counter(&runs))
		r.PUT("/wrong/:number", ginlock.ByKey("{param.id}", idempotency.WithLocker(l)), counter(&runs))
	})
	s.do("PUT", "/orders/1", "{}").want(t, 201, "run 1", false)
	s.do("PUT", "/orders/1", "{}").want(t, 201, "run 1", true)
	s.do("PUT", "/orders/2", "{}").want(t, 201, "run 2", false)
	s.do("PUT", "/orders/"+strings.Repeat("x", 256), "{}").wantProblem(t, 400, idempotency.CodeKeyInvalid)
	s.do("PUT", "/orders/a%00b", "{}").wantProblem(t, 400, idempotency.CodeKeyInvalid)
	s.do("PUT", "/wrong/1", "{}").wantProblem(t, 500, idempotency.CodeMisconfigured)
}
