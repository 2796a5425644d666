package ginlock_test

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// claimOf returns the Redis key of the one claim on a node, and what it holds.
func claimOf(t testing.TB, n *testutil.Node) (key, value string) {
	t.Helper()
	client, ctx := n.Client(), context.Background()
	keys, err := client.Keys(ctx, "*claim:*}").Result()
	if err != nil || len(keys) != 1 {
		t.Fatalf("keys %q, %v; want one", keys, err)
	}
	return keys[0], client.Get(ctx, keys[0]).Val()
}

func TestClaim_DuplicatesLeaveTheOwnerAlone(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	g, n := newGate(t), testutil.Redis(t)
	l := lockerOn(t, n)
	s := serve(t, func(r *gin.Engine) {
		r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), g.behind(counter(&runs)))
	})
	duplicates := func(status int) {
		t.Helper()
		key, before := claimOf(t, n)
		if a := s.order("k", "{}"); a.status != status {
			t.Errorf("a duplicate: %d", a.status)
		}
		s.order("k", `{"n":1}`).wantProblem(t, 422, idempotency.CodeKeyReused)
		s.order("k", "{}", "Authorization", "Bearer x").wantProblem(t, 422, idempotency.CodeCredentialsChanged)
		if _, after := claimOf(t, n); after != before || before == "" {
			t.Errorf("%s was %q, and is %q", key, before, after)
		}
	}
	first := later(func() answer { return s.order("k", "{}") })
	g.wait(t)
	if _, owner := claimOf(t, n); strings.HasPrefix(owner, "\x00") || !strings.Contains(owner, "#idem5.") {
		t.Errorf("a running claim holds %q", owner)
	}
	duplicates(409)
	close(g.open)
	(<-first).want(t, 201, "run 1", false)
	duplicates(201)
}

// A claim that was lost, and taken over, cannot complete; its own client still gets its answer.
func TestClaim_LostClaim(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	first, second, n := newGate(t), newGate(t), testutil.Redis(t)
	l, other := lockerOn(t, n, core.WithTTL(30*time.Second)), lockerOn(t, n)
	handle := func(g *gate) gin.HandlerFunc { return g.behind(counter(&runs)) }
	s := serve(t, func(r *gin.Engine) {
		r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), handle(first))
	})
	s2 := serve(t, func(r *gin.Engine) {
		r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(other)), handle(second))
	})
	answers := later(func() answer { return s.order("k", "{}") })
	first.wait(t)
	key, _ := claimOf(t, n)
	if err := n.Client().Del(context.Background(), key).Err(); err != nil { // as an eviction, or a fail-over to an empty replica
		t.Fatal(err)
	}
	answers2 := later(func() answer { return s2.order("k", "{}") })
	second.wait(t)
	close(first.open)
	(<-answers).want(t, 201, "run 1", false)
	s2.order("k", "{}").wantProblem(t, 409, idempotency.CodeInFlight)
	close(second.open)
	(<-answers2).want(t, 201, "run 2", false)
	s.order("k", "{}").want(t, 201, "run 2", true)
}

// The request's context ends when the claim is lost.
func TestClaim_LossCancelsTheRequest(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	l := lockerOn(t, n, core.WithTTL(2*time.Second))
	s := serve(t, func(r *gin.Engine) {
		r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), func(c *gin.Context) {
			n.Client().FlushAll(context.Background()) // of the one claim
			<-c.Request.Context().Done()
			c.String(200, "%v", context.Cause(c.Request.Context()))
		})
	})
	if a := s.order("k", ""); a.status != 200 || !strings.Contains(a.body, "lock is lost") {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestOutage_StoreDownBeforeTheHandler(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	n := testutil.Redis(t)
	l := lockerOn(t, n)
	s := serve(t, func(r *gin.Engine) {
		r.POST("/closed", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), counter(&runs))
		r.POST("/locked/:id", ginlock.LockByKey("order:{param.id}", idempotency.WithLocker(l)), counter(&runs))
		r.POST("/open", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l), idempotency.FailOpen()), counter(&runs))
		r.POST("/open/:id", ginlock.LockByKey("order:{param.id}", idempotency.WithLocker(l), idempotency.FailOpen()), counter(&runs))
	})
	n.Kill()
	for _, path := range []string{"/closed", "/locked/1"} {
		a := s.do("POST", path, "", idempotencyKey, "k")
		a.wantProblem(t, 503, idempotency.CodeLockUnavailable)
		if a.header.Get("Retry-After") == "" || !a.problem(t).Retryable {
			t.Errorf("%s: %v %s does not say when to retry", path, a.header, a.body)
		}
		if strings.Contains(a.body, "127.0.0.1") {
			t.Errorf("%s tells where Redis is: %s", path, a.body)
		}
	}
	if n := runs.Load(); n != 0 {
		t.Fatalf("%d runs", n)
	}
	s.do("POST", "/open", "", idempotencyKey, "k").want(t, 201, "run 1", false)
	s.do("POST", "/open/1", "").want(t, 201, "run 2", false)
	s.do("POST", "/closed", "").want(t, 201, "run 3", false) // without a key there is nothing to ask
}

