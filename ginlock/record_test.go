package ginlock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

func TestFate_WhatIsRecorded(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	answerAs := func(c *gin.Context) {
		runs.Add(1)
		var status int
		_, _ = fmt.Sscan(c.Query("status"), &status)
		if c.Query("after") != "" {
			c.Header("Retry-After", c.Query("after"))
		}
		c.String(status, "%d", status)
	}
	l := testutil.Locker(t, core.WithTTL(unknownAfter))
	s := serve(t, func(r *gin.Engine) {
		r.POST("/default", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), answerAs)
		r.POST("/all", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l), idempotency.Decide(func(int, http.Header) idempotency.Fate { return idempotency.KeepAnswer })), answerAs)
		r.POST("/none", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l), idempotency.Decide(func(int, http.Header) idempotency.Fate { return idempotency.FreeKey })), answerAs)
	})
	// The map has the default fate of the key. KeepAnswer keeps all answers except 401 and 407, and
	// FreeKey keeps none.
	const kept, freed, unknown = "kept", "freed", "unknown"
	for status, want := range map[int]string{
		200: kept, 201: kept, 302: kept, 402: kept, 404: kept, 410: kept, 412: kept, 500: kept, 501: kept, 502: kept,
		400: freed, 401: freed, 403: freed, 407: freed, 409: freed, 422: freed, 423: freed, 425: freed, 429: freed,
		408: unknown, 499: unknown, 503: unknown, 504: unknown,
	} {
		for _, tc := range []struct{ route, want string }{{"/default", want}, {"/all", kept}, {"/none", freed}} {
			if status == 401 || status == 407 {
				tc.want = freed // a retry with the right credentials must get through
			}
			before := runs.Load()
			ask := func() answer {
				return s.do("POST", fmt.Sprintf("%s?status=%d", tc.route, status), "", idempotencyKey, fmt.Sprint("k", tc.route, status))
			}
			if a := ask(); a.status != status || a.replayed() {
				t.Errorf("%s: %v, want %d", tc.route, a, status)
			}
			again, ran := ask(), int64(1)
			switch tc.want {
			case kept, freed:
				if again.status != status || again.replayed() != (tc.want == kept) {
					t.Errorf("%s, %d again: %v, want it %s", tc.route, status, again, tc.want)
				}
				if tc.want == freed {
					ran = 2
				}
			default:
				until(t, ask, notRunning(t)).wantProblem(t, 409, idempotency.CodeOutcomeUnknown)
			}
			if got := runs.Load() - before; got != ran {
				t.Errorf("%s: %d ran %d times, want %d", tc.route, status, got, ran)
			}
		}
	}
	s.do("POST", "/default?status=503&after=1", "", idempotencyKey, "later").want(t, 503, "503", false)
	s.do("POST", "/default?status=503&after=1", "", idempotencyKey, "later").want(t, 503, "503", false)
}

// A panic leaves the outcome unknown, once the claim has ended.
func TestFate_Panic(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := post(t, func(c *gin.Context) {
		runs.Add(1)
		c.String(200, "half of the ans")
		panic("boom")
	}, idempotency.WithLocker(testutil.Locker(t, core.WithTTL(unknownAfter))))
	s.order("k", "").want(t, 500, "", false)
	a := until(t, func() answer { return s.order("k", "") }, notRunning(t))
	a.wantProblem(t, 409, idempotency.CodeOutcomeUnknown)
	if p := a.problem(t); p.Retryable || p.Correction == "" || a.header.Get("Retry-After") != "" {
		t.Errorf("%+v, %v: it must not be retryable, and say what to do", p, a.header)
	}
	s.order("k", "{}").wantProblem(t, 422, idempotency.CodeKeyReused)
	if n := runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// With RunAgain a retry runs after server errors, panics and time-outs.
func TestFate_RunAgain(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := post(t, func(c *gin.Context) {
		switch runs.Add(1) {
		case 1:
			panic("boom")
		case 2:
			c.String(500, "sorry")
		case 3:
			c.String(504, "too slow")
		case 4:
			c.String(499, "gone")
		case 5:
			_ = c.Error(errors.New("left to a writer outside"))
		default:
			c.String(201, "made")
		}
	}, idempotency.RunAgain())
	for _, status := range []int{500, 500, 504, 499, 200} {
		if a := s.order("k", ""); a.status != status || a.replayed() {
			t.Errorf("%v, want %d", a, status)
		}
	}
	s.order("k", "").want(t, 201, "made", false)
	s.order("k", "").want(t, 201, "made", true)
}

// A status that net/http panics at is no answer, whatever Decide says.
func TestFate_NoStatus(t *testing.T) {
	t.Parallel()
	for _, status := range []int{99, 1000} {
		var runs atomic.Int64
		s := post(t, func(c *gin.Context) {
			runs.Add(1)
			c.String(status, "made")
		}, idempotency.Decide(func(int, http.Header) idempotency.Fate { return idempotency.KeepAnswer }),
			idempotency.WithLocker(testutil.Locker(t, core.WithTTL(unknownAfter))))
		s.order("k", "")
		until(t, func() answer { return s.order("k", "") }, notRunning(t)).wantProblem(t, 409, idempotency.CodeOutcomeUnknown)
		if n := runs.Load(); n != 1 {
			t.Errorf("%d: %d runs", status, n)
		}
	}
}

// A refusal of a middleware of this kit inside is not the handler's answer.
func TestFate_OwnRefusalsAreNotRecorded(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	g, l := newGate(t), testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.Use(ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)))
		r.POST("/orders/:id", ginlock.LockByKey("order:{param.id}", idempotency.WithLocker(l)), g.behind(counter(&runs)))
	})
	first := later(func() answer { return s.do("POST", "/orders/1", "", idempotencyKey, "a") })
	g.wait(t)
	s.do("POST", "/orders/1", "", idempotencyKey, "b").wantProblem(t, 409, idempotency.CodeLockBusy)
	close(g.open)
	(<-first).want(t, 201, "run 1", false)
	s.do("POST", "/orders/1", "", idempotencyKey, "b").want(t, 201, "run 2", false)
}

