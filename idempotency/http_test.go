package idempotency_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// counter answers 201 and the number of the run.
func counter(runs *atomic.Int64) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "run %d", runs.Add(1))
	}
}

func TestMaxRun_EndsTheContext(t *testing.T) {
	t.Parallel()
	s := orders(t, testutil.Locker(t), func(w http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		fmt.Fprintf(w, "%v, MaxRun: %v", r.Context().Err(), strings.Contains(context.Cause(r.Context()).Error(), "MaxRun"))
	}, idempotency.MaxRun(50*time.Millisecond))
	s.order("").want(t, 200, "context deadline exceeded, MaxRun: true", false)
	s.order("").want(t, 200, "context deadline exceeded, MaxRun: true", true)
}

// The server's own deadline stays, although the handler outlives its client.
func TestDeadline_OfTheServerStays(t *testing.T) {
	t.Parallel()
	h := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(testutil.Locker(t)))(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			fmt.Fprint(w, r.Context().Err())
		}))
	var limit atomic.Int64
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), time.Duration(limit.Load()))
		defer cancel()
		h.ServeHTTP(w, r.WithContext(ctx))
	}))
	for d := 50 * time.Millisecond; ; d *= 2 { // until it is enough for a lock on a busy machine
		limit.Store(int64(d))
		if a := s.order("", "Idempotency-Key", d.String()); a.status != 503 || d > 10*time.Second {
			a.want(t, 200, "context deadline exceeded", false)
			return
		}
	}
}

func TestNothingDone_FreesTheKey(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := orders(t, testutil.Locker(t), func(w http.ResponseWriter, r *http.Request) {
		switch runs.Add(1) {
		case 1:
			idempotency.NothingDone(r.Context())
			w.WriteHeader(500)
		case 2:
			idempotency.NothingDone(r.Context())
			panic("boom")
		default:
			fmt.Fprint(w, "made")
		}
	})
	ask := func() answer { return s.order("") }
	ask().want(t, 500, "", false)
	ended(t, ask).want(t, 500, "", false)
	ended(t, ask).want(t, 200, "made", false)
	ask().want(t, 200, "made", true)
}

// NothingDone is about all claims of a request, and RefuseRepeats has its own claim.
func TestNothingDone_AllClaims(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := idempotency.WithLocker(testutil.Locker(t))
	s := serve(t, idempotency.ByHeader("Idempotency-Key", l)(idempotency.RefuseRepeats(time.Minute, l)(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			if runs.Add(1) == 1 {
				idempotency.NothingDone(r.Context())
				w.WriteHeader(500)
				return
			}
			fmt.Fprint(w, "made")
		}))))
	s.order("").want(t, 500, "", false)
	s.order("").want(t, 200, "made", false)
}

// After a part of an answer was sent, NothingDone no longer frees the key, whatever the status was.
func TestNothingDone_AfterAPartWasSent(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := orders(t, shortLocker(t), func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(504)
		fmt.Fprint(w, "a part of it was charged, ")
		_ = http.NewResponseController(w).Flush()
		idempotency.NothingDone(r.Context())
	})
	s.order("")
	ended(t, func() answer { return s.order("") })
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}

// http.TimeoutHandler holds the answer back and cannot flush. The answer is recorded all the same.
func TestFlush_NotSupported(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := idempotency.WithLocker(testutil.Locker(t))
	once := idempotency.ByHeader("Idempotency-Key", l)(idempotency.RefuseRepeats(time.Minute, l)(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			counter(&runs)(w, r)
			if err := http.NewResponseController(w).Flush(); !errors.Is(err, http.ErrNotSupported) {
				t.Errorf("flushed behind TimeoutHandler: %v", err)
			}
			fmt.Fprint(w, ", to its end")
		})))
	s := serve(t, http.TimeoutHandler(once, time.Minute, "too late"))
	s.order("").want(t, 201, "run 1, to its end", false)
	s.order("").want(t, 201, "run 1, to its end", true)
}