// After the handler: the answer goes out, nothing else may run, and it is recorded once Redis answers again.
func TestOutage_StoreDownAfterTheHandler(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	n := testutil.Redis(t)
	l := lockerWithin(t, n, time.Second, core.WithTTL(time.Minute))
	s := serve(t, func(r *gin.Engine) {
		r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), func(c *gin.Context) {
			if runs.Add(1) == 1 {
				n.Stop()
			}
			c.String(201, "made")
		})
	})
	// A busy machine may give no answer in a second.
	made := func(a answer) bool { return a.status != 503 && a.status != 409 }
	until(t, func() answer { return s.order("k", "") }, made).want(t, 201, "made", false)
	s.order("k", "").wantProblem(t, 409, idempotency.CodeInFlight) // known locally: this process has the claim still
	n.Cont()
	until(t, func() answer { return s.order("k", "") }, made).want(t, 201, "made", true)
	if n := runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// A record that nobody can read is no licence to run again.
func TestCorruptRecord(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	n := testutil.Redis(t)
	l := lockerOn(t, n)
	s := serve(t, func(r *gin.Engine) {
		r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), counter(&runs))
	})
	s.order("k", "").want(t, 201, "run 1", false)
	key, value := claimOf(t, n)
	for _, forged := range []string{value[:len(value)-3], "\x00", "\x007:", "\x007:nonsense", "\x007:\x08\x63", value + "\xff"} {
		if err := n.Client().Set(context.Background(), key, forged, time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		s.order("k", "").wantProblem(t, 409, idempotency.CodeResponseNotKept)
	}
	if n := runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// A request may end during a call to Redis, since its client hangs up or an outer deadline passes.
// That says nothing about Redis. With FailOpen the request would run beside the one that has the
// key.
func TestOutage_FailOpenForNobody(t *testing.T) {
	t.Parallel()
	var log lines
	backend := &check.Hanging{Sealer: backendtest.Memory()}
	l, err := core.New(backend, core.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	var runs atomic.Int64
	over := make(chan struct{}, 1)
	var gone atomic.Pointer[context.CancelFunc]
	s := serve(t, func(r *gin.Engine) {
		r.Use(func(c *gin.Context) {
			defer func() { over <- struct{}{} }()
			if hangUp := gone.Swap(nil); hangUp != nil { // not before it has arrived
				time.AfterFunc(20*time.Millisecond, *hangUp)
			}
			if c.Query("deadline") != "" {
				ctx, cancel := context.WithTimeout(c.Request.Context(), 20*time.Millisecond)
				defer cancel()
				c.Request = c.Request.WithContext(ctx)
			}
			c.Next()
		})
		open := []idempotency.SharedOption{idempotency.WithLocker(l), idempotency.FailOpen()}
		r.POST("/once", ginlock.ByHeader(idempotencyKey, open[0], open[1]), counter(&runs))
		r.POST("/locked/:id", ginlock.LockByKey("order:{param.id}", open[0], open[1]), counter(&runs))
		r.POST("/closed", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), counter(&runs))
	})
	s.do("POST", "/once", "", idempotencyKey, "warm").want(t, 201, "run 1", false)
	<-over
	runs.Store(0)
	backend.Hangs.Store(true)
	for _, path := range []string{"/once", "/locked/1", "/closed", "/once?deadline=1", "/locked/1?deadline=1", "/closed?deadline=1"} {
		tries := 1
		if strings.HasSuffix(path, "?deadline=1") {
			tries = 10 // Redis may be given up a moment before the context's own timer
		}
		for range tries {
			ctx, hangUp := context.WithTimeout(context.Background(), check.Patience)
			if tries == 1 {
				gone.Store(&hangUp)
			}
			s.doCtx(ctx, "POST", path, "", idempotencyKey, "k") // without a body: net/http watches a client once its body is read
			hangUp()
			select {
			case <-over:
			case <-time.After(check.Patience):
				t.Fatal("the request is not over")
			}
		}
		if n := runs.Swap(0); n != 0 {
			t.Errorf("%s: %d ran unprotected for a client that is gone", path, n)
		}
	}
	if log.has("the request runs unprotected") {
		t.Error("Redis is blamed for a client that is gone")
	}
	backend.Hangs.Store(false)
	backend.Fails.Store(true)
	s.do("POST", "/once", "", idempotencyKey, "k").want(t, 201, "run 1", false)
	if <-over; !log.has("the request runs unprotected") {
		t.Error("a request that runs unprotected is not logged")
	}
}
