// Package routertest tests the rules of docs/idempotency against a router of HTTP requests.
package routertest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
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

// Router returns a handler that routes POST /orders/{id}, or whatever it calls that, through
// idempotency.ByHeader("Idempotency-Key", opts...) to h.
type Router func(h http.HandlerFunc, opts ...idempotency.HTTPOption) http.Handler

// Run runs all cases against a router.
func Run(t *testing.T, router Router) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(&suite{T: t, router: router})
		})
	}
}

// suite is one case on its way.
type suite struct {
	*testing.T
	router Router
	runs   atomic.Int64
	url    string
	ttl    time.Duration // of the claims, or 0 for a long one
}

// serve starts a server for h.
func (s *suite) serve(h http.HandlerFunc, opts ...idempotency.HTTPOption) {
	l := testutil.Locker(s, core.WithTTL(cmp.Or(s.ttl, time.Minute)))
	counted := func(w http.ResponseWriter, r *http.Request) {
		s.runs.Add(1)
		h(w, r)
	}
	inner := s.router(counted, append([]idempotency.HTTPOption{idempotency.WithLocker(l)}, opts...)...)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if recover() != nil {
				w.WriteHeader(http.StatusInternalServerError)
			}
		}()
		inner.ServeHTTP(w, r)
	}))
	s.url = server.URL
	s.Cleanup(server.Close)
}

// answer is what a client sees.
type answer struct {
	status int
	body   string
	header http.Header
}

// send posts an order. Header is names and values. The answer is empty if ctx ends.
func (s *suite) send(ctx context.Context, body string, header ...string) answer {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/orders/7", strings.NewReader(body))
	if err != nil {
		s.Error(err)
		return answer{}
	}
	req.Header.Set("Idempotency-Key", "k")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		if ctx.Err() == nil {
			s.Error(err)
		}
		return answer{}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil && ctx.Err() == nil {
		s.Error(err)
	}
	return answer{resp.StatusCode, string(b), resp.Header}
}

func (s *suite) post(body string, header ...string) answer {
	return s.send(context.Background(), body, header...)
}

func (s *suite) want(what string, a answer, status int, body string, replayed bool) {
	s.Helper()
	if got := a.header.Get("Idempotency-Replayed") == "true"; a.status != status || a.body != body || got != replayed {
		s.Fatalf("%s: %d %.200q, replayed %v; want %d %.200q, replayed %v", what, a.status, a.body, got, status, body, replayed)
	}
}

func (a answer) code() string {
	var r idempotency.Refusal
	_ = json.Unmarshal([]byte(a.body), &r)
	return r.Code
}

func (s *suite) refused(what string, a answer, code string) {
	s.Helper()
	if want := idempotency.RefusalOf(code).Status; a.status != want || a.code() != code {
		s.Fatalf("%s: %d %.300s; want %d %s", what, a.status, a.body, want, code)
	}
}

// ended repeats the request until no first one is running.
func (s *suite) ended() answer {
	s.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if a := s.post("{}"); a.code() != idempotency.CodeInFlight {
			return a
		} else if time.Now().After(end) {
			s.Fatal("a request is still running after 20 s")
		}
	}
}

func (s *suite) ran(want int64) {
	s.Helper()
	if n := s.runs.Load(); n != want {
		s.Errorf("%d runs, want %d", n, want)
	}
}

// gate holds handlers until it is opened.
type gate struct{ entered, open chan struct{} }

func newGate() *gate { return &gate{make(chan struct{}, 64), make(chan struct{})} }

// wait waits for a handler at the gate.
func (g *gate) wait(s *suite) {
	select {
	case <-g.entered:
	case <-time.After(time.Minute):
		s.Fatal("the handler did not run within a minute")
	}
}

func (g *gate) pass() {
	g.entered <- struct{}{}
	<-g.open
}

func made(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Location", "/orders/7")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, "made")
}

