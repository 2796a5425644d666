package idempotency_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
)

// A reverse proxy flushes every answer whose length it does not know: one of more than 2 KiB, or a
// compressed one.
func TestFlush_ReverseProxy(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{"short": "made", "long": strings.Repeat("x", 3000)} {
		up := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, body)
			_ = http.NewResponseController(w).Flush()
		}))
		target, err := url.Parse(up.url)
		must(t, err)
		proxy := &httputil.ReverseProxy{Transport: up.client.Transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
		gateway := orders(t, memory(t), proxy.ServeHTTP)
		gateway.order("", "Idempotency-Key", name).want(t, 200, body, false)
		gateway.order("", "Idempotency-Key", name).want(t, 200, body, true)
	}
}

// A body of length zero is a body, however it is framed.
func TestBody_Empty(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	once := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(memory(t)), idempotency.Principal(shop))
	limited := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
			h.ServeHTTP(w, r)
		})
	}
	for i, h := range []http.Handler{once(counter(&runs)), limited(once(counter(&runs)))} {
		for _, h2 := range []bool{false, true} {
			s := httptest.NewUnstartedServer(h)
			s.EnableHTTP2 = h2
			s.StartTLS()
			t.Cleanup(s.Close)
			key := fmt.Sprint("k", i, h2)
			for _, replayed := range []bool{false, true} {
				r, err := http.NewRequest("POST", s.URL+"/capture", struct{ io.Reader }{strings.NewReader("")})
				must(t, err)
				r.Header.Set("Idempotency-Key", key)
				resp, err := s.Client().Do(r)
				must(t, err)
				_ = resp.Body.Close()
				if got := resp.Header.Get("Idempotency-Replayed") == "true"; resp.StatusCode != 201 || got != replayed {
					t.Errorf("wrapped %d, %s: %s, replayed %v", i, resp.Proto, resp.Status, got)
				}
			}
		}
	}
}

// A handler writes past its Content-Length and does not look at the error, as with net/http.
func TestWrite_PastTheContentLength(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "4")
			_, _ = io.Copy(w, bytes.NewReader([]byte("made")))
			if _, err := w.Write([]byte("\n")); err != http.ErrContentLength {
				t.Errorf("Write: %v", err)
			}
		})
		s := httptest.NewUnstartedServer(idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(memory(t)))(h))
		s.EnableHTTP2 = h2
		s.StartTLS()
		t.Cleanup(s.Close)
		for _, replayed := range []bool{false, true} {
			r, err := http.NewRequestWithContext(context.Background(), "POST", s.URL, strings.NewReader("7"))
			must(t, err)
			r.Header.Set("Idempotency-Key", "k")
			resp, err := s.Client().Do(r)
			must(t, err)
			b, err := io.ReadAll(resp.Body)
			must(t, err)
			_ = resp.Body.Close()
			answer{resp.StatusCode, string(b), resp.Header}.want(t, 200, "made", replayed)
		}
	}
}

// A request with a short body of unknown length must not keep a large buffer while it runs.
func TestBody_MemoryInFlight(t *testing.T) {
	if check.Race {
		t.Skip("the race detector needs memory of its own")
	}
	const n = 500
	var entered, done sync.WaitGroup
	entered.Add(n)
	open := make(chan struct{})
	h := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(memory(t)))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		entered.Done()
		<-open
	}))
	before := inUse()
	for i := range n {
		done.Go(func() {
			r := httptest.NewRequest("POST", "/x", struct{ io.Reader }{strings.NewReader(strings.Repeat("x", 200))})
			r.ContentLength = -1
			r.Header.Set("Idempotency-Key", fmt.Sprint("k", i))
			h.ServeHTTP(httptest.NewRecorder(), r)
		})
	}
	entered.Wait()
	if each := (inUse() - before) / n; each > 20<<10 {
		t.Errorf("%d bytes for a request in flight, want at most 20 KiB", each)
	}
	close(open)
	done.Wait()
}

func inUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
