package idempotency_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// csrf stands for a middleware outside that reads its token from the form. The token is another one
// each time.
func csrf(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.PostFormValue("csrf") == "" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// withoutToken is a fingerprint of the form without what changes with each try.
func withoutToken(_ *http.Request, body []byte) []byte {
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return body
	}
	form.Del("csrf")
	return []byte(form.Encode())
}

// The body was read outside, and the function still gets the form.
func TestFingerprint_FuncAndFormParsedBefore(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l, token := idempotency.WithLocker(testutil.Locker(t)), idempotency.Fingerprint(withoutToken)
	pay := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "paid %s, run %d", r.PostFormValue("cents"), runs.Add(1))
	})
	// The function of By may be the one that parses the form.
	id := func(r *http.Request) (string, error) { return r.PostFormValue("id"), nil }
	for name, once := range map[string]http.Handler{
		"csrf outside": csrf(idempotency.ByHeader("Idempotency-Key", l, token)(pay)),
		"By":           idempotency.By(id, l, token)(pay),
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, once)
			post := func(form string) answer {
				return s.post(t.Context(), "/"+url.PathEscape(name), strings.NewReader(form),
					"Idempotency-Key", "k", "Content-Type", "application/x-www-form-urlencoded")
			}
			first := post("id=1&csrf=1&cents=700")
			first.want(t, 200, fmt.Sprintf("paid 700, run %d", runs.Load()), false)
			post("id=1&csrf=2&cents=700").want(t, 200, first.body, true)
			post("id=1&csrf=3&cents=900").refused(t, idempotency.CodeKeyReused)
		})
	}
	t.Run("RefuseRepeats", func(t *testing.T) {
		s := serve(t, csrf(idempotency.RefuseRepeats(time.Minute, l, token)(pay)))
		post := func(form string) answer {
			return s.post(t.Context(), "/form", strings.NewReader(form), "Content-Type", "application/x-www-form-urlencoded")
		}
		post("csrf=1&cents=700").want(t, 200, fmt.Sprintf("paid 700, run %d", runs.Load()), false)
		post("csrf=2&cents=700").refused(t, idempotency.CodeDuplicateSubmit)
		post("csrf=3&cents=900").want(t, 200, fmt.Sprintf("paid 900, run %d", runs.Load()), false)
	})
}
