package ginlock_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

func TestFirstRequest_Runs(t *testing.T) {
	t.Parallel()
	s := post(t, func(c *gin.Context) {
		if token, err := idempotency.Token(c.Request.Context()); err != nil || token == 0 {
			t.Errorf("token %d, %v", token, err)
		}
		c.String(201, "made")
	})
	a := s.order("k", "")
	a.want(t, 201, "made", false)
	if _, marked := a.header["Idempotency-Replayed"]; marked {
		t.Error("the first answer is marked as a replay")
	}
}

func TestRetry_ReplayAfterCompletion(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		handle gin.HandlerFunc
		status int
	}{
		{"created", func(c *gin.Context) {
			c.Header("Location", "/orders/7")
			c.JSON(201, gin.H{"id": 7})
		}, 201},
		{"error", func(c *gin.Context) { c.JSON(404, gin.H{"error": "no such sku"}) }, 404},
		{"server error", func(c *gin.Context) { c.JSON(500, gin.H{"error": "sorry"}) }, 500},
		{"redirect", func(c *gin.Context) { c.Redirect(303, "/orders/7") }, 303},
		{"bytes that are no text", func(c *gin.Context) { c.Data(200, "application/x-thing", []byte{0, 255, 254, 1}) }, 200},
		{"large", func(c *gin.Context) { c.String(200, "%s", strings.Repeat("x", 1<<20)) }, 200},
		{"empty", func(*gin.Context) {}, 200},
		{"abort", func(c *gin.Context) { c.AbortWithStatus(410) }, 410},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			s := post(t, func(c *gin.Context) { runs.Add(1); tc.handle(c) })
			client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
			defer client.CloseIdleConnections()
			first, second := s.orderBy(client, "k"), s.orderBy(client, "k")
			if first.status != tc.status || first.replayed() {
				t.Fatalf("the first answer is %d, replayed %v", first.status, first.replayed())
			}
			second.want(t, first.status, first.body, true)
			for _, name := range []string{"Content-Type", "Location"} {
				if got, want := second.header.Get(name), first.header.Get(name); got != want {
					t.Errorf("%s: %q, at first %q", name, got, want)
				}
			}
			if n := runs.Load(); n != 1 {
				t.Errorf("%d runs", n)
			}
		})
	}
}

// orderBy posts an order by a separate client.
func (s *server) orderBy(client *http.Client, key string) answer {
	req, err := http.NewRequest("POST", s.url+"/orders", strings.NewReader("{}"))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set(idempotencyKey, key)
	return s.sendBy(client, req)
}

func TestRetry_RetryWhileTheFirstRuns(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	g := newGate(t)
	n := testutil.Redis(t)
	l := lockerOn(t, n, core.WithInstance("secret-host:1"))
	s := serve(t, func(r *gin.Engine) {
		r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), g.behind(counter(&runs)))
	})
	first := later(func() answer { return s.order("k", "{}") })
	g.wait(t)
	a := s.order("k", "{}")
	a.wantProblem(t, 409, idempotency.CodeInFlight)
	if a.header.Get("Retry-After") == "" || !a.problem(t).Retryable {
		t.Errorf("%v %s does not say when to retry", a.header, a.body)
	}
	if strings.Contains(a.body+fmt.Sprint(a.header), "secret-host") {
		t.Errorf("the holder left the server: %s", a.body)
	}
	close(g.open)
	(<-first).want(t, 201, "run 1", false)
	s.order("k", "{}").want(t, 201, "run 1", true)
}

func TestRetry_WaitForTheAnswer(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	g, n := newGate(t), testutil.Redis(t)
	here, there := lockerOn(t, n), lockerOn(t, n) // as in two processes
	route := func(path string, l *core.Locker, wait time.Duration) *server {
		return serve(t, func(r *gin.Engine) {
			r.POST(path, ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l), idempotency.Wait(wait)), g.behind(counter(&runs)))
		})
	}
	s, other := route("/orders", here, time.Minute), route("/orders", there, time.Minute)
	hasty := route("/orders", here, 20*time.Millisecond)
	answers := make(chan answer, 8)
	go func() { answers <- s.order("k", "{}") }()
	g.wait(t)
	for range 3 {
		go func() { answers <- s.order("k", "{}") }()
		go func() { answers <- other.order("k", "{}") }()
	}
	began := time.Now()
	// A busy machine may give no answer in 20 ms.
	until(t, func() answer { return hasty.order("k", "{}") }, func(a answer) bool { return a.status != 503 }).
		wantProblem(t, 409, idempotency.CodeInFlight)
	if waited := time.Since(began); waited < 20*time.Millisecond {
		t.Errorf("Wait(20ms) waited %v", waited)
	}
	// Another payload does not wait.
	s.order("k", `{"other":1}`).wantProblem(t, 422, idempotency.CodeKeyReused)
	close(g.open)
	replays := 0
	for range 7 {
		a := <-answers
		a.want(t, 201, "run 1", a.replayed())
		if a.replayed() {
			replays++
		}
	}
	if replays != 6 {
		t.Errorf("%d replays, want 6", replays)
	}
}

