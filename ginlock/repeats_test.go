package ginlock_test

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// form is a server that refuses repeats at POST /forms/:id.
func form(t testing.TB, window time.Duration, handler gin.HandlerFunc, opts ...idempotency.HTTPOption) *server {
	t.Helper()
	opts = append([]idempotency.HTTPOption{idempotency.WithLocker(testutil.Locker(t))}, opts...)
	return serve(t, func(r *gin.Engine) {
		r.POST("/forms/:id", ginlock.RefuseRepeats(window, opts...), handler)
		r.PUT("/forms/:id", ginlock.RefuseRepeats(window, opts...), handler)
		r.GET("/forms/:id", ginlock.RefuseRepeats(window, opts...), handler)
	})
}

// A double click: the second is refused, while the first runs and after it; what differs in
// anything is another form.
func TestRefuseRepeats(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	g := newGate(t)
	s := form(t, time.Minute, func(c *gin.Context) {
		if c.GetHeader("X-Stand") != "" {
			g.handle(c)
		}
		body, _ := c.GetRawData()
		c.String(201, "%s %d", body, runs.Add(1))
	})
	submit := func(header ...string) answer { return s.do("POST", "/forms/1", "a=1", header...) }
	first := later(func() answer { return submit("X-Stand", "1") })
	g.wait(t)
	submit().wantProblem(t, 409, idempotency.CodeDuplicateSubmit)
	close(g.open)
	(<-first).want(t, 201, "a=1 1", false)
	submit().wantProblem(t, 409, idempotency.CodeDuplicateSubmit)
	s.do("POST", "/forms/1", "a=2").want(t, 201, "a=2 2", false)
	s.do("POST", "/forms/2", "a=1").want(t, 201, "a=1 3", false)
	s.do("POST", "/forms/1?x=1", "a=1").want(t, 201, "a=1 4", false)
	s.do("PUT", "/forms/1", "a=1").want(t, 201, "a=1 5", false)
	submit("Cookie", "session=ann").want(t, 201, "a=1 6", false)
	submit("Cookie", "session=ann").wantProblem(t, 409, idempotency.CodeDuplicateSubmit)
	submit("X-Forwarded-For", "203.0.113.9").want(t, 201, "a=1 7", false) // gin believes every proxy by default
	for range 2 {
		if a := s.do("GET", "/forms/1", ""); a.status != 201 {
			t.Errorf("GET: %d %s", a.status, a.body)
		}
	}
}

// Multipart forms choose a new boundary each time; they are the same all the same.
func TestRefuseRepeats_Multipart(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := form(t, time.Minute, counter(&runs))
	submit := func(b string) answer {
		return s.do("POST", "/forms/1", "--"+b+"\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--"+b+"--\r\n", "Content-Type", "multipart/form-data; boundary="+b)
	}
	submit("one").want(t, 201, "run 1", false)
	submit("two").wantProblem(t, 409, idempotency.CodeDuplicateSubmit)
}

// A form that did nothing may be sent again at once.
func TestRefuseRepeats_AfterNothingDone(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]gin.HandlerFunc{
		"422": func(c *gin.Context) { c.String(422, "no") },
		"401": func(c *gin.Context) { c.String(401, "who?") },
		"503": func(c *gin.Context) { c.Header("Retry-After", "1"); c.String(503, "later") },
		"panic, nothing done": func(c *gin.Context) {
			idempotency.NothingDone(c.Request.Context())
			panic("boom")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			s := form(t, time.Minute, func(c *gin.Context) {
				if runs.Add(1) < 3 {
					fail(c)
				} else {
					c.Status(204)
				}
			})
			for range 2 {
				if a := s.do("POST", "/forms/1", "a"); strings.Contains(a.body, "duplicate") {
					t.Fatalf("%d %s", a.status, a.body)
				}
			}
			s.do("POST", "/forms/1", "a").want(t, 204, "", false)
			s.do("POST", "/forms/1", "a").wantProblem(t, 409, idempotency.CodeDuplicateSubmit)
		})
	}
}

// A form with an unknown outcome is refused: after a server error, and after a panic even when its
// claim has ended.
func TestRefuseRepeats_AfterAFailure(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]gin.HandlerFunc{
		"500":   func(c *gin.Context) { c.String(500, "sorry") },
		"504":   func(c *gin.Context) { c.String(504, "too slow") },
		"panic": func(*gin.Context) { panic("boom") },
		"error": func(c *gin.Context) { _ = c.Error(errors.New("left to a writer outside")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			l := lockerOn(t, testutil.Redis(t), core.WithTTL(unknownAfter))
			s := form(t, time.Minute, func(c *gin.Context) { runs.Add(1); fail(c) }, idempotency.WithLocker(l))
			s.do("POST", "/forms/1", "a")
			s.do("POST", "/forms/1", "a").wantProblem(t, 409, idempotency.CodeDuplicateSubmit)
			for end := time.Now().Add(2 * unknownAfter); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				s.do("POST", "/forms/1", "a").wantProblem(t, 409, idempotency.CodeDuplicateSubmit)
			}
			if n := runs.Load(); n != 1 {
				t.Errorf("%d runs", n)
			}
		})
	}
}