func TestFate_UnmatchedRoutesPass(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.HandleMethodNotAllowed = true
		r.Use(ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l), idempotency.Require()))
		r.GET("/orders", func(c *gin.Context) {})
	})
	for range 2 {
		if a := s.do("POST", "/nowhere", ""); a.status != 404 || a.replayed() {
			t.Errorf("no route: %d", a.status)
		}
		if a := s.order("k", ""); a.status != 405 || a.replayed() {
			t.Errorf("no method: %d", a.status)
		}
	}
}

func TestHeaders_Recorded(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		calls := 0
		r.Use(func(c *gin.Context) { // an outer compression, and a request id
			c.Header("Content-Encoding", "identity")
			c.Header("Vary", "Origin")
			calls++
			c.Header("X-Request-Id", fmt.Sprint(calls))
			if c.GetHeader("X-No-Compression") != "" {
				c.Writer.Header().Del("Content-Encoding")
			}
		})
		r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l),
			idempotency.Headers("x-order", "X-Request-Id", "Set-Cookie", "Date", "Proxy-Authenticate", "WWW-Authenticate", "Connection")), func(c *gin.Context) {
			for _, name := range []string{"X-Order", "X-Private", "Www-Authenticate", "Proxy-Authenticate", "Authorization",
				"Content-Language", "Content-Disposition", "Location", "Etag", "Last-Modified", "Cache-Control"} {
				c.Header(name, "of "+name)
			}
			c.Writer.Header().Del("Vary")
			c.Writer.Header().Add("Link", "one")
			c.Writer.Header().Add("Link", "two")
			c.SetCookie("session", "secret", 60, "/", "", true, true)
			c.Header("Date", "Thu, 01 Jan 1970 00:00:00 GMT")
			c.String(201, "made")
			c.Header("Etag", "too late")
		})
	})
	first := s.order("k", "")
	first.want(t, 201, "made", false)
	if first.header.Get("Set-Cookie") == "" || first.header.Get("X-Private") == "" || first.header.Get("Etag") != "of Etag" {
		t.Fatalf("the first answer misses headers: %v", first.header)
	}
	second := s.order("k", "", "X-No-Compression", "1")
	second.want(t, 201, "made", true)
	for _, name := range []string{"Content-Type", "X-Order", "Content-Language", "Content-Disposition", "Location", "Etag", "Last-Modified", "Cache-Control", "Link"} {
		if got, want := fmt.Sprint(second.header[name]), fmt.Sprint(first.header[name]); got != want {
			t.Errorf("%s: %s, at first %s", name, got, want)
		}
	}
	for _, name := range []string{"Set-Cookie", "X-Private", "Authorization", "Www-Authenticate", "Proxy-Authenticate", "Content-Encoding", "Vary"} {
		if got := second.header[name]; got != nil {
			t.Errorf("%s: %v was replayed", name, got)
		}
	}
	if got := second.header["X-Request-Id"]; len(got) != 1 || got[0] != "2" {
		t.Errorf("X-Request-Id of the replay: %v", got)
	}
	if got := second.header.Get("Date"); strings.Contains(got, "1970") {
		t.Errorf("Date %s was replayed", got)
	}
}