// A waiter gets the answer as soon as the first request has it, in this process and in another. The
// waiter is woken, and stands back for up to 3 ms. A polling waiter pauses for 32 ms or more.
func TestRetry_WaitIsWoken(t *testing.T) {
	t.Parallel()
	const soon = 4 * time.Millisecond
	for i := range 20 {
		synctest.Test(t, func(t *testing.T) {
			open := make(chan struct{})
			serve := func(l *core.Locker) http.Handler {
				r := gin.New()
				r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l), idempotency.Wait(time.Minute)),
					func(c *gin.Context) { <-open; c.String(201, "done") })
				return r
			}
			order := func(h http.Handler) (answers <-chan answer) {
				answered := make(chan answer, 1)
				go func() {
					w, r := httptest.NewRecorder(), httptest.NewRequest("POST", "http://shop.example/orders", nil)
					r.Header.Set(idempotencyKey, "k")
					h.ServeHTTP(w, r)
					answered <- answer{w.Code, w.Body.String(), w.Header()}
				}()
				synctest.Wait()
				return answered
			}
			b := backendtest.Memory()
			here, there := check.Locker(t, b, core.WithTTL(time.Minute)), check.Locker(t, b)
			first := order(serve(here))
			waiters := map[string]<-chan answer{"this process": order(serve(here)), "another process": order(serve(there))}
			time.Sleep(500*time.Millisecond + time.Duration(i)*7*time.Millisecond)
			close(open)
			(<-first).want(t, 201, "done", false)
			time.Sleep(soon)
			synctest.Wait()
			for where, answers := range waiters {
				select {
				case a := <-answers:
					a.want(t, 201, "done", true)
				default:
					t.Errorf("a waiter in %s has no answer %v after the first", where, soon)
					<-answers
				}
			}
		})
	}
}

// A waiter for a claim that is then freed runs itself, and the others get its answer.
func TestRetry_WaitForAFreedClaim(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	g := newGate(t)
	s := post(t, func(c *gin.Context) {
		if runs.Add(1) == 1 {
			g.handle(c)
			c.String(409, "sorry")
			return
		}
		c.String(201, "made")
	}, idempotency.Wait(time.Minute))
	answers := make(chan answer, 8)
	go func() { answers <- s.order("k", "{}") }()
	g.wait(t)
	for range 4 {
		go func() { answers <- s.order("k", "{}") }()
	}
	close(g.open)
	seen := map[string]int{}
	for range 5 {
		a := <-answers
		seen[fmt.Sprintf("%d %s %v", a.status, a.body, a.replayed())]++
	}
	if seen["409 sorry false"] != 1 || seen["201 made false"] != 1 || seen["201 made true"] != 3 || runs.Load() != 2 {
		t.Errorf("%v after %d runs", seen, runs.Load())
	}
}

func TestRetry_OtherPayload(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	g := newGate(t)
	s := post(t, g.behind(counter(&runs)))
	first := later(func() answer { return s.order("k", `{"n":1}`) })
	g.wait(t)
	s.order("k", `{"n":2}`).wantProblem(t, 422, idempotency.CodeKeyReused) // the mismatch wins over in flight
	s.order("k", `{"n":1}`).wantProblem(t, 409, idempotency.CodeInFlight)
	close(g.open)
	(<-first).want(t, 201, "run 1", false)
	a := s.order("k", `{"n":2}`)
	a.wantProblem(t, 422, idempotency.CodeKeyReused)
	if p := a.problem(t); p.Retryable || p.Correction == "" {
		t.Errorf("%+v does not say what to change", p)
	}
	s.order("k", `{"n":1}`).want(t, 201, "run 1", true)
}

