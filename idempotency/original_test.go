package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// A replay names the first request, if that had an id.
func TestReplay_OriginalRequest(t *testing.T) {
	t.Parallel()
	const original = "Idempotency-Original-Request"
	s := orders(t, testutil.Locker(t), created)
	if first := s.order("7", "X-Request-Id", "req-1"); first.header.Get(original) != "" {
		t.Errorf("the first answer has %q", first.header.Get(original))
	}
	if again := s.order("7", "X-Request-Id", "req-2"); !again.replayed() || again.header.Get(original) != "req-1" {
		t.Errorf("replayed %v, original %q", again.replayed(), again.header.Get(original))
	}
	s.order("7", "Idempotency-Key", "no id")
	if again := s.order("7", "Idempotency-Key", "no id"); !again.replayed() || len(again.header.Values(original)) > 0 {
		t.Errorf("replayed %v, original %q", again.replayed(), again.header.Values(original))
	}
}

// A 413 says how much is allowed, even if a handler outside set the limit.
func TestRefusal_NamesTheLimit(t *testing.T) {
	t.Parallel()
	once := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(testutil.Locker(t)), idempotency.MaxRequestBody(8))
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Outside") != "" {
			r.Body = http.MaxBytesReader(w, r.Body, 4)
		}
		once(http.HandlerFunc(created)).ServeHTTP(w, r)
	}))
	for header, want := range map[string]string{"": "At most 8 bytes are allowed.", "yes": "At most 4 bytes are allowed."} {
		body := strings.Repeat("x", 9)
		if header != "" {
			body = "123456"
		}
		a := s.order(body, "X-Outside", header)
		if a.refused(t, idempotency.CodeRequestTooLarge); !strings.Contains(a.body, want) {
			t.Errorf("got %s, want %q", a.body, want)
		}
	}
}

// proxyFailed is for an httputil.ReverseProxy. Without a connection nothing was sent.
func proxyFailed(w http.ResponseWriter, r *http.Request, err error) {
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
		err = fmt.Errorf("%w: %w", idempotency.ErrNothingDone, err)
	} else {
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err) // the other server may have run it
	}
	idempotency.Fail(w, r, err)
}

// A backend that refuses connections is no answer for a day. One that breaks the connection may have
// run the request.
func TestFail_ReverseProxy(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	backend := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if runs.Add(1) == 1 {
			w.WriteHeader(http.StatusCreated)
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_ = conn.Close()
		}
	}))
	target, err := url.Parse(backend.url)
	if err != nil {
		t.Fatal(err)
	}
	var down atomic.Bool
	dialer := &net.Dialer{}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if down.Load() {
			return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("connection refused")}
		}
		return dialer.DialContext(ctx, network, addr)
	}}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport, proxy.ErrorHandler = transport, proxyFailed
	s := orders(t, shortLocker(t), proxy.ServeHTTP)
	down.Store(true)
	s.order("7").refused(t, idempotency.CodeNothingDone)
	down.Store(false)
	if a := s.order("7"); a.status != http.StatusCreated || a.replayed() {
		t.Fatalf("got %d %s, replayed %v", a.status, a.body, a.replayed())
	}
	if a := s.order("7", "Idempotency-Key", "broken"); a.status != 504 || a.code() != idempotency.CodeOutcomeUnknown {
		t.Fatalf("got %d %s", a.status, a.body)
	}
	ended(t, func() answer { return s.order("7", "Idempotency-Key", "broken") }).refused(t, idempotency.CodeOutcomeUnknown)
	if runs.Load() != 2 {
		t.Errorf("%d runs", runs.Load())
	}
}

// The type of each refusal leads to the documentation of its code.
func TestRefusal_TypeIsDocumented(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("refusal.go")
	if err != nil {
		t.Fatal(err)
	}
	all := regexp.MustCompile(`(?m)^\t(Code\w+) += "(\w+)"`).FindAllStringSubmatch(string(source), -1)
	if len(all) < 15 {
		t.Fatalf("%d codes", len(all))
	}
	for _, code := range all {
		if p := idempotency.RefusalOf(code[2]); p.Type != "https://pkg.go.dev/github.com/onelane/onelane/idempotency#"+code[1] {
			t.Errorf("%s: %s", code[2], p.Type)
		}
	}
}
