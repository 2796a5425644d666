package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

// A handler charges, then calls an inner handler that is refused, and reports 200 all the same.
func TestRefusal_InnerAfterAnEffect(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"200", "500", "panic"} {
		t.Run(end, func(t *testing.T) {
			l := testutil.Locker(t)
			var charges atomic.Int64
			notify := idempotency.LockByKey("notify", idempotency.WithLocker(l))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			busy, err := l.TryAcquire(context.Background(), "notify")
			if err != nil {
				t.Fatal(err)
			}
			defer busy.Release(context.Background())
			s := orders(t, l, func(w http.ResponseWriter, r *http.Request) {
				n := charges.Add(1)
				notify.ServeHTTP(httptest.NewRecorder(), r) // best effort
				switch end {
				case "500":
					w.WriteHeader(500)
				case "panic":
					panic("boom")
				}
				fmt.Fprintf(w, "charged %d", n)
			})
			s.order("")
			s.order("")
			if charges.Load() != 1 {
				t.Errorf("%d charges under one key", charges.Load())
			}
		})
	}
}

// NothingDone in Recover is about the earlier run. The handler then charges, and its answer is recorded.
func TestRecover_NothingDone(t *testing.T) {
	t.Parallel()
	var runs, charges atomic.Int64
	s := orders(t, shortLocker(t), func(w http.ResponseWriter, r *http.Request) {
		if runs.Add(1) == 1 {
			panic("boom")
		}
		fmt.Fprintf(w, "charge %d", charges.Add(1))
	}, idempotency.Recover(func(w http.ResponseWriter, r *http.Request, _ idempotency.Run) idempotency.Recovery {
		idempotency.NothingDone(r.Context())
		return idempotency.RunHandler
	}))
	s.order("")
	ended(t, func() answer { return s.order("") }).want(t, 200, "charge 1", false)
	ended(t, func() answer { return s.order("") }).want(t, 200, "charge 1", true)
}

// Recover reads the body with a limit, as the handler does. The handler finds all of it.
func TestRecover_LimitsTheBody(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	read := func(w http.ResponseWriter, r *http.Request) string {
		r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
		b, _ := io.ReadAll(r.Body)
		return string(b)
	}
	s := orders(t, shortLocker(t), func(w http.ResponseWriter, r *http.Request) {
		b := read(w, r)
		if runs.Add(1) == 1 {
			panic("boom")
		}
		fmt.Fprintf(w, "order %s", b)
	}, idempotency.Recover(func(w http.ResponseWriter, r *http.Request, _ idempotency.Run) idempotency.Recovery {
		_ = read(w, r)
		return idempotency.RunHandler
	}))
	s.order(`{"n":1}`)
	ended(t, func() answer { return s.order(`{"n":1}`) }).want(t, 200, `order {"n":1}`, false)
}

// Headers that Recover sets after it wrote are not those of the handler.
func TestRecover_LeavesNoHeaders(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := orders(t, shortLocker(t), func(w http.ResponseWriter, r *http.Request) {
		if runs.Add(1) == 1 {
			panic("boom")
		}
		fmt.Fprint(w, "made")
	}, idempotency.Recover(func(w http.ResponseWriter, r *http.Request, _ idempotency.Run) idempotency.Recovery {
		w.WriteHeader(410)
		w.Header().Set("Location", "/nowhere")
		return idempotency.RunHandler
	}))
	s.order("")
	a := ended(t, func() answer { return s.order("") })
	a.want(t, 200, "made", false)
	if a.header.Get("Location") != "" {
		t.Errorf("%v", a.header)
	}
}

// Recover cannot reach the provider and answers so. The next retry runs the handler, and nobody said that
// nothing was done.
func TestRecover_Answers503(t *testing.T) {
	t.Parallel()
	var runs, asked atomic.Int64
	s := orders(t, shortLocker(t), func(w http.ResponseWriter, r *http.Request) {
		if runs.Add(1) == 1 {
			panic("after the charge")
		}
	}, idempotency.Recover(func(w http.ResponseWriter, r *http.Request, _ idempotency.Run) idempotency.Recovery {
		asked.Add(1)
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(503)
		return idempotency.Answered
	}))
	s.order("")
	ended(t, func() answer { return s.order("") }).want(t, 503, "", false)
	ended(t, func() answer { return s.order("") })
	if runs.Load() != 1 {
		t.Errorf("%d runs, %d recoveries", runs.Load(), asked.Load())
	}
}

// revoke ends the lease of a key, unless it has ended: the machine may be busy.
func revoke(l *core.Locker, key string) error {
	st, err := l.Inspect(context.Background(), key)
	if err != nil || st.Status != core.Held {
		return err
	}
	if err := l.Revoke(context.Background(), key, st.Owner); !errors.Is(err, core.ErrLost) {
		return err
	}
	return nil
}

// The context of a handler ends when a plain lock around it is lost, even with claims between them.
func TestLock_OuterLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]outerLock{
		"lock":                                 {},
		"lock and key":                         {between: true},
		"lock and key, the client has hung up": {between: true, gone: true},
		"lock, key and a form that is over":    {between: true, gone: true, inner: true},
	} {
		t.Run(name, func(t *testing.T) {
			for try := 1; !c.lose(t); try++ { // a busy machine may lose a lease before the handler runs
				if try == 5 {
					t.Fatal("the handler did not run")
				}
			}
		})
	}
}

// outerLock is a case of TestLock_OuterLost.
type outerLock struct{ between, gone, inner bool }

