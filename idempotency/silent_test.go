package idempotency_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

// giveUp returns without an answer when its context ends, as handlers of net/http do.
func giveUp(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Length", "4")
	select {
	case <-r.Context().Done():
		return
	case <-time.After(check.Patience):
	}
	fmt.Fprint(w, "paid")
}

// orderInTime posts an order whose lease outlives its handler. A busy machine may lose the lease, and
// then orderInTime posts another order. again posts the same order once more.
func (s *server) orderInTime() (a answer, again func(header ...string) answer) {
	s.t.Helper()
	for try := 1; ; try++ {
		n := strconv.Itoa(try)
		again = func(header ...string) answer {
			return s.order(n, append([]string{"Idempotency-Key", "k" + n}, header...)...)
		}
		if a = again(); a.code() != idempotency.CodeLockLost || try == 5 {
			return a, again
		}
	}
}

// A handler whose context ended and that wrote nothing has not answered 200: its outcome is unknown.
func TestSilent_AfterTheContextEnded(t *testing.T) {
	t.Parallel()
	const limit = 300 * time.Millisecond
	unknown := idempotency.CodeOutcomeUnknown
	serveOrders := func(l *core.Locker, outside func(http.Handler) http.Handler, opts ...idempotency.HTTPOption) *server {
		once := idempotency.ByHeader("Idempotency-Key", append(opts, idempotency.WithLocker(l))...)
		mux := http.NewServeMux()
		mux.Handle("POST /orders/7", outside(once(http.HandlerFunc(giveUp))))
		return serve(t, mux)
	}
	none := func(h http.Handler) http.Handler { return h }
	t.Run("MaxRun", func(t *testing.T) {
		t.Parallel()
		s := serveOrders(shortLocker(t), none, idempotency.MaxRun(limit))
		a, again := s.orderInTime()
		a.refused(t, unknown)
		ended(t, func() answer { return again() }).refused(t, unknown)
	})
	t.Run("TimeoutHandler outside", func(t *testing.T) {
		t.Parallel()
		var limit atomic.Int64
		var ran sync.Map // the keys of the handlers that ran
		once := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(shortLocker(t)))
		h := once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ran.Store(r.Header.Get("Idempotency-Key"), true)
			giveUp(w, r)
		}))
		mux := http.NewServeMux()
		mux.HandleFunc("POST /orders/7", func(w http.ResponseWriter, r *http.Request) {
			http.TimeoutHandler(h, time.Duration(limit.Load()), "too late").ServeHTTP(w, r)
		})
		s := serve(t, mux)
		for d := 300 * time.Millisecond; ; d *= 2 { // until it is enough for a claim on a busy machine
			limit.Store(int64(d))
			again := func() answer { return s.order("", "Idempotency-Key", d.String()) }
			a := again()
			if _, handled := ran.Load(d.String()); (!handled || a.code() == idempotency.CodeLockLost) && d < 10*time.Second {
				continue
			}
			if a.status != 503 { // both end at once, and either may answer
				a.refused(t, unknown)
			}
			limit.Store(int64(time.Minute)) // a retry is not answered "too late"
			ended(t, again).refused(t, unknown)
			return
		}
	})
	t.Run("Gin", func(t *testing.T) {
		t.Parallel()
		r := gin.New()
		r.POST("/orders/:id", ginlock.ByHeader("Idempotency-Key", idempotency.WithLocker(shortLocker(t)),
			idempotency.MaxRun(limit)), gin.WrapF(giveUp))
		s := serve(t, r)
		a, again := s.orderInTime()
		a.refused(t, unknown)
		ended(t, func() answer { return again() }).refused(t, unknown)
	})
	t.Run("claim lost", func(t *testing.T) {
		t.Parallel()
		l := shortLocker(t)
		s := serveOrders(l, func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				key, over := "claim:"+core.Join("", "", "Idempotency-Key", "k"), make(chan struct{})
				var all sync.WaitGroup
				all.Go(func() {
					for revoked := false; !revoked; { // as soon as there is a claim
						select {
						case <-over:
							return
						case <-time.After(limit):
						}
						if st, err := l.Inspect(context.Background(), key); err == nil && st.Status == core.Held {
							revoked = l.Revoke(context.Background(), key, st.Owner) == nil
						}
					}
				})
				h.ServeHTTP(w, r)
				close(over)
				all.Wait()
			})
		})
		s.order("").refused(t, idempotency.CodeLockLost)
	})
	t.Run("two middlewares", func(t *testing.T) {
		t.Parallel()
		l := shortLocker(t)
		s := serveOrders(l, idempotency.RefuseRepeats(time.Minute, idempotency.WithLocker(l)), idempotency.MaxRun(limit))
		a, again := s.orderInTime()
		a.refused(t, unknown)
		ended(t, func() answer { return again("Idempotency-Key", "another") }).refused(t, idempotency.CodeDuplicateSubmit)
	})
}

// A status without a body is an answer, even after the context ended.
func TestSilent_StatusIsAnAnswer(t *testing.T) {
	t.Parallel()
	s := orders(t, testutil.Locker(t), func(w http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		w.WriteHeader(200)
	}, idempotency.MaxRun(50*time.Millisecond))
	s.order("").want(t, 200, "", false)
	s.order("").want(t, 200, "", true)
}

// RefuseRepeats tells the client of a form, too, that nobody knows what was done.
func TestSilent_RefuseRepeats(t *testing.T) {
	t.Parallel()
	l := idempotency.WithLocker(testutil.Locker(t))
	h := idempotency.RefuseRepeats(time.Minute, l, idempotency.MaxRun(50*time.Millisecond))
	s := serve(t, h(http.HandlerFunc(giveUp)))
	s.order("form").refused(t, idempotency.CodeOutcomeUnknown)
	s.order("form").refused(t, idempotency.CodeDuplicateSubmit)
}

// lock_lost does not have the headers of the answer that was not written.
func TestLock_LostAfterHeaders(t *testing.T) {
	t.Parallel()
	l := shortLocker(t)
	lock := idempotency.LockByKey("order:{header.X-Order}", idempotency.WithLocker(l))
	s := serve(t, lock(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "5")
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Location", "/orders/7")
		if err := revoke(l, "order:7"); err != nil {
			t.Error(err)
		}
		<-r.Context().Done()
	})))
	a := s.order("", "X-Order", "7")
	a.refused(t, idempotency.CodeLockLost)
	if a.header.Get("Location") != "" {
		t.Errorf("%v", a.header)
	}
}

// A handler notices that its context ended, and answers with a server error. Nobody knows what it did.
func TestDefaultFate_ErrorAfterTheContextEnded(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := orders(t, shortLocker(t), func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		<-r.Context().Done()
		http.Error(w, "the charge timed out", http.StatusInternalServerError)
	}, idempotency.MaxRun(50*time.Millisecond))
	s.order("").want(t, 500, "the charge timed out\n", false)
	ended(t, func() answer { return s.order("") }).refused(t, idempotency.CodeOutcomeUnknown)
	if n := runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
}
