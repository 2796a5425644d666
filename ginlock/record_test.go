package ginlock_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/testutil"
)

func TestRule13_WhatIsRecorded(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	answerAs := func(c *gin.Context) {
		runs.Add(1)
		var status int
		_, _ = fmt.Sscan(c.Query("status"), &status)
		c.String(status, "%d", status)
	}
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.POST("/default", ginlock.ByHeader(idempotencyKey, ginlock.WithLocker(l)), answerAs)
		r.POST("/all", ginlock.ByHeader(idempotencyKey, ginlock.WithLocker(l), ginlock.RecordIf(func(int) bool { return true })), answerAs)
		r.POST("/none", ginlock.ByHeader(idempotencyKey, ginlock.WithLocker(l), ginlock.RecordIf(func(int) bool { return false })), answerAs)
	})
	for status, recorded := range map[int][3]bool{
		200: {true, true, false}, 201: {true, true, false}, 302: {true, true, false}, 400: {true, true, false}, 403: {true, true, false},
		404: {true, true, false}, 409: {true, true, false}, 422: {true, true, false}, 499: {true, true, false},
		401: {}, 407: {}, // a retry with the right credentials must get through
		408: {false, true, false}, 425: {false, true, false}, 429: {false, true, false},
		500: {false, true, false}, 502: {false, true, false}, 503: {false, true, false}, 504: {false, true, false},
	} {
		for i, route := range []string{"/default", "/all", "/none"} {
			before := runs.Load()
			for try := range 2 {
				a := s.do("POST", fmt.Sprintf("%s?status=%d", route, status), "", idempotencyKey, fmt.Sprint("k", status))
				if a.status != status || a.replayed() != (recorded[i] && try == 1) {
					t.Errorf("%s, try %d of %d: %d, replayed %v", route, try, status, a.status, a.replayed())
				}
			}
			if want := int64(2); recorded[i] && runs.Load()-before != 1 || !recorded[i] && runs.Load()-before != want {
				t.Errorf("%s: %d ran %d times", route, status, runs.Load()-before)
			}
		}
	}
}

func TestRule13_PanicAbandons(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := post(t, func(c *gin.Context) {
		c.String(200, "half of the ans")
		if runs.Add(1) == 1 {
			panic("boom")
		}
	})
	s.order("k", "").want(t, 500, "", false)
	s.order("k", "").want(t, 200, "half of the ans", false)
	s.order("k", "").want(t, 200, "half of the ans", true)
}

// A status that net/http panics at is no answer, whatever RecordIf says.
func TestRule13_NoStatus(t *testing.T) {
	t.Parallel()
	for _, status := range []int{99, 1000} {
		var runs atomic.Int64
		s := post(t, func(c *gin.Context) {
			if runs.Add(1) == 1 {
				c.String(status, "made")
			} else {
				c.String(201, "made")
			}
		}, ginlock.RecordIf(func(int) bool { return true }))
		s.order("k", "")
		s.order("k", "").want(t, 201, "made", false)
	}
}

// A refusal of a middleware of this kit inside is not the handler's answer.
func TestRule13_OwnRefusalsAreNotRecorded(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	g, l := newGate(t), testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.Use(ginlock.ByHeader(idempotencyKey, ginlock.WithLocker(l)))
		r.POST("/orders/:id", ginlock.ByParam("id", ginlock.LockOnly(), ginlock.WithLocker(l)), g.behind(counter(&runs)))
	})
	first := later(func() answer { return s.do("POST", "/orders/1", "", idempotencyKey, "a") })
	g.wait(t)
	s.do("POST", "/orders/1", "", idempotencyKey, "b").wantProblem(t, 409, ginlock.CodeLockBusy)
	close(g.open)
	(<-first).want(t, 201, "run 1", false)
	s.do("POST", "/orders/1", "", idempotencyKey, "b").want(t, 201, "run 2", false)
}

