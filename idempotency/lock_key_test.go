package idempotency_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/keytext"
	"github.com/onelane/onelane/testutil"
)

// A value is short enough, and the key that is made of it is not: a colon takes three bytes there.
func TestLockByKey_RefusedByTheLocker(t *testing.T) {
	t.Parallel()
	s := serve(t, idempotency.LockByKey("{header.X-A}", idempotency.WithLocker(testutil.Locker(t)))(http.NotFoundHandler()))
	a := s.post(t.Context(), "/", nil, "X-A", strings.Repeat(":", 255))
	a.refused(t, idempotency.CodeKeyInvalid)
	if !strings.Contains(a.body, keytext.LockRefused) {
		t.Error(a.body)
	}
}

// A parameter that matches the rest of the path may be empty. That is the client's mistake. A parameter
// that the route does not have is ours.
func TestLockByKey_EmptyParam(t *testing.T) {
	t.Parallel()
	lock := idempotency.LockByKey("file:{param.rest}", idempotency.WithLocker(testutil.Locker(t)))
	mux := http.NewServeMux()
	mux.Handle("/files/{rest...}", lock(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	mux.Handle("/other/{rest_of...}", lock(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	for path, status := range map[string]int{"/files/a/b": 200, "/files/": 400, "/other/a": 500, "/other/": 500} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest("POST", path, nil))
		if w.Code != status {
			t.Errorf("%s: %d %s, it must be %d", path, w.Code, w.Body, status)
		}
	}
}
