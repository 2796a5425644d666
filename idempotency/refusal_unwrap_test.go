package idempotency_test

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// statusWriter is how many programs log a status. It has no Unwrap, and neither have writers around
// gin.ResponseWriter, such as that of gin-contrib/gzip.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// A logger stands between the outer key and the inner one. The request that the inner one refuses
// did nothing, so its outer key is free.
func TestRefusal_InsideALogger(t *testing.T) {
	t.Parallel()
	l := idempotency.WithLocker(testutil.Locker(t))
	logged := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(&statusWriter{ResponseWriter: w}, r)
		})
	}
	var runs atomic.Int64
	running, done := make(chan struct{}), make(chan struct{})
	finish := sync.OnceFunc(func() { close(done) })
	defer finish() // even if the test fails: the server waits for its handlers
	once, perOrder := idempotency.ByHeader("Idempotency-Key", l), idempotency.ByKey("{header.X-Order}", l)
	s := serve(t, once(logged(perOrder(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if runs.Add(1) == 1 {
			close(running)
			<-done
		}
		fmt.Fprint(w, "made")
	})))))
	ask := func(key string) answer { return s.order("", "Idempotency-Key", key, "X-Order", "7") }
	first := make(chan answer, 1)
	go func() { first <- ask("first") }()
	<-running
	ask("second").refused(t, idempotency.CodeInFlight)
	finish()
	(<-first).want(t, 200, "made", false)
	ended(t, func() answer { return ask("second") }).want(t, 200, "made", true)
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}
