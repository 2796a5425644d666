package grpclock_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gin-gonic/gin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/testutil"
)

// twin is one service on both transports, with one Locker and one space.
type twin struct {
	*server
	url string
}

func newTwin(t testing.TB, l *core.Locker, runs *atomic.Int64, stand func(), grpcOpts ...grpclock.Option) *twin {
	t.Helper()
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.Use(func(c *gin.Context) {
		if user := c.GetHeader("User"); user != "" {
			c.Set(gin.AuthUserKey, user)
		}
	})
	r.POST("/orders", ginlock.ByHeader("Idempotency-Key", ginlock.WithLocker(l), ginlock.Space("orders")), func(c *gin.Context) {
		stand()
		c.JSON(http.StatusCreated, gin.H{"run": runs.Add(1)})
	})
	web := httptest.NewServer(r)
	t.Cleanup(func() {
		web.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	opts := append([]grpclock.Option{grpclock.WithLocker(l), grpclock.Space("orders"), grpclock.Principal(byUser)}, grpcOpts...)
	s := serve(t, &orders{handle: func(ctx context.Context, r *request) (*order, error) {
		stand()
		return counter(runs)(ctx, r)
	}}, grpc.UnaryInterceptor(grpclock.ByMetadata("idempotency-key", opts...)))
	return &twin{s, web.URL}
}

// post asks over HTTP: the status, and the code of a problem or the run.
func (s *twin) post(key, user, authorization string) (status int, code string) {
	req, err := http.NewRequest(http.MethodPost, s.url+"/orders", strings.NewReader("{}"))
	if err != nil {
		s.t.Error(err)
		return 0, ""
	}
	for name, v := range map[string]string{"Idempotency-Key": key, "User": user, "Authorization": authorization} {
		if v != "" {
			req.Header.Set(name, v)
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Error(err)
		return 0, ""
	}
	defer resp.Body.Close()
	var body struct{ Code string }
	_ = json.NewDecoder(resp.Body).Decode(&body)
	return resp.StatusCode, body.Code
}

// A retry that changes its transport is recognised, while the first runs and after it.
func TestSpace_RetryOverTheOtherTransport(t *testing.T) {
	t.Parallel()
	for _, who := range []struct {
		name, user string
		md         []string
	}{{"principal", "ann", []string{"user", "ann"}}, {"anonymous", "", nil}} {
		t.Run(who.name, func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			g := newGate(t)
			s := newTwin(t, testutil.Locker(t), &runs, g.stand)
			overGRPC := func(key string) answer { return s.create(key, &request{}, who.md...) }
			wantHTTP := func(key string, status int, code string) {
				t.Helper()
				if got, c := s.post(key, who.user, ""); got != status || c != code {
					t.Errorf("HTTP: %d %q, want %d %q", got, c, status, code)
				}
			}
			first := later(func() answer { return overGRPC("a") })
			g.wait(t)
			wantHTTP("a", 422, ginlock.CodeOtherTransport)
			second := make(chan int, 1)
			go func() { status, _ := s.post("b", who.user, ""); second <- status }()
			g.wait(t)
			overGRPC("b").wantRefusal(t, codes.FailedPrecondition, grpclock.ReasonOtherTransport)
			close(g.open)
			if a := <-first; a.err != nil {
				t.Error(a.err)
			}
			if status := <-second; status != 201 {
				t.Errorf("HTTP: %d", status)
			}
			wantHTTP("a", 422, ginlock.CodeOtherTransport)
			wantHTTP("b", 201, "")
			overGRPC("b").wantRefusal(t, codes.FailedPrecondition, grpclock.ReasonOtherTransport)
			if a := overGRPC("a"); a.err != nil || !a.replayed() {
				t.Errorf("%v", a.err)
			}
			if n := runs.Load(); n != 2 {
				t.Errorf("%d runs, want 2", n)
			}
		})
	}
}

// In a space as well nobody learns what somebody else's key is.
func TestSpace_Strangers(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := newTwin(t, testutil.Locker(t), &runs, func() {})
	if status, _ := s.post("k", "ann", ""); status != 201 {
		t.Fatal(status)
	}
	s.create("k", &request{}, "user", "bob").want(t, 2, false) // another principal, another key
	if status, _ := s.post("anonymous", "", "Bearer a"); status != 201 {
		t.Fatal(status)
	}
	s.create("anonymous", &request{}, "authorization", "Bearer a").wantRefusal(t, codes.FailedPrecondition, grpclock.ReasonOtherTransport)
	s.create("anonymous", &request{}, "authorization", "Bearer b").wantRefusal(t, codes.FailedPrecondition, grpclock.ReasonCredentialsChanged)
}

// In a space a key names one request, whatever the method.
func TestSpace_OtherMethod(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := newTwin(t, testutil.Locker(t), &runs, func() {})
	s.create("k", &request{}).want(t, 1, false)
	s.create("k", &request{}).want(t, 1, true)
	ask(t.Context(), s.Refund, &request{}, idempotencyKey, "k").wantRefusal(t, codes.FailedPrecondition, grpclock.ReasonKeyReused)
}

// Without a space the same text is another key on the other transport.
func TestWithoutSpace(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	s := newTwin(t, l, &runs, func() {})
	apart := serve(t, &orders{handle: counter(&runs)}, grpc.UnaryInterceptor(grpclock.ByMetadata(idempotencyKey, grpclock.WithLocker(l))))
	s.create("k", &request{}).want(t, 1, false)
	apart.create("k", &request{}).want(t, 2, false)
}