func TestRetainFor_OneRequest(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := orders(t, testutil.Locker(t), func(w http.ResponseWriter, r *http.Request) {
		idempotency.RetainFor(r.Context(), 50*time.Millisecond)
		counter(&runs)(w, r)
	})
	s.order("").want(t, 201, "run 1", false)
	for a := s.order(""); a.body != "run 2"; a = s.order("") {
		a.want(t, 201, "run 1", true)
	}
}

func TestDecide_ByStatusAndHeader(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := orders(t, testutil.Locker(t), func(w http.ResponseWriter, _ *http.Request) {
		if runs.Add(1) == 1 {
			w.Header().Set("X-Declined", "1")
		}
		w.WriteHeader(402)
	}, idempotency.Decide(func(status int, header http.Header) idempotency.Fate {
		if header.Get("X-Declined") != "" {
			return idempotency.FreeKey
		}
		return idempotency.DefaultFate(status, header)
	}))
	s.order("").want(t, 402, "", false)
	ended(t, func() answer { return s.order("") }).want(t, 402, "", false)
	s.order("").want(t, 402, "", true)
}

func TestRecover_Answers(t *testing.T) {
	t.Parallel()
	for name, recovery := range map[string]idempotency.Recovery{
		"answered": idempotency.Answered, "run": idempotency.RunHandler, "unknown": idempotency.StillUnknown,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var runs, recoveries atomic.Int64
			s := orders(t, shortLocker(t), func(w http.ResponseWriter, _ *http.Request) {
				if runs.Add(1) == 1 {
					panic("boom")
				}
				fmt.Fprint(w, "from the handler")
			}, idempotency.Recover(func(w http.ResponseWriter, r *http.Request, earlier idempotency.Run) idempotency.Recovery {
				recoveries.Add(1)
				if earlier.RequestID != "first" || earlier.Instance == "" || earlier.Begun.IsZero() || earlier.Ended.IsZero() {
					t.Errorf("the earlier run is %+v", earlier)
				}
				if b, err := io.ReadAll(r.Body); string(b) != "{}" || err != nil {
					t.Errorf("the body is %q, %v", b, err)
				}
				if recovery != idempotency.RunHandler {
					fmt.Fprint(w, "from Recover")
				}
				return recovery
			}))
			ask := func() answer { return s.order("{}", "X-Request-Id", "first") }
			ask().want(t, 500, "", false)
			a := ended(t, ask)
			switch recovery {
			case idempotency.Answered:
				a.want(t, 200, "from Recover", false)
				ask().want(t, 200, "from Recover", true)
			case idempotency.StillUnknown:
				a.refused(t, idempotency.CodeOutcomeUnknown)
				ended(t, ask).refused(t, idempotency.CodeOutcomeUnknown)
				if n := recoveries.Load(); n < 2 {
					t.Errorf("%d recoveries; the next retry must ask again", n)
				}
				return
			default:
				a.want(t, 200, "from the handler", false)
				ask().want(t, 200, "from the handler", true)
				if n := runs.Load(); n != 2 {
					t.Errorf("%d runs", n)
				}
			}
			if n := recoveries.Load(); n != 1 {
				t.Errorf("%d recoveries", n)
			}
		})
	}
}

// Two retries at once find the unknown outcome: one of them recovers.
func TestRecover_TwoRetriesAtOnce(t *testing.T) {
	t.Parallel()
	var runs, effects atomic.Int64
	s := orders(t, shortLocker(t), func(http.ResponseWriter, *http.Request) {
		runs.Add(1)
		panic("boom")
	}, idempotency.Wait(20*time.Second), idempotency.Recover(
		func(w http.ResponseWriter, _ *http.Request, _ idempotency.Run) idempotency.Recovery {
			fmt.Fprintf(w, "effect %d", effects.Add(1))
			return idempotency.Answered
		}))
	s.order("").want(t, 500, "", false)
	var all sync.WaitGroup
	var replays atomic.Int64
	for range 2 {
		all.Go(func() {
			a := ended(t, func() answer { return s.order("") })
			if a.status != 200 || a.body != "effect 1" {
				t.Errorf("%d %s", a.status, a.body)
			}
			if a.replayed() {
				replays.Add(1)
			}
		})
	}
	all.Wait()
	if runs.Load() != 1 || effects.Load() != 1 || replays.Load() != 1 {
		t.Errorf("%d runs, %d effects, %d replays", runs.Load(), effects.Load(), replays.Load())
	}
}

