package idempotency_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

// server is a server of net/http on a socket.
type server struct {
	t      testing.TB
	url    string
	host   string       // of requests
	client *http.Client // of its own: other tests close idle connections of the default one
}

func serve(t testing.TB, h http.Handler) *server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if recover() != nil {
				w.WriteHeader(http.StatusInternalServerError)
			}
		}()
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return &server{t: t, url: s.URL, host: "shop.example", client: s.Client()}
}

// orders serves POST /orders/{id} under ByHeader.
func orders(t testing.TB, l *core.Locker, h http.HandlerFunc, opts ...idempotency.HTTPOption) *server {
	t.Helper()
	mux := http.NewServeMux()
	opts = append([]idempotency.HTTPOption{idempotency.WithLocker(l)}, opts...)
	mux.Handle("POST /orders/{id}", idempotency.ByHeader("Idempotency-Key", opts...)(h))
	return serve(t, mux)
}

// shortLocker returns a Locker whose unknown outcomes show soon, and whose leases last on a busy machine.
func shortLocker(t testing.TB) *core.Locker {
	return testutil.Locker(t, core.WithTTL(3*time.Second))
}

type answer struct {
	status int
	body   string
	header http.Header
}

func (a answer) replayed() bool { return a.header.Get("Idempotency-Replayed") == "true" }

func (a answer) code() string {
	var r idempotency.Refusal
	_ = json.Unmarshal([]byte(a.body), &r)
	return r.Code
}

func (a answer) want(t testing.TB, status int, body string, replayed bool) {
	t.Helper()
	if a.status != status || a.body != body || a.replayed() != replayed {
		t.Fatalf("got %d %q, replayed %v; want %d %q, replayed %v", a.status, a.body, a.replayed(), status, body, replayed)
	}
}

func (a answer) refused(t testing.TB, code string) {
	t.Helper()
	if want := idempotency.RefusalOf(code).Status; a.status != want || a.code() != code {
		t.Fatalf("got %d %s, want %d %s", a.status, a.body, want, code)
	}
}

// order posts an order with the key k. Header is names and values.
func (s *server) order(body string, header ...string) answer {
	s.t.Helper()
	return s.post(context.Background(), "/orders/7", strings.NewReader(body), append([]string{"Idempotency-Key", "k"}, header...)...)
}

func (s *server) post(ctx context.Context, path string, body io.Reader, header ...string) answer {
	s.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, body)
	if err != nil {
		s.t.Error(err)
		return answer{}
	}
	req.Host = s.host
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := s.client.Do(req)
	if err != nil {
		if ctx.Err() == nil {
			s.t.Error(err)
		}
		return answer{}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil && ctx.Err() == nil {
		s.t.Error(err)
	}
	return answer{resp.StatusCode, string(b), resp.Header}
}

// ended asks again until no first request is running.
func ended(t testing.TB, ask func() answer) answer {
	t.Helper()
	for end := time.Now().Add(check.Patience); ; time.Sleep(5 * time.Millisecond) {
		if a := ask(); a.code() != idempotency.CodeInFlight {
			return a
		} else if time.Now().After(end) {
			t.Fatal("a request is still running after", check.Patience)
		}
	}
}

// lockerOn returns a Locker on a node.
func lockerOn(t testing.TB, n *testutil.Node) *core.Locker {
	t.Helper()
	b := redisbackend.New(n.Client())
	b.NodeTimeout = 10 * time.Second // the machine may be busy
	l, err := core.New(b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// A handler limits the time of its body, as huma does with 5 s, and then works for longer. The body was
// read before, for the key. The deadline must not end the work.
func TestBody_ReadDeadlineOfTheHandler(t *testing.T) {
	t.Parallel()
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).SetReadDeadline(time.Now()); err != nil {
			t.Error(err)
		}
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		select {
		case <-r.Context().Done():
			t.Errorf("the context ended: %v", context.Cause(r.Context()))
		case <-time.After(500 * time.Millisecond):
		}
		_, _ = w.Write(b)
	})
	mux := http.NewServeMux()
	mux.Handle("POST /orders", idempotency.LockByKey("order:{json.order}", idempotency.WithLocker(testutil.Locker(t)))(handler))
	a := serve(t, mux).post(context.Background(), "/orders", strings.NewReader(`{"order":7}`), "Content-Type", "application/json")
	a.want(t, 200, `{"order":7}`, false)
}

// A Gin engine stands behind a middleware of net/http, and streams.
func TestRouter_GinStreamsBehindNetHTTP(t *testing.T) {
	t.Parallel()
	r := gin.New()
	r.POST("/orders/7", func(c *gin.Context) {
		n := 0
		c.Stream(func(w io.Writer) bool {
			n++
			_, _ = io.WriteString(w, "x")
			return n < 3
		})
	})
	lock := idempotency.LockBy(func(*http.Request) (string, error) { return "stream", nil }, idempotency.WithLocker(testutil.Locker(t)))
	serve(t, lock(r)).post(context.Background(), "/orders/7", strings.NewReader("")).want(t, 200, "xxx", false)
}