var cases = []struct {
	name string
	run  func(*suite)
}{
	{"replay", func(s *suite) {
		s.serve(made)
		for i := range 3 {
			a := s.post("{}")
			s.want("an order", a, 201, "made", i > 0)
			if got := a.header.Get("Location"); got != "/orders/7" {
				s.Errorf("Location %q", got)
			}
		}
		s.ran(1)
	}},
	{"in flight and reused", func(s *suite) {
		g := newGate()
		s.serve(func(w http.ResponseWriter, r *http.Request) { g.pass(); made(w, r) })
		first := make(chan answer, 1)
		go func() { first <- s.post("{}") }()
		g.wait(s)
		busy := s.post("{}")
		other := s.post(`{"n":1}`)
		close(g.open)
		s.refused("a retry", busy, idempotency.CodeInFlight)
		if busy.header.Get("Retry-After") == "" {
			s.Error("no Retry-After")
		}
		s.refused("another payload", other, idempotency.CodeKeyReused)
		s.want("the first", <-first, 201, "made", false)
		s.refused("another payload", s.post(`{"n":1}`), idempotency.CodeKeyReused)
		s.ran(1)
	}},
	{"credentials", func(s *suite) {
		s.serve(made)
		s.want("the first", s.post("{}", "Authorization", "Bearer a"), 201, "made", false)
		s.refused("others", s.post("{}", "Authorization", "Bearer b"), idempotency.CodeCredentialsChanged)
		s.refused("none", s.post("{}"), idempotency.CodeCredentialsChanged)
		s.want("the same", s.post("{}", "Authorization", "Bearer a"), 201, "made", true)
		s.ran(1)
	}},
	{"principal", func(s *suite) {
		s.serve(made, idempotency.Principal(func(r *http.Request) string { return r.Header.Get("X-User") }))
		s.want("Ann", s.post("{}", "X-User", "ann"), 201, "made", false)
		s.want("Ben", s.post("{}", "X-User", "ben"), 201, "made", false)
		s.want("Ann again", s.post("{}", "X-User", "ann", "Authorization", "new"), 201, "made", true)
		s.ran(2)
	}},
	{"too large an answer", func(s *suite) {
		text := strings.Repeat("x", 100)
		s.serve(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }, idempotency.MaxBody(99))
		s.want("the first", s.post("{}"), 200, text, false)
		s.refused("a retry", s.post("{}"), idempotency.CodeResponseNotKept)
		s.ran(1)
	}},
	{"flush", func(s *suite) {
		g := newGate()
		s.serve(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "a")
			if err := http.NewResponseController(w).Flush(); err != nil {
				s.Error(err)
			}
			g.pass()
			_, _ = io.WriteString(w, "b")
		})
		first := make(chan answer, 1)
		go func() { first <- s.post("{}") }()
		g.wait(s)
		during := s.post("{}")
		close(g.open)
		s.refused("during the stream", during, idempotency.CodeResponseNotKept)
		s.want("the first", <-first, 200, "ab", false)
		s.refused("a retry", s.post("{}"), idempotency.CodeResponseNotKept)
		s.ran(1)
	}},
	{"hijack", func(s *suite) {
		s.serve(func(w http.ResponseWriter, _ *http.Request) {
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				s.Error(err)
				return
			}
			defer conn.Close()
			_, _ = rw.WriteString("HTTP/1.1 299 Mine\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
			_ = rw.Flush()
		})
		s.want("the first", s.post("{}"), 299, "hi", false)
		s.refused("a retry", s.post("{}"), idempotency.CodeResponseNotKept)
		s.ran(1)
	}},
	{"204", func(s *suite) {
		s.serve(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
		s.want("the first", s.post("{}"), 204, "", false)
		s.want("a retry", s.post("{}"), 204, "", true)
		s.ran(1)
	}},
	{"server errors", func(s *suite) {
		s.serve(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "sorry", http.StatusInternalServerError) })
		s.want("the first", s.post("{}"), 500, "sorry\n", false)
		s.want("a retry", s.post("{}"), 500, "sorry\n", true)
		s.ran(1)
	}},
	{"panic", func(s *suite) {
		s.ttl = 5 * time.Second // the outcome is unknown when it has passed
		s.serve(func(http.ResponseWriter, *http.Request) { panic("boom") })
		s.want("the first", s.post("{}"), 500, "", false)
		s.refused("a retry", s.ended(), idempotency.CodeOutcomeUnknown)
		s.ran(1)
	}},
	{"time-out", func(s *suite) {
		s.ttl = 5 * time.Second // the outcome is unknown when it has passed
		s.serve(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGatewayTimeout) })
		s.want("the first", s.post("{}"), 504, "", false)
		s.refused("a retry", s.ended(), idempotency.CodeOutcomeUnknown)
		s.ran(1)
	}},
	{"nothing done", func(s *suite) {
		statuses := []int{400, 401, 403, 407, 409, 422, 423, 425, 429, 503}
		s.serve(func(w http.ResponseWriter, r *http.Request) {
			if n := int(s.runs.Load()); n <= len(statuses) {
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(statuses[n-1])
				return
			}
			made(w, r)
		})
		for _, status := range statuses { // a key may be free a moment after the answer
			s.want("refused", s.ended(), status, "", false)
		}
		s.want("done", s.ended(), 201, "made", false)
		s.want("a retry", s.post("{}"), 201, "made", true)
	}},
	{"run again", func(s *suite) {
		s.serve(func(w http.ResponseWriter, r *http.Request) {
			switch s.runs.Load() {
			case 1:
				panic("boom")
			case 2:
				w.WriteHeader(http.StatusBadGateway)
			default:
				made(w, r)
			}
		}, idempotency.RunAgain())
		s.want("a panic", s.post("{}"), 500, "", false)
		s.want("a failure", s.ended(), 502, "", false) // a key may be free a moment after the answer
		s.want("done", s.ended(), 201, "made", false)
		s.want("a retry", s.post("{}"), 201, "made", true)
	}},
	{"client hangs up", func(s *suite) {
		g, ended := newGate(), make(chan error, 1)
		s.serve(func(w http.ResponseWriter, r *http.Request) {
			g.pass()
			ended <- r.Context().Err()
			made(w, r)
		})
		ctx, hangUp := context.WithCancel(context.Background())
		gone := make(chan struct{})
		go func() { defer close(gone); s.send(ctx, "{}") }()
		g.wait(s)
		hangUp()
		<-gone
		close(g.open)
		if err := <-ended; err != nil {
			s.Errorf("the handler's context ended: %v", err)
		}
		s.want("a retry", s.ended(), 201, "made", true)
		s.ran(1)
	}},
	{"12 at once", func(s *suite) {
		s.serve(made)
		var all sync.WaitGroup
		for range 12 {
			all.Go(func() {
				if a := s.post("{}"); a.code() != idempotency.CodeInFlight && (a.status != 201 || a.body != "made") {
					s.Errorf("%d %s", a.status, a.body)
				}
			})
		}
		all.Wait()
		s.ran(1)
	}},
	{"wait", func(s *suite) {
		g := newGate()
		s.serve(func(w http.ResponseWriter, r *http.Request) { g.pass(); made(w, r) }, idempotency.Wait(time.Minute))
		answers := make(chan answer, 4)
		for range cap(answers) {
			go func() { answers <- s.post("{}") }()
		}
		g.wait(s)
		close(g.open)
		replays := 0
		for range cap(answers) {
			a := <-answers
			replayed := a.header.Get("Idempotency-Replayed") == "true"
			s.want("an order", a, 201, "made", replayed)
			if replayed {
				replays++
			}
		}
		if replays != cap(answers)-1 {
			s.Errorf("%d replays", replays)
		}
		s.ran(1)
	}},
	{"request body", func(s *suite) {
		s.serve(func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s %v %d", b, err, r.ContentLength)
		}, idempotency.MaxRequestBody(8))
		s.refused("too large", s.post("123456789"), idempotency.CodeRequestTooLarge)
		s.want("as large as allowed", s.post("12345678"), 200, "12345678 <nil> 8", false)
		s.ran(1)
	}},
	{"no key", func(s *suite) {
		s.serve(made, idempotency.Require())
		req, err := http.NewRequest(http.MethodPost, s.url+"/orders/7", bytes.NewReader(nil))
		if err != nil {
			s.Fatal(err)
		}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			s.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != 400 || resp.Header.Get("Content-Type") != "application/problem+json" {
			s.Errorf("%d %v", resp.StatusCode, resp.Header)
		}
		s.refused("a list", s.post("{}", "Idempotency-Key", "a, b"), idempotency.CodeKeyInvalid)
		s.ran(0)
	}},
}