// A handler may set headers in goroutines that it waits for.
func TestHeaders_FromGoroutines(t *testing.T) {
	t.Parallel()
	s := orders(t, testutil.Locker(t), func(w http.ResponseWriter, _ *http.Request) {
		var all sync.WaitGroup
		var mu sync.Mutex
		for i := range 8 {
			all.Go(func() {
				mu.Lock()
				defer mu.Unlock()
				w.Header().Add("Link", fmt.Sprint(i))
			})
		}
		all.Wait()
		fmt.Fprint(w, "made")
	})
	first, again := s.order(""), s.order("")
	again.want(t, 200, "made", true)
	if got, want := fmt.Sprint(again.header["Link"]), fmt.Sprint(first.header["Link"]); got != want || len(first.header["Link"]) != 8 {
		t.Errorf("Link %s, at first %s", got, want)
	}
}

// Keys of two services never meet. Another host is another request.
func TestKeys_ServicesAndHosts(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	n := testutil.Redis(t)
	servers := make([]*server, 2)
	for i, name := range []string{"shop", "billing"} {
		servers[i] = orders(t, lockerOn(t, n), counter(&runs), idempotency.Service(name))
	}
	servers[0].order("").want(t, 201, "run 1", false)
	servers[1].order("").want(t, 201, "run 2", false)
	servers[0].host = "other.example"
	servers[0].order("").refused(t, idempotency.CodeKeyReused)
	servers[0].host = "shop.example"
	servers[0].order("").want(t, 201, "run 1", true)
	servers[1].order("").want(t, 201, "run 2", true)
}

// A fingerprint of the program's own covers the body. Path and host count all the same.
func TestFingerprint_PathCounts(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := orders(t, testutil.Locker(t), counter(&runs), idempotency.Fingerprint(func(*http.Request, []byte) []byte { return nil }))
	s.order("a").want(t, 201, "run 1", false)
	s.order("b").want(t, 201, "run 1", true)
	s.post(t.Context(), "/orders/8", strings.NewReader("a"), "Idempotency-Key", "k").refused(t, idempotency.CodeKeyReused)
	s.host = "other.example"
	s.order("a").refused(t, idempotency.CodeKeyReused)
}

// A body that was read outside, in part or as a whole, would look like another one: it is refused.
func TestBody_ReadOutside(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	h := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(testutil.Locker(t)))(counter(&runs))
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Part") != "" {
			_, _ = io.ReadFull(r.Body, make([]byte, 3))
		} else {
			_, _ = io.Copy(io.Discard, r.Body)
		}
		if r.Header.Get("X-None") != "" {
			r.Body = http.NoBody
		}
		h.ServeHTTP(w, r)
	}))
	s.order("123456", "X-Part", "1").refused(t, idempotency.CodeMisconfigured)
	s.order("123456", "X-None", "1").refused(t, idempotency.CodeMisconfigured)
	s.order("123456").refused(t, idempotency.CodeMisconfigured)
	chunked := struct{ io.Reader }{strings.NewReader("123456")}
	s.post(t.Context(), "/orders/7", chunked, "Idempotency-Key", "k").refused(t, idempotency.CodeMisconfigured)
	if n := runs.Load(); n != 0 {
		t.Errorf("%d runs", n)
	}
}