// lose checks the handler under a lock that is lost. It reports whether the handler ran.
func (c outerLock) lose(t *testing.T) bool {
	l := testutil.Locker(t, core.WithTTL(3*time.Second))
	inside, gone, over := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	h := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c.inner {
			form := idempotency.RefuseRepeats(time.Minute, idempotency.WithLocker(l))
			form(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(httptest.NewRecorder(), r)
		}
		close(inside)
		select {
		case <-r.Context().Done():
			over <- context.Cause(r.Context())
		case <-time.After(check.Patience):
			over <- errors.New("the handler still runs")
		}
	}))
	if c.between {
		h = idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(l))(h)
	}
	h = idempotency.LockByKey("order", idempotency.WithLocker(l))(h)
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		context.AfterFunc(r.Context(), func() { close(gone) })
		h.ServeHTTP(w, r)
	}))
	done := make(chan struct{})
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	go func() { defer close(done); s.post(ctx, "/orders/7", nil, "Idempotency-Key", "k") }()
	select {
	case <-inside:
	case <-done:
		return false
	}
	if c.gone {
		hangUp()
		<-gone
	}
	must(t, revoke(l, "order"))
	if err := <-over; !errors.Is(err, core.ErrLost) {
		t.Errorf("%v", err)
	}
	<-done
	return true
}

type hanging struct{ ctx context.Context }

func (b hanging) Read([]byte) (int, error) { <-b.ctx.Done(); return 0, b.ctx.Err() }
func (hanging) Close() error               { return nil }

// The body of an answer that is sent again never ends.
func TestTransport_EndlessBody(t *testing.T) {
	t.Parallel()
	var sent atomic.Int64
	rt := &idempotency.Transport{Base: roundTripper(func(r *http.Request) (*http.Response, error) {
		if sent.Add(1) == 1 {
			return &http.Response{StatusCode: 503, Header: http.Header{}, Body: hanging{r.Context()}}, nil
		}
		return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody}, nil
	}), Attempts: 3, Timeout: 50 * time.Millisecond, FirstPause: time.Millisecond, LongestPause: time.Millisecond}
	ctx, cancel := context.WithTimeout(context.Background(), check.Patience)
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, "POST", "http://x.example", nil)
	began := time.Now()
	resp, err := rt.RoundTrip(r)
	if err != nil || resp.StatusCode != 200 {
		t.Errorf("after %v and %d attempts of 50 ms: %v, %v", time.Since(began), sent.Load(), resp, err)
	}
}

// A handler that writes after it returned, Retry-After of a middleware outside, DeriveKey twice.
func TestFate_RetryAfterFromOutside(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	h := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(shortLocker(t)))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		w.WriteHeader(503) // after an effect: no Retry-After
	}))
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "1") // as some rate limiters do on each answer
		h.ServeHTTP(w, r)
	}))
	s.order("")
	ended(t, func() answer { return s.order("") })
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}

// Recover may read the form in another way than the handler does. The handler finds it unread.
func TestRecover_ReadsTheForm(t *testing.T) {
	t.Parallel()
	byReader := func(r *http.Request) string {
		parts, err := r.MultipartReader()
		if err != nil {
			return err.Error()
		}
		p, err := parts.NextPart()
		if err != nil {
			return err.Error()
		}
		b, _ := io.ReadAll(p)
		return string(b)
	}
	byValue := func(r *http.Request) string { return r.FormValue("amount") }
	for name, read := range map[string][2]func(*http.Request) string{
		"parts, then values": {byReader, byValue},
		"values, then parts": {byValue, byReader},
		"parts, then parts":  {byReader, byReader},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			s := orders(t, shortLocker(t), func(w http.ResponseWriter, r *http.Request) {
				if runs.Add(1) == 1 {
					panic("boom")
				}
				fmt.Fprintf(w, "pay %s", read[1](r))
			}, idempotency.Recover(func(_ http.ResponseWriter, r *http.Request, _ idempotency.Run) idempotency.Recovery {
				if got := read[0](r); got != "7" {
					t.Errorf("Recover read %q", got)
				}
				return idempotency.RunHandler
			}))
			submit := func() answer {
				return s.order("--B\r\nContent-Disposition: form-data; name=\"amount\"\r\n\r\n7\r\n--B--\r\n",
					"Content-Type", "multipart/form-data; boundary=B")
			}
			submit()
			ended(t, submit).want(t, 200, "pay 7", false)
		})
	}
}

// silentWriter cannot flush.
type silentWriter struct{ w http.ResponseWriter }

func (s silentWriter) Header() http.Header         { return s.w.Header() }
func (s silentWriter) Write(b []byte) (int, error) { return s.w.Write(b) }
func (s silentWriter) WriteHeader(status int)      { s.w.WriteHeader(status) }

// framing flushes by itself.
type framing struct {
	silentWriter
	flushed *int
}

func (f framing) FlushError() error           { *f.flushed++; return nil }
func (f framing) Unwrap() http.ResponseWriter { return f.silentWriter }

// The outermost writer that can flush decides, as for http.ResponseController.
func TestFlush_ByAWriterOutside(t *testing.T) {
	t.Parallel()
	flushed := 0
	r := httptest.NewRequest(http.MethodPost, "/orders/7", strings.NewReader("x"))
	r.Header.Set("Idempotency-Key", "k")
	idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(testutil.Locker(t)))(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "first")
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Errorf("Flush: %v", err)
			}
		})).ServeHTTP(framing{silentWriter{httptest.NewRecorder()}, &flushed}, r)
	if flushed != 1 {
		t.Errorf("flushed %d times", flushed)
	}
}