func TestTombstone_TooLarge(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := post(t, func(c *gin.Context) {
		runs.Add(1)
		_, _ = c.Writer.WriteString(strings.Repeat("a", 60))
		_, _ = c.Writer.Write([]byte(strings.Repeat("b", 60)))
	}, idempotency.MaxBody(100))
	s.order("k", "").want(t, 200, strings.Repeat("a", 60)+strings.Repeat("b", 60), false)
	s.order("k", "").wantProblem(t, 409, idempotency.CodeResponseNotKept)
	s.order("k", "{}").wantProblem(t, 422, idempotency.CodeKeyReused)
	if n := runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// The first byte of a stream goes out after its tombstone is sealed, and the handler goes on.
func TestTombstone_Flush(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	g := newGate(t)
	s := post(t, func(c *gin.Context) {
		runs.Add(1)
		c.Header("Content-Type", "text/event-stream")
		c.String(200, "first,")
		c.Writer.Flush()
		g.handle(c)
		if err := c.Request.Context().Err(); err != nil {
			t.Errorf("the tombstone ended the handler's context: %v", err)
		}
		c.String(200, "second")
	})
	first := later(func() answer { return s.order("k", "") })
	g.wait(t)
	s.order("k", "").wantProblem(t, 409, idempotency.CodeResponseNotKept)
	close(g.open)
	(<-first).want(t, 200, "first,second", false)
	s.order("k", "").wantProblem(t, 409, idempotency.CodeResponseNotKept)
	if n := runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// A stream of an answer that frees the key leaves no tombstone.
func TestTombstone_FlushOfARefusal(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := post(t, func(c *gin.Context) {
		c.Header("Content-Type", "text/event-stream")
		c.String(409, "run %d", runs.Add(1))
		c.Writer.Flush()
	})
	s.order("k", "").want(t, 409, "run 1", false)
	s.order("k", "").want(t, 409, "run 2", false)
}

// The answer is held back until it is sealed: whoever has it gets a replay.
func TestTombstone_SealThenSend(t *testing.T) {
	t.Parallel()
	for name, handle := range map[string]gin.HandlerFunc{
		"answer":  func(c *gin.Context) { c.String(201, "made") },
		"no body": func(c *gin.Context) { c.Status(204) },
		"flush":   func(c *gin.Context) { c.String(201, "made"); c.Writer.Flush() },
		"stream": func(c *gin.Context) {
			c.Header("Content-Type", "text/event-stream")
			c.String(201, "made")
			c.Writer.Flush()
		},
		"too much": func(c *gin.Context) { c.String(201, "%s", strings.Repeat("x", 2<<20)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spy := &sealSpy{Sealer: backendtest.Memory()}
			l, err := core.New(spy)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			s := serve(t, func(r *gin.Engine) {
				r.Use(func(c *gin.Context) { spy.written = c.Writer.Written })
				r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), handle)
			})
			s.order("k", "")
			if spy.seals.Load() != 1 || spy.late.Load() {
				t.Errorf("%d seals; the answer began before its seal: %v", spy.seals.Load(), spy.late.Load())
			}
		})
	}
}

// sealSpy looks, at each Seal, whether the answer has begun to go out.
type sealSpy struct {
	core.Sealer
	written func() bool
	seals   atomic.Int64
	late    atomic.Bool
}

// Open implements core.Opener.
func (b *sealSpy) Open(core.Environment) (core.Backend, error) { return b, nil }

func (b *sealSpy) Seal(ctx context.Context, g core.Grant, value []byte, retention time.Duration) error {
	b.seals.Add(1)
	if b.written() {
		b.late.Store(true)
	}
	return b.Sealer.Seal(ctx, g, value, retention)
}

// The answer of an error writer outside is not seen: a tombstone, and a warning that says where it belongs.
func TestErrors_LeftToAnOuterWriter(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	var log lines
	l := testutil.Locker(t, core.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	s := serve(t, func(r *gin.Engine) {
		r.Use(func(c *gin.Context) {
			c.Next()
			if len(c.Errors) > 0 && c.Writer.Size() <= 0 {
				c.String(418, "%s", c.Errors.Last().Error())
			}
		}, ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)))
		r.POST("/orders", func(c *gin.Context) {
			runs.Add(1)
			_ = c.Error(errors.New("no stock"))
		})
	})
	s.order("k", "").want(t, 418, "no stock", false)
	s.order("k", "").wantProblem(t, 409, idempotency.CodeResponseNotKept)
	s.order("k2", "").want(t, 418, "no stock", false)
	if n := runs.Load(); n != 2 {
		t.Errorf("%d runs", n)
	}
	if n := log.count("put the error writer inside", "route=/orders"); n != 1 {
		t.Errorf("%d warnings, want 1 for the route", n)
	}
}

