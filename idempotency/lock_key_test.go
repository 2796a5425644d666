package idempotency_test

import (
	"errors"
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

// If a function makes the key, a refusal says what to change, and not why the function failed.
func TestBy_RefusedTexts(t *testing.T) {
	t.Parallel()
	const refused = "The key that the server makes of the request is refused: "
	const change = "Change the values that the key is made of."
	l := idempotency.WithLocker(testutil.Locker(t))
	for name, c := range map[string]struct {
		key   string
		err   error
		code  string
		texts []string
	}{
		"none":      {code: idempotency.CodeKeyMissing, texts: []string{"Send the values that the key is made of."}},
		"error":     {err: errors.New("no keys today"), code: idempotency.CodeKeyInvalid, texts: []string{refused + "it could not be made.", change}},
		"character": {key: "a\x01b", code: idempotency.CodeKeyInvalid, texts: []string{refused + "it has a character that is not allowed.", change}},
	} {
		key := func(*http.Request) (string, error) { return c.key, c.err }
		for _, protect := range []func(http.Handler) http.Handler{
			idempotency.By(key, l, idempotency.Require()), idempotency.LockBy(key, l, idempotency.Require()),
		} {
			a := serve(t, protect(http.NotFoundHandler())).post(t.Context(), "/", nil)
			a.refused(t, c.code)
			for _, text := range c.texts {
				if !strings.Contains(a.body, text) {
					t.Errorf("%s: %s, it must have %q", name, a.body, text)
				}
			}
			if strings.Contains(a.body, "no keys today") {
				t.Errorf("%s: %s", name, a.body)
			}
		}
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