func TestRetry_ProblemWriter(t *testing.T) {
	t.Parallel()
	s := post(t, func(*gin.Context) {}, idempotency.Require(), idempotency.WithProblemWriter(func(w http.ResponseWriter, _ *http.Request, p idempotency.Refusal) {
		w.WriteHeader(p.Status)
		_, _ = fmt.Fprintf(w, "error=%s", p.Code)
	}))
	if a := s.do("POST", "/orders", ""); a.status != 400 || a.body != "error=idempotency_key_missing" {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestRetry_Problem(t *testing.T) {
	t.Parallel()
	s := post(t, func(*gin.Context) {}, idempotency.Require())
	p := s.do("POST", "/orders", "").problem(t)
	if p.Type != "https://pkg.go.dev/github.com/onelane/onelane/idempotency#CodeKeyMissing" || p.Title == "" || p.Status != 400 ||
		!strings.Contains(p.Correction, idempotencyKey) {
		t.Errorf("%+v", p)
	}
}

func TestRetry_ConcurrentRequests(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	for _, wait := range []time.Duration{0, time.Minute} {
		t.Run(fmt.Sprintf("wait %v", wait), func(t *testing.T) {
			var runs atomic.Int64
			var servers []*server
			for range 3 {
				l := lockerOn(t, n)
				servers = append(servers, serve(t, func(r *gin.Engine) {
					r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l), idempotency.Wait(wait)), counter(&runs))
				}))
			}
			for round := range 20 {
				before := runs.Load()
				key := fmt.Sprintf("%v-%d", wait, round)
				var all sync.WaitGroup
				var firsts atomic.Int64
				for i := range 24 {
					all.Go(func() {
						switch a := servers[i%3].order(key, "{}"); {
						case a.status == 201 && !a.replayed():
							firsts.Add(1)
						case a.status == 201 && a.body == fmt.Sprintf("run %d", before+1):
						case a.status == 409 && wait == 0:
						default:
							t.Errorf("%d %s", a.status, a.body)
						}
					})
				}
				all.Wait()
				if got := runs.Load() - before; got != 1 || firsts.Load() != 1 {
					t.Fatalf("%d runs, %d first answers", got, firsts.Load())
				}
			}
		})
	}
}

// A fresh request costs 2 round trips, a replay 1.
func TestRoundTrips(t *testing.T) {
	n := testutil.Redis(t)
	l := lockerOn(t, n)
	var runs atomic.Int64
	s := serve(t, func(r *gin.Engine) {
		r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), counter(&runs))
	})
	s.order("warm up", "") // loads the scripts
	for _, tc := range []struct {
		name string
		want int64
	}{{"fresh", 2}, {"replay", 1}} {
		least := int64(math.MaxInt64)
		for try := 0; try < 5 && least != tc.want; try++ { // a busy client may also make a connection
			key := "warm up"
			if tc.name == "fresh" {
				key = fmt.Sprint("k", try)
			}
			least = min(least, roundTrips(t, n, func() { s.order(key, "") }))
		}
		if least != tc.want {
			t.Errorf("%s: %d round trips, want %d", tc.name, least, tc.want)
		}
	}
}

// roundTrips counts how often the node read from a client while fn ran.
func roundTrips(t *testing.T, n *testutil.Node, fn func()) int64 {
	t.Helper()
	client := n.Client()
	reads := func() (reads int64) {
		sections, err := client.InfoMap(context.Background(), "stats").Result()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(sections["Stats"]["total_reads_processed"], &reads); err != nil {
			t.Fatal(err)
		}
		return reads
	}
	reads() // connects
	before := reads()
	fn()
	return reads() - before - 1 // without the last INFO
}

// A handler whose context ended has answered if it set a status, or left an error to a writer outside.
func TestErrors_AfterTheContextEnded(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		handle gin.HandlerFunc
		first  int
		code   string // of the retry, if it is refused
	}{
		"nothing": {func(*gin.Context) {}, 409, idempotency.CodeOutcomeUnknown},
		"value":   {func(c *gin.Context) { c.Set("user", "ann") }, 409, idempotency.CodeOutcomeUnknown},
		"status":  {func(c *gin.Context) { c.Status(202) }, 202, ""},
		"error":   {func(c *gin.Context) { _ = c.Error(c.Request.Context().Err()) }, 500, idempotency.CodeResponseNotKept},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ttl := time.Minute
			if tc.code == idempotency.CodeOutcomeUnknown {
				ttl = unknownAfter // the retry waits for it
			}
			l := testutil.Locker(t, core.WithTTL(ttl))
			s := serve(t, func(r *gin.Engine) {
				r.Use(func(c *gin.Context) {
					c.Next()
					if len(c.Errors) > 0 {
						c.String(500, "sorry")
					}
				})
				once := ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l), idempotency.MaxRun(100*time.Millisecond))
				r.POST("/orders", once, func(c *gin.Context) {
					<-c.Request.Context().Done()
					tc.handle(c)
				})
			})
			if a := s.order("k", ""); a.status != tc.first || tc.first == 500 && a.body != "sorry" {
				t.Errorf("%d %s", a.status, a.body)
			}
			retry := until(t, func() answer { return s.order("k", "") }, notRunning(t))
			if tc.code == "" {
				retry.want(t, tc.first, "", true)
				return
			}
			retry.wantProblem(t, 409, tc.code)
		})
	}
}