// A handler that leaves an error and sets a status has answered: a logging c.Error must not change that.
func TestErrors_ErrorAndStatus(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := post(t, func(c *gin.Context) {
		runs.Add(1)
		_ = c.Error(errors.New("a mail was not sent"))
		c.Status(204)
	})
	s.order("k", "").want(t, 204, "", false)
	s.order("k", "").want(t, 204, "", true)
	if n := runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// A response that fails while it is rendered leaves its error and no answer: a retry learns that it
// was not kept (rule 16).
func TestErrors_RenderError(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := post(t, func(c *gin.Context) {
		runs.Add(1)
		c.JSON(201, math.NaN())
	})
	s.order("k", "").want(t, 201, "", false)
	s.order("k", "").wantProblem(t, 409, idempotency.CodeResponseNotKept)
	if n := runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// An error beside a body is an answer.
func TestErrors_ErrorWithABody(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := post(t, func(c *gin.Context) {
		_ = c.Error(errors.New("no stock"))
		c.String(410, "run %d", runs.Add(1))
	})
	s.order("k", "").want(t, 410, "run 1", false)
	s.order("k", "").want(t, 410, "run 1", true)
}

// The record is the answer that was sent, even if a middleware outside answers because nobody wrote.
func TestAnswer_NoBodyIsWritten(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.Use(func(c *gin.Context) {
			c.Next()
			if !c.Writer.Written() {
				c.String(500, "nobody answered")
			}
		}, ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)))
		r.POST("/orders", func(c *gin.Context) { c.Status(204) })
	})
	s.order("k", "").want(t, 204, "", false)
	s.order("k", "").want(t, 204, "", true)
}

// The client hangs up in the middle: the handler's context lives, there is one effect, and the retry gets
// its answer.
func TestClient_ClientHangsUp(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	g, gone := newGate(t), make(chan struct{})
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.Use(func(c *gin.Context) {
			ctx := c.Request.Context()
			defer context.AfterFunc(ctx, func() { close(gone) })()
			c.Next()
		})
		r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), func(c *gin.Context) {
			g.handle(c)
			<-gone
			c.String(http.StatusCreated, "run %d, %v", runs.Add(1), c.Request.Context().Err())
		})
	})
	ctx, hangUp := context.WithCancel(context.Background())
	first := later(func() answer { return s.doCtx(ctx, "POST", "/orders", "", idempotencyKey, "k") })
	g.wait(t)
	hangUp()
	<-first
	close(g.open)
	a := until(t, func() answer { return s.order("k", "") }, notRunning(t))
	a.want(t, 201, "run 1, <nil>", true)
}

// An informational status is no answer: an error after it is left to the writer outside.
func TestErrors_AfterEarlyHints(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.Use(func(c *gin.Context) {
			c.Next()
			if len(c.Errors) > 0 && c.Writer.Size() <= 0 {
				c.String(418, "%s", c.Errors.Last().Error())
			}
		}, ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)))
		r.POST("/orders", func(c *gin.Context) {
			runs.Add(1)
			c.Status(http.StatusEarlyHints)
			c.Writer.WriteHeaderNow()
			_ = c.Error(errors.New("no stock"))
		})
	})
	s.order("k", "").want(t, 418, "no stock", false)
	s.order("k", "").wantProblem(t, 409, idempotency.CodeResponseNotKept)
	if n := runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// Nor is it one if the handler then gives up.
func TestAnswer_ProcessingThenSilent(t *testing.T) {
	t.Parallel()
	s := post(t, func(c *gin.Context) {
		c.Status(http.StatusProcessing)
		c.Writer.WriteHeaderNow()
		<-c.Request.Context().Done()
	}, idempotency.MaxRun(50*time.Millisecond))
	s.order("k", "").wantProblem(t, 409, idempotency.CodeOutcomeUnknown)
}

// http.TimeoutHandler cannot flush, though Gin's writer on it has a Flush. The answer is recorded.
func TestFlush_NotSupported(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	r := gin.New()
	r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(testutil.Locker(t))), func(c *gin.Context) {
		c.String(201, "run %d", runs.Add(1))
		c.Writer.Flush()
		_, _ = c.Writer.WriteString(", to its end")
	})
	ts := httptest.NewServer(http.TimeoutHandler(r, time.Minute, "too late"))
	defer ts.Close()
	s := &server{t: t, url: ts.URL, client: ts.Client()}
	s.order("k", "").want(t, 201, "run 1, to its end", false)
	s.order("k", "").want(t, 201, "run 1, to its end", true)
}
