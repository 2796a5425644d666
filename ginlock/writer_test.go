package ginlock_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// writings are handlers that use the response writer in all its ways, and say what they saw of it.
var writings = map[string]func(w gin.ResponseWriter, saw func(...any)){
	"nothing": func(w gin.ResponseWriter, saw func(...any)) { saw(w.Status(), w.Size(), w.Written()) },
	"status only": func(w gin.ResponseWriter, saw func(...any)) {
		w.WriteHeader(202)
		saw(w.Status(), w.Size(), w.Written())
		w.WriteHeader(-1)
		saw(w.Status())
	},
	"header now": func(w gin.ResponseWriter, saw func(...any)) {
		w.WriteHeader(202)
		w.WriteHeaderNow()
		saw(w.Status(), w.Size(), w.Written())
		w.Header().Set("X-Late", "1")
		w.WriteHeader(500)
		w.WriteHeaderNow()
		saw(w.Status(), w.Size(), w.Written())
	},
	"write": func(w gin.ResponseWriter, saw func(...any)) {
		w.Header().Set("X-Early", "1")
		b := []byte("hello, ")
		n, err := w.Write(b)
		saw(n, err, w.Status(), w.Size(), w.Written())
		copy(b, "XXXXXXXX") // a pooled buffer that is used again
		n, err = w.WriteString("world")
		saw(n, err, w.Size())
		n, err = io.WriteString(w, "!")
		saw(n, err, w.Size())
		w.Header().Set("X-Late", "1")
		w.Header().Del("X-Early")
		w.WriteHeader(500)
		saw(w.Status())
	},
	"empty write": func(w gin.ResponseWriter, saw func(...any)) {
		n, err := w.Write(nil)
		saw(n, err, w.Size(), w.Written())
	},
	"no body allowed": func(w gin.ResponseWriter, saw func(...any)) {
		w.WriteHeader(204)
		n, err := w.Write([]byte("x"))
		saw(n, errors.Is(err, http.ErrBodyNotAllowed), w.Written())
	},
	"trailer": func(w gin.ResponseWriter, saw func(...any)) {
		w.Header().Set("Trailer", "X-Sum")
		_, _ = w.WriteString("body")
		w.Header().Set("X-Sum", "1")
		w.Header().Set(http.TrailerPrefix+"X-Other", "2")
	},
	"flush": func(w gin.ResponseWriter, saw func(...any)) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(203)
		w.Flush()
		saw(w.Status(), w.Size(), w.Written())
		_, _ = w.WriteString("after")
		saw(w.Size())
		w.Flush()
	},
	"large": func(w gin.ResponseWriter, saw func(...any)) {
		for range 3 {
			n, err := w.Write([]byte(strings.Repeat("x", 1<<19)))
			saw(n, err, w.Size())
		}
		n, err := w.WriteString("end")
		saw(n, err, w.Size(), w.Status())
	},
	"controller": func(w gin.ResponseWriter, saw func(...any)) {
		rc := http.NewResponseController(w)
		saw(rc.SetWriteDeadline(time.Now().Add(time.Minute)), rc.SetReadDeadline(time.Now().Add(time.Minute)))
		_, _ = w.WriteString("a")
		saw(rc.Flush(), w.Size())
	},
	"pusher": func(w gin.ResponseWriter, saw func(...any)) { saw(w.Pusher() == nil) },
	"hijack": func(w gin.ResponseWriter, saw func(...any)) {
		conn, rw, err := w.Hijack()
		saw(err, w.Written())
		if err == nil {
			_, err = w.Write([]byte("x"))
			saw(errors.Is(err, http.ErrHijacked)) // and that is all: the client is answered next
			_, _ = rw.WriteString("HTTP/1.1 299 Mine\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
			_ = rw.Flush()
			_ = conn.Close()
		}
	},
	"close notify": func(w gin.ResponseWriter, saw func(...any)) { saw(w.CloseNotify() != nil) },
}

// A handler sees the same writer, and its client the same answer, with the middleware and without.
func TestWriter_SeesTheSame(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	for name, writing := range writings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var seen [2][]string
			run := func(i int) gin.HandlerFunc {
				return func(c *gin.Context) {
					writing(c.Writer, func(values ...any) { seen[i] = append(seen[i], fmt.Sprint(values...)) })
				}
			}
			s := serve(t, func(r *gin.Engine) {
				r.POST("/without", run(0))
				r.POST("/with", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), run(1))
			})
			var answers [2]answer
			for i, path := range []string{"/without", "/with"} {
				a := s.do("POST", path, "", idempotencyKey, name)
				a.header.Del("Date")
				if len(a.body) < 2048 {
					a.header.Del("Content-Length") // with the whole body at hand the server knows it, flushed or not
				}
				answers[i] = a
			}
			if !reflect.DeepEqual(seen[0], seen[1]) {
				t.Errorf("the handler saw %q, without the middleware %q", seen[1], seen[0])
			}
			if !reflect.DeepEqual(answers[0], answers[1]) {
				t.Errorf("the client got\n%.200v, without the middleware\n%.200v", answers[1], answers[0])
			}
		})
	}
}