// A middleware outside unpacks the body and leaves ContentLength, as Echo's Decompress does. What is
// unpacked may be shorter than what was sent.
func TestBody_UnpackedOutside(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	h := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(testutil.Locker(t)))(counter(&runs))
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		unpacked, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		r.Body = io.NopCloser(unpacked)
		h.ServeHTTP(w, r)
	}))
	order := func(text string) answer {
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		_, _ = io.WriteString(z, text)
		_ = z.Close()
		return s.order(packed.String(), "Content-Encoding", "gzip")
	}
	for range 2 {
		if a := order(`{"a":1}`); a.status != http.StatusCreated {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	order(`{"a":2}`).refused(t, idempotency.CodeKeyReused)
	if n := runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// Without a principal there is one warning for each route.
func TestPrincipal_WarnsOncePerRoute(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(writerFunc(func(b []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return log.Write(b)
	}), nil))
	once := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(testutil.Locker(t, core.WithLogger(logger))))
	mux := http.NewServeMux()
	for _, route := range []string{"/a", "/b"} {
		mux.Handle("POST "+route, once(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	}
	s := serve(t, mux)
	for _, path := range []string{"/a", "/b", "/a", "/b"} {
		s.post(t.Context(), path, nil, "Idempotency-Key", "k")
	}
	mu.Lock()
	defer mu.Unlock()
	if n := strings.Count(log.String(), "no principal is known"); n != 2 {
		t.Errorf("%d warnings, want 2:\n%s", n, &log)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// HTTP/2 cannot be hijacked. The handler then answers in another way, and that answer is recorded.
func TestHijack_HTTP2LeavesTheKey(t *testing.T) {
	t.Parallel()
	h := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(testutil.Locker(t)))(http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) {
			_, _, err := http.NewResponseController(w).Hijack()
			fmt.Fprint(w, errors.Is(err, http.ErrNotSupported))
		}))
	ts := httptest.NewUnstartedServer(h)
	ts.EnableHTTP2 = true
	ts.StartTLS()
	defer ts.Close()
	client := ts.Client()
	defer client.CloseIdleConnections()
	for i := range 2 {
		req, err := http.NewRequest("POST", ts.URL, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Idempotency-Key", "k")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.ProtoMajor != 2 {
			t.Fatal(resp.Proto, err)
		}
		answer{resp.StatusCode, string(b), resp.Header}.want(t, 200, "true", i > 0)
	}
}

// Parameters that name the root part of a multipart body belong to the request, and so does its end.
func TestBody_MultipartParameters(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := orders(t, testutil.Locker(t), counter(&runs))
	submit := func(boundary, start, epilogue string) answer {
		body := strings.ReplaceAll("--B\r\nContent-Id: <1>\r\n\r\n1 EUR\r\n--B\r\nContent-Id: <2>\r\n\r\n1000 EUR\r\n--B--\r\n", "B", boundary)
		return s.order(body+epilogue, "Content-Type", "multipart/related; boundary="+boundary+"; start="+start)
	}
	submit("one", `"<1>"`, "").want(t, 201, "run 1", false)
	submit("two", `"<1>"`, "").want(t, 201, "run 1", true)
	submit("two", `"<2>"`, "").refused(t, idempotency.CodeKeyReused)
	submit("two", `"<1>"`, "more").refused(t, idempotency.CodeKeyReused)
}

// The same bytes are another payload if they are packed in another way.
func TestBody_ContentEncoding(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := orders(t, testutil.Locker(t), counter(&runs))
	s.order("x", "Content-Encoding", "rot13").want(t, 201, "run 1", false)
	s.order("x", "Content-Encoding", "rot13").want(t, 201, "run 1", true)
	s.order("x", "Content-Encoding", "other").refused(t, idempotency.CodeKeyReused)
	s.order("x").refused(t, idempotency.CodeKeyReused)
}

// A handler that writes nothing has answered 200. An error writer outside must not send anything else,
// because the record says 200.
func TestAnswer_WritesNothing(t *testing.T) {
	t.Parallel()
	once := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(testutil.Locker(t)))
	h := once(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r)
		w.WriteHeader(http.StatusConflict)
	}))
	s.order("").want(t, 200, "", false)
	s.order("").want(t, 200, "", true)
}