func TestRule13_UnmatchedRoutesPass(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.HandleMethodNotAllowed = true
		r.Use(ginlock.ByHeader(idempotencyKey, ginlock.WithLocker(l), ginlock.Require()))
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

func TestRule14_Headers(t *testing.T) {
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
		r.POST("/orders", ginlock.ByHeader(idempotencyKey, ginlock.WithLocker(l),
			ginlock.Headers("x-order", "X-Request-Id", "Set-Cookie", "Date", "Proxy-Authenticate", "WWW-Authenticate", "Connection")), func(c *gin.Context) {
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

func TestRule15_TooLarge(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := post(t, func(c *gin.Context) {
		runs.Add(1)
		_, _ = c.Writer.WriteString(strings.Repeat("a", 60))
		_, _ = c.Writer.Write([]byte(strings.Repeat("b", 60)))
	}, ginlock.MaxBody(100))
	s.order("k", "").want(t, 200, strings.Repeat("a", 60)+strings.Repeat("b", 60), false)
	s.order("k", "").wantProblem(t, 409, ginlock.CodeResponseNotKept)
	s.order("k", "{}").wantProblem(t, 422, ginlock.CodeKeyReused)
	if n := runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// The first byte of a stream goes out after its tombstone is sealed, and the handler goes on.
func TestRule15_Flush(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	g := newGate(t)
	s := post(t, func(c *gin.Context) {
		runs.Add(1)
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
	s.order("k", "").wantProblem(t, 409, ginlock.CodeResponseNotKept)
	close(g.open)
	(<-first).want(t, 200, "first,second", false)
	s.order("k", "").wantProblem(t, 409, ginlock.CodeResponseNotKept)
	if n := runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// A stream of an answer that is not recorded leaves no tombstone.
func TestRule15_FlushOfAnError(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := post(t, func(c *gin.Context) {
		c.String(500, "run %d", runs.Add(1))
		c.Writer.Flush()
	})
	s.order("k", "").want(t, 500, "run 1", false)
	s.order("k", "").want(t, 500, "run 2", false)
}

// The answer is held back until it is sealed: whoever has it gets a replay.
func TestRule15_SealThenSend(t *testing.T) {
	t.Parallel()
	for name, handle := range map[string]gin.HandlerFunc{
		"answer":   func(c *gin.Context) { c.String(201, "made") },
		"no body":  func(c *gin.Context) { c.Status(204) },
		"flush":    func(c *gin.Context) { c.String(201, "made"); c.Writer.Flush() },
		"too much": func(c *gin.Context) { c.String(201, "%s", strings.Repeat("x", 2<<20)) },
		"hijack": func(c *gin.Context) {
			conn, rw, err := c.Writer.Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = rw.WriteString("HTTP/1.1 299 Mine\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			_ = rw.Flush()
			_ = conn.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spy := &sealSpy{Backend: testutil.Memory()}
			l, err := core.New(spy)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			s := serve(t, func(r *gin.Engine) {
				r.Use(func(c *gin.Context) { spy.written = c.Writer.Written })
				r.POST("/orders", ginlock.ByHeader(idempotencyKey, ginlock.WithLocker(l)), handle)
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
	core.Backend
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
	return b.Backend.Seal(ctx, g, value, retention)
}

// A retry that follows the answer at once is a replay.
func TestRule15_RetryAtOnce(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := post(t, counter(&runs))
	for i := range 300 {
		key, body := fmt.Sprint("k", i), fmt.Sprintf("run %d", i+1)
		s.order(key, "").want(t, 201, body, false)
		s.order(key, "").want(t, 201, body, true)
	}
}

func TestRule16_ErrorLeftToAnOuterWriter(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*gin.Context){
		"Error":            func(c *gin.Context) { _ = c.Error(errors.New("no stock")) },
		"Error and Status": func(c *gin.Context) { c.Status(400); _ = c.Error(errors.New("no stock")) },
		"AbortWithError":   func(c *gin.Context) { _ = c.AbortWithError(400, errors.New("no stock")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			l := testutil.Locker(t)
			s := serve(t, func(r *gin.Engine) {
				r.Use(func(c *gin.Context) {
					c.Next()
					if len(c.Errors) > 0 && c.Writer.Size() <= 0 {
						c.String(400, "%s", c.Errors.Last().Error())
					}
				}, ginlock.ByHeader(idempotencyKey, ginlock.WithLocker(l)))
				r.POST("/orders", func(c *gin.Context) {
					if runs.Add(1) == 1 {
						fail(c)
						return
					}
					c.String(201, "made")
				})
			})
			s.order("k", "").want(t, 400, "no stock", false)
			s.order("k", "").want(t, 201, "made", false)
			s.order("k", "").want(t, 201, "made", true)
		})
	}
}

// An error beside a body is an answer.
func TestRule16_ErrorWithABody(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := post(t, func(c *gin.Context) {
		_ = c.Error(errors.New("no stock"))
		c.String(409, "run %d", runs.Add(1))
	})
	s.order("k", "").want(t, 409, "run 1", false)
	s.order("k", "").want(t, 409, "run 1", true)
}

func TestRule17_NoBody(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := post(t, func(c *gin.Context) { runs.Add(1); c.Status(204) })
	s.order("k", "").want(t, 204, "", false)
	s.order("k", "").want(t, 204, "", true)
	if n := runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// What is recorded is what is sent: somebody outside who answers where nobody has written finds this written.
func TestRule17_NoBodyIsAnAnswer(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.Use(func(c *gin.Context) {
			c.Next()
			if !c.Writer.Written() {
				c.String(500, "nobody answered")
			}
		}, ginlock.ByHeader(idempotencyKey, ginlock.WithLocker(l)))
		r.POST("/orders", func(c *gin.Context) { c.Status(204) })
	})
	s.order("k", "").want(t, 204, "", false)
	s.order("k", "").want(t, 204, "", true)
}

func TestRule18_ClientHangsUp(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	entered := make(chan struct{}, 1)
	s := post(t, func(c *gin.Context) {
		n := runs.Add(1)
		entered <- struct{}{}
		<-c.Request.Context().Done() // the client is gone
		c.String(http.StatusCreated, "run %d", n)
	})
	ctx, hangUp := context.WithCancel(context.Background())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		s.doCtx(ctx, "POST", "/orders", "", idempotencyKey, "k")
	}()
	<-entered
	hangUp()
	<-gone
	a := until(t, func() answer { return s.order("k", "") }, func(a answer) bool { return a.status != 409 })
	a.want(t, 201, "run 1", true)
}