// The answer of a handler that wrote and then asks for the connection stays as it was. Gin does so from
// 1.11 on.
func TestWriter_HijackAfterBody(t *testing.T) {
	t.Parallel()
	s := post(t, func(c *gin.Context) {
		_, _ = c.Writer.WriteString("body")
		if _, _, err := c.Writer.Hijack(); err == nil {
			t.Error("there was no error")
		}
	})
	if a := s.order("k", ""); a.status != 200 || a.body != "body" {
		t.Errorf("the client got %d %q", a.status, a.body)
	}
}

// A hijacked connection, such as a WebSocket: the tombstone is sealed before the connection is the
// handler's.
func TestTombstone_Hijack(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	s := post(t, func(c *gin.Context) {
		conn, rw, err := c.Writer.Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n")
		_ = rw.Flush()
		g.handle(c)
	})
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = fmt.Fprintf(conn, "POST /orders HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 0\r\n%s: k\r\nUpgrade: echo\r\nConnection: Upgrade\r\nContent-Type: application/json\r\n\r\n", idempotencyKey)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || resp.StatusCode != 101 {
		t.Fatal(resp, err)
	}
	g.wait(t)
	s.order("k", "").wantProblem(t, 409, idempotency.CodeResponseNotKept)
	close(g.open)
}

// HTTP/2 has a Pusher, and the wrapper does not hide it.
func TestWriter_Pusher(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	r := gin.New()
	push := func(c *gin.Context) { c.String(200, "%v", c.Writer.Pusher() != nil) }
	r.POST("/without", push)
	r.POST("/with", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), push)
	ts := httptest.NewUnstartedServer(r)
	ts.EnableHTTP2 = true
	ts.StartTLS()
	defer ts.Close()
	client := ts.Client()
	defer client.CloseIdleConnections()
	s := &server{t: t, url: ts.URL, client: ts.Client()}
	var bodies []string
	for _, path := range []string{"/without", "/with"} {
		req, err := http.NewRequest("POST", ts.URL+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(idempotencyKey, "k")
		bodies = append(bodies, s.sendBy(client, req).body)
	}
	if bodies[0] != "true" || bodies[1] != "true" {
		t.Errorf("a Pusher without and with the middleware: %v", bodies)
	}
}

// An outer compression compresses the replay too, by what that client accepts.
func TestOrder_CompressionOutside(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.Use(func(c *gin.Context) {
			if c.GetHeader("X-Shout") != "" {
				c.Header("Content-Encoding", "shouting")
				c.Writer = &shouting{c.Writer}
			}
		}, ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)))
		r.POST("/orders", func(c *gin.Context) { c.String(201, "made") })
	})
	for i, shout := range []string{"1", "", "1"} {
		var header []string
		want, encoding := "made", ""
		if shout != "" {
			header, want, encoding = []string{"X-Shout", shout}, "MADE", "shouting"
		}
		a := s.order("k", "", header...)
		a.want(t, 201, want, i > 0)
		if got := a.header.Get("Content-Encoding"); got != encoding {
			t.Errorf("try %d: Content-Encoding %q, want %q", i, got, encoding)
		}
	}
}

// shouting stands for a compression.
type shouting struct{ gin.ResponseWriter }

func (w *shouting) Write(b []byte) (int, error) {
	return w.ResponseWriter.Write([]byte(strings.ToUpper(string(b))))
}

// A compression may decide at the first byte what it is: nothing is sent before that, though the answer is too large to
// be held.
func TestOrder_DecidedAtTheFirstByte(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.Use(func(c *gin.Context) { c.Writer = &deciding{c.Writer} }, ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l), idempotency.MaxBody(3)))
		r.POST("/orders", func(c *gin.Context) { c.String(201, "made") })
	})
	a := s.order("k", "")
	a.want(t, 201, "made", false)
	if got := a.header.Get("Content-Encoding"); got != "shouting" {
		t.Errorf("Content-Encoding %q", got)
	}
}

type deciding struct{ gin.ResponseWriter }

func (w *deciding) Write(b []byte) (int, error) {
	w.Header().Set("Content-Encoding", "shouting")
	return w.ResponseWriter.Write(b)
}

// What is set after the body, and was announced before it, is a trailer: it is sent, though the answer was held.
func TestWriter_Trailers(t *testing.T) {
	t.Parallel()
	s := post(t, func(c *gin.Context) {
		c.Header("Trailer", "X-Sum")
		c.String(200, "body")
		c.Header("X-Sum", "7")
	})
	req, err := http.NewRequest("POST", s.url+"/orders", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(idempotencyKey, "k")
	resp, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "body" || resp.Trailer.Get("X-Sum") != "7" {
		t.Errorf("%q, %v, trailer %v", b, err, resp.Trailer)
	}
}
