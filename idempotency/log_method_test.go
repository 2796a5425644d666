package idempotency_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// A client may send any method, of any length, to a handler without one in its pattern. It must not
// have separate log lines for each: the log would be flooded, and the limiter remembers each
// method.
func TestLogs_MethodsOfAClientAreOneSeries(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		line, path string
		of         func(idempotency.SharedOption) func(http.Handler) http.Handler
	}{
		"ByHeader, an empty chunked body": {"the body cannot be read", "/orders/7",
			func(l idempotency.SharedOption) func(http.Handler) http.Handler {
				return idempotency.ByHeader("Idempotency-Key", l)
			}},
		"LockByKey, a long key": {"the key of a lock is refused", "/orders/" + strings.Repeat(":", 255),
			func(l idempotency.SharedOption) func(http.Handler) http.Handler {
				return idempotency.LockByKey("order:{param.id}", l)
			}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var log bytes.Buffer
			logger := slog.New(slog.NewTextHandler(writerFunc(func(b []byte) (int, error) {
				mu.Lock()
				defer mu.Unlock()
				return log.Write(b)
			}), nil))
			mux := http.NewServeMux()
			mux.Handle("/orders/{id}", c.of(idempotency.WithLocker(testutil.Locker(t, core.WithLogger(logger))))(http.NotFoundHandler()))
			const requests = 200
			for i := range requests { // net/http takes methods of up to a MiB; 10 KB do here
				method := fmt.Sprint(strings.Repeat("M", 10_000), i)
				r := httptest.NewRequest(method, c.path, struct{ io.Reader }{strings.NewReader("")})
				r.Header.Set("Idempotency-Key", "k")
				mux.ServeHTTP(httptest.NewRecorder(), r)
			}
			mu.Lock()
			defer mu.Unlock()
			// The limiter may add one line after 10 s.
			if n := strings.Count(log.String(), c.line); n == 0 || n > 2 {
				t.Errorf("%d lines, %d bytes, for %d requests", n, log.Len(), requests)
			}
		})
	}
}