// Shutdown is about the whole process: no other test may run at the same time.
func TestShutdown_WaitsAndCancels(t *testing.T) {
	entered, open := make(chan struct{}, 1), make(chan struct{})
	s := orders(t, testutil.Locker(t), func(_ http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		select {
		case <-open:
		case <-r.Context().Done():
		}
	})
	answers := make(chan answer, 1)
	go func() { answers <- s.order("") }()
	<-entered
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := idempotency.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(fmt.Sprint(err), "1 handlers") {
		t.Errorf("Shutdown while a handler runs: %v", err)
	}
	(<-answers).refused(t, idempotency.CodeOutcomeUnknown) // its context ended, and it wrote nothing

	go func() { answers <- s.order("", "Idempotency-Key", "k2") }()
	<-entered
	done := make(chan error, 1)
	go func() { done <- idempotency.Shutdown(context.Background()) }()
	select {
	case err := <-done:
		t.Errorf("Shutdown did not wait: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	close(open)
	if err := <-done; err != nil {
		t.Error(err)
	}
	(<-answers).want(t, 200, "", false)
}

type countedReads struct {
	io.Reader
	n int
}

func (r *countedReads) Read(p []byte) (int, error) {
	r.n++
	return r.Reader.Read(p)
}

func TestMaxRequestBody_AsLargeAsCanBe(t *testing.T) {
	t.Parallel()
	body := &countedReads{Reader: strings.NewReader(strings.Repeat("x", 64<<10))}
	r := httptest.NewRequest(http.MethodPost, "/orders/7", body)
	r.Header.Set("Idempotency-Key", "k")
	w := httptest.NewRecorder()
	once := idempotency.ByHeader("Idempotency-Key",
		idempotency.WithLocker(testutil.Locker(t)), idempotency.MaxRequestBody(math.MaxInt))
	once(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201) })).ServeHTTP(w, r)
	if w.Code != 201 || body.n > 100 {
		t.Errorf("%d after %d reads of 64 KiB", w.Code, body.n)
	}
}

// An empty body without a length looks like one that was read outside. The log says what to do.
func TestBody_EmptyWithoutALength(t *testing.T) {
	t.Parallel()
	var logged bytes.Buffer
	l := testutil.Locker(t, core.WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))
	r := httptest.NewRequest(http.MethodPost, "/orders/7", struct{ io.Reader }{strings.NewReader("")})
	r.Header.Set("Idempotency-Key", "k")
	w := httptest.NewRecorder()
	idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(l))(http.NotFoundHandler()).ServeHTTP(w, r)
	if w.Code != 500 || !strings.Contains(logged.String(), "Content-Length: 0") {
		t.Errorf("%d, logged %s", w.Code, logged.String())
	}
}

// Text before or after the parts of a multipart body belongs to the request.
func TestBody_MultipartTextOutside(t *testing.T) {
	t.Parallel()
	for _, form := range []string{
		"--B--\r\n%s",
		"%s\r\n--B--\r\n",
		"%s\r\n--B\r\nContent-Id: <1>\r\n\r\nx\r\n--B--\r\n",
		"--B\r\nContent-Id: <1>\r\n\r\nx\r\n--B--\r\n%s",
		"--Bx %s\r\n--B--\r\n",
		"--Bx %s\r\n--B\r\nContent-Id: <1>\r\n\r\nx\r\n--B--\r\n",
	} {
		var runs atomic.Int64
		s := orders(t, testutil.Locker(t), counter(&runs))
		submit := func(text string) answer {
			return s.order(fmt.Sprintf(form, text), "Content-Type", "multipart/mixed; boundary=B")
		}
		submit("1 EUR").want(t, 201, "run 1", false)
		submit("1 EUR").want(t, 201, "run 1", true)
		submit("1000 EUR").refused(t, idempotency.CodeKeyReused)
	}
}