// The window ends, and it has the length of the option.
func TestRefuseRepeats_Window(t *testing.T) {
	t.Parallel()
	took := time.Hour
	for try := 0; try < 3 && took > 5*time.Second; try++ { // the machine may be busy
		var runs atomic.Int64
		s := form(t, 300*time.Millisecond, counter(&runs))
		submit := func() answer { return s.do("POST", "/forms/1", "a") }
		began := time.Now()
		submit().want(t, 201, "run 1", false)
		until(t, submit, func(a answer) bool { return a.status != 409 }).want(t, 201, "run 2", false)
		took = time.Since(began)
	}
	if took < 200*time.Millisecond || took > 5*time.Second {
		t.Errorf("the window of 300ms took %v", took)
	}
}

// Principals, a custom fingerprint, and which statuses count.
func TestRefuseRepeats_Options(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := form(t, time.Minute, counter(&runs),
		ginlock.Principal(func(c *gin.Context) string { return c.GetHeader("X-Who") }),
		idempotency.Fingerprint(func(*http.Request, []byte) []byte { return []byte("all the same") }),
		idempotency.Decide(func(status int, _ http.Header) idempotency.Fate {
			if status == 201 {
				return idempotency.KeepAnswer
			}
			return idempotency.FreeKey
		}))
	submit := func(body, who, cookie string) answer {
		return s.do("POST", "/forms/1", body, "X-Who", who, "Cookie", cookie)
	}
	submit("a", "ann", "x=1").want(t, 201, "run 1", false)
	submit("b", "ann", "x=2").wantProblem(t, 409, idempotency.CodeDuplicateSubmit)
	submit("a", "bob", "x=1").want(t, 201, "run 2", false)
}

// Behind ByHeader a retry is a replay, and the same form under a new key a repeat, which is not
// recorded under it.
func TestRefuseRepeats_UnderByHeader(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	var s *server
	for window := 200 * time.Millisecond; ; window *= 4 {
		runs.Store(0)
		l := testutil.Locker(t)
		s = serve(t, func(r *gin.Engine) {
			r.Use(ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), ginlock.RefuseRepeats(window, idempotency.WithLocker(l)))
			r.POST("/orders", counter(&runs))
		})
		began := time.Now()
		s.order("k1", "a").want(t, 201, "run 1", false)
		s.order("k1", "a").want(t, 201, "run 1", true)
		a := s.order("k2", "a")
		if a.status == 201 && time.Since(began) > window && window < 10*time.Second {
			continue // this machine was too slow
		}
		a.wantProblem(t, 409, idempotency.CodeDuplicateSubmit)
		break
	}
	until(t, func() answer { return s.order("k2", "a") }, func(a answer) bool { return a.status != 409 }).want(t, 201, "run 2", false)
}

// One RefuseRepeats for all forms. A handler cuts off the gateway's prefix and passes the request
// on to the engine, as the comment of HandleContext proposes. The middleware then runs twice, and
// there is but one.
func TestRefuseRepeats_HandleContext(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := idempotency.WithLocker(testutil.Locker(t))
	s := serve(t, func(r *gin.Engine) {
		r.Use(ginlock.RefuseRepeats(time.Minute, l))
		r.POST("/api/*path", func(c *gin.Context) {
			c.Request.URL.Path = c.Param("path")
			r.HandleContext(c)
		})
		r.POST("/forms/:id", counter(&runs))
	})
	s.do("POST", "/api/forms/1", "a=1").want(t, 201, "run 1", false)
	s.do("POST", "/api/forms/1", "a=1").wantProblem(t, 409, idempotency.CodeDuplicateSubmit)
}

// A short window against double clicks stands before the login, and a long one behind it. Who is
// logged in has two keys. A guest has one, so only guests are refused. A developer who is logged in
// does not see that.
func TestRefuseRepeats_Guests(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := idempotency.WithLocker(testutil.Locker(t))
	login := func(c *gin.Context) {
		if name := c.GetHeader("X-User"); name != "" {
			c.Set(gin.AuthUserKey, name)
		}
	}
	s := serve(t, func(r *gin.Engine) {
		r.Use(ginlock.RefuseRepeats(20*time.Millisecond, l), login)
		r.POST("/pay", ginlock.RefuseRepeats(10*time.Minute, l), counter(&runs))
	})
	s.do("POST", "/pay", "amount=5", "X-User", "ann").want(t, 201, "run 1", false)
	s.do("POST", "/pay", "amount=7").want(t, 201, "run 2", false)
}

// All forms of a group have a short window against double clicks, and that of a payment has a long
// one. Each holds.
func TestRefuseRepeats_UsedTwice(t *testing.T) {
	t.Parallel()
	var paid atomic.Int64
	l := idempotency.WithLocker(testutil.Locker(t))
	s := serve(t, func(r *gin.Engine) {
		r.Use(ginlock.RefuseRepeats(20*time.Millisecond, l))
		r.POST("/pay", ginlock.RefuseRepeats(10*time.Minute, l), counter(&paid))
	})
	s.do("POST", "/pay", "amount=5").want(t, 201, "run 1", false)
	time.Sleep(500 * time.Millisecond) // the window of the group is over
	s.do("POST", "/pay", "amount=5").wantProblem(t, 409, idempotency.CodeDuplicateSubmit)
}
