package ginlock_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

const idempotencyKey = "Idempotency-Key"

func TestMain(m *testing.M) {
	check.Parallel(8)
	gin.SetMode(gin.ReleaseMode)
	slog.SetDefault(slog.New(slog.DiscardHandler))
	check.Main(m)
}

// server is a Gin server on a socket.
type server struct {
	t      testing.TB
	url    string
	host   string       // of requests, or "" for the one in the URL
	client *http.Client // of its own: other tests close idle connections of the default one
}

func serve(t testing.TB, routes func(r *gin.Engine)) *server {
	t.Helper()
	r := gin.New()
	r.Use(gin.CustomRecoveryWithWriter(io.Discard, func(c *gin.Context, _ any) { c.AbortWithStatus(500) }))
	routes(r)
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	return &server{t: t, url: s.URL, host: "shop.example", client: s.Client()}
}

// post is the most used server: one route, POST /orders, under ByHeader on a private Redis.
func post(t testing.TB, handler gin.HandlerFunc, opts ...idempotency.HTTPOption) *server {
	t.Helper()
	opts = append([]idempotency.HTTPOption{idempotency.WithLocker(testutil.Locker(t))}, opts...)
	return serve(t, func(r *gin.Engine) { r.POST("/orders", ginlock.ByHeader(idempotencyKey, opts...), handler) })
}

// answer is what a client sees.
type answer struct {
	status int
	body   string
	header http.Header
}

func (a answer) replayed() bool { return a.header.Get("Idempotency-Replayed") == "true" }

func (a answer) problem(t testing.TB) idempotency.Refusal {
	t.Helper()
	if got := a.header.Get("Content-Type"); got != "application/problem+json" {
		t.Fatalf("content type %q of %d %s, want a problem", got, a.status, a.body)
	}
	var p idempotency.Refusal
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// do sends a request; header is names and values. It may be called from any goroutine.
func (s *server) do(method, path, body string, header ...string) answer {
	s.t.Helper()
	return s.doCtx(context.Background(), method, path, body, header...)
}

func (s *server) doCtx(ctx context.Context, method, path, body string, header ...string) answer {
	s.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Error(err)
		return answer{}
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	if req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", "application/json")
	}
	return s.send(req)
}

func (s *server) send(req *http.Request) answer { return s.sendBy(s.client, req) }

func (s *server) sendBy(client *http.Client, req *http.Request) answer {
	s.t.Helper()
	req.Host = s.host
	resp, err := client.Do(req)
	if err != nil {
		if req.Context().Err() == nil {
			s.t.Errorf("%s %s: %v", req.Method, req.URL, err)
		}
		return answer{}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Errorf("%s %s: %v", req.Method, req.URL, err)
	}
	return answer{resp.StatusCode, string(b), resp.Header}
}

// order posts an order with a key.
func (s *server) order(key, body string, header ...string) answer {
	s.t.Helper()
	return s.do("POST", "/orders", body, append(header, idempotencyKey, key)...)
}

func (a answer) want(t testing.TB, status int, body string, replayed bool) {
	t.Helper()
	if a.status != status || a.body != body || a.replayed() != replayed {
		t.Fatalf("got %d %q, replayed %v; want %d %q, replayed %v", a.status, a.body, a.replayed(), status, body, replayed)
	}
}

func (a answer) wantProblem(t testing.TB, status int, code string) {
	t.Helper()
	if p := a.problem(t); a.status != status || p.Status != status || p.Code != code {
		t.Fatalf("got %d %s, want %d %s", a.status, a.body, status, code)
	}
}

// counter answers 201 and the number of the run.
func counter(runs *atomic.Int64) gin.HandlerFunc {
	return func(c *gin.Context) { c.String(http.StatusCreated, "run %d", runs.Add(1)) }
}

// gate is a handler that stands still until it is opened, or the test is over.
type gate struct {
	entered, open chan struct{}
	over          <-chan struct{}
}

func newGate(t testing.TB) *gate {
	return &gate{make(chan struct{}, 64), make(chan struct{}), t.Context().Done()}
}

func (g *gate) handle(*gin.Context) {
	g.entered <- struct{}{}
	select {
	case <-g.open:
	case <-g.over:
	}
}

// wait returns when a request stands at the gate.
func (g *gate) wait(t testing.TB) {
	t.Helper()
	select {
	case <-g.entered:
	case <-time.After(check.Patience):
		t.Fatal("no request came to the gate")
	}
}

// behind runs next once the gate is open.
func (g *gate) behind(next gin.HandlerFunc) gin.HandlerFunc {
	return func(c *gin.Context) {
		g.handle(c)
		next(c)
	}
}

// later runs a request beside the test, which need not wait for its answer.
func later(ask func() answer) <-chan answer {
	answers := make(chan answer, 1)
	go func() { answers <- ask() }()
	return answers
}

// unknownAfter is the TTL of claims in tests that wait for an unknown outcome. It is longer than a busy
// machine stands still.
const unknownAfter = 2 * time.Second

// until asks again until ok.
func until(t testing.TB, ask func() answer, ok func(answer) bool) answer {
	t.Helper()
	for end := time.Now().Add(check.Patience); ; time.Sleep(5 * time.Millisecond) {
		if a := ask(); ok(a) {
			return a
		} else if time.Now().After(end) {
			t.Fatalf("still %d %s after %v", a.status, a.body, check.Patience)
		}
	}
}

// notRunning is for until: it reports whether no request with the key runs any more.
func notRunning(t testing.TB) func(answer) bool {
	return func(a answer) bool { return a.status != 409 || a.problem(t).Code != idempotency.CodeInFlight }
}

// lockerOn returns a Locker on a node; closed at the end of the test. It waits long for a busy machine.
func lockerOn(t testing.TB, n *testutil.Node, opts ...core.Option) *core.Locker {
	t.Helper()
	return lockerWithin(t, n, 10*time.Second, opts...)
}

// lockerWithin is lockerOn with a time-out for each call of the node.
func lockerWithin(t testing.TB, n *testutil.Node, timeout time.Duration, opts ...core.Option) *core.Locker {
	t.Helper()
	b := redisbackend.New(n.Client())
	b.NodeTimeout = timeout
	l, err := core.New(b, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}
