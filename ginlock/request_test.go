package ginlock_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

func TestFingerprint_WhatCounts(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.POST("/orders/:id", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), counter(&runs))
		r.POST("/custom", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l), idempotency.Fingerprint(func(r *http.Request, body []byte) []byte {
			return append([]byte(r.URL.Query().Get("n")), body[:1]...)
		})), counter(&runs))
	})
	send := func(path, contentType, body string) answer {
		req, err := http.NewRequest("POST", s.url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(idempotencyKey, strings.Split(path, "/")[1][:6])
		req.Header.Set("Content-Type", contentType)
		return s.send(req)
	}
	send("/orders/1?a=1", "text/plain", "hello").want(t, 201, "run 1", false)
	send("/orders/1?a=1", "text/plain", "hello").want(t, 201, "run 1", true)
	for _, other := range [][3]string{
		{"/orders/2?a=1", "text/plain", "hello"}, {"/orders/1?a=2", "text/plain", "hello"}, {"/orders/1", "text/plain", "hello"},
		{"/orders/1?a=1", "application/json", "hello"}, {"/orders/1?a=1", "text/plain", "hello!"}, {"/orders/1?a=1", "text/plain", ""},
	} {
		if a := send(other[0], other[1], other[2]); a.status != 422 {
			t.Errorf("%v: %d %s", other, a.status, a.body)
		}
	}
	// Two identical bodies under different keys are two requests.
	s.do("POST", "/orders/1?a=1", "hello", idempotencyKey, "another").want(t, 201, "run 2", false)

	send("/custom?n=1&x=1", "text/plain", "hello").want(t, 201, "run 3", false)
	send("/custom?n=1&x=2", "text/html", "huhu").want(t, 201, "run 3", true)
	send("/custom?n=2", "text/plain", "hello").wantProblem(t, 422, idempotency.CodeKeyReused)
}

func TestFingerprint_Multipart(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := post(t, counter(&runs))
	form := func(boundary, file, content string) answer {
		body := fmt.Sprintf("--%[1]s\r\nContent-Disposition: form-data; name=\"n\"\r\n\r\n1\r\n--%[1]s\r\nContent-Disposition: form-data; name=\"f\"; filename=%[2]q\r\nContent-Type: text/plain\r\n\r\n%[3]s\r\n--%[1]s--\r\n", boundary, file, content)
		req, err := http.NewRequest("POST", s.url+"/orders", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(idempotencyKey, "k")
		req.Header.Set("Content-Type", "multipart/form-data; boundary="+boundary)
		return s.send(req)
	}
	form("aaa", "a.txt", "hello").want(t, 201, "run 1", false)
	form("bbb", "a.txt", "hello").want(t, 201, "run 1", true)
	form("ccc", "b.txt", "hello").wantProblem(t, 422, idempotency.CodeKeyReused)
	form("ddd", "a.txt", "hello!").wantProblem(t, 422, idempotency.CodeKeyReused)
}

// A form of more parts than handlers read is compared as it is: to take it apart would cost many times its size.
func TestFingerprint_MultipartOfManyParts(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := post(t, counter(&runs))
	form := func(key, boundary string, parts int) answer {
		body := strings.Repeat("--"+boundary+"\r\n\r\n\r\n", parts) + "--" + boundary + "--\r\n"
		return s.order(key, body, "Content-Type", "multipart/form-data; boundary="+boundary)
	}
	form("k1", "a", 1000).want(t, 201, "run 1", false)
	form("k1", "b", 1000).want(t, 201, "run 1", true)
	form("k2", "a", 1001).want(t, 201, "run 2", false)
	form("k2", "a", 1001).want(t, 201, "run 2", true)
	form("k2", "b", 1001).wantProblem(t, 422, idempotency.CodeKeyReused)
}

// A middleware that has read the body left it under gin.BodyBytesKey; what is left to read is empty.
func TestFingerprint_BodyReadBefore(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.Use(func(c *gin.Context) {
			var v map[string]any
			_ = c.ShouldBindBodyWithJSON(&v)
		}, ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l), idempotency.MaxRequestBody(100)))
		r.POST("/orders", counter(&runs))
	})
	s.order("k", `{"n":1}`).want(t, 201, "run 1", false)
	s.order("k", `{"n":2}`).wantProblem(t, 422, idempotency.CodeKeyReused)
	s.order("k", `{"n":1}`).want(t, 201, "run 1", true)
	s.order("l", `{"n":"`+strings.Repeat("x", 100)+`"}`).wantProblem(t, 413, idempotency.CodeRequestTooLarge)
}

func TestBody_RequestBody(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l), idempotency.MaxRequestBody(64)), func(c *gin.Context) {
			var a, b map[string]any
			if err := c.ShouldBindBodyWithJSON(&a); err != nil {
				t.Error(err)
			}
			if err := c.ShouldBindBodyWithJSON(&b); err != nil {
				t.Error(err)
			}
			c.String(200, "%v %v %d %v", a["n"], b["n"], c.Request.ContentLength, c.Request.TransferEncoding)
		})
		r.POST("/raw", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), func(c *gin.Context) {
			b, err := c.GetRawData()
			c.String(200, "%s %v", b, err)
		})
	})
	s.order("k", `{"n":1}`).want(t, 200, "1 1 7 []", false)
	// Chunked: the length is known once the body is read.
	req, err := http.NewRequest("POST", s.url+"/orders", struct{ *strings.Reader }{strings.NewReader(`{"n":2}`)})
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(idempotencyKey, "chunked")
	s.send(req).want(t, 200, "2 2 7 []", false)
	s.do("POST", "/raw", "body", idempotencyKey, "raw").want(t, 200, "body <nil>", false)

	large := `{"n":"` + strings.Repeat("x", 64) + `"}`
	s.order("large", large).wantProblem(t, 413, idempotency.CodeRequestTooLarge)
	req, err = http.NewRequest("POST", s.url+"/orders", struct{ *strings.Reader }{strings.NewReader(large)})
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(idempotencyKey, "large")
	s.send(req).wantProblem(t, 413, idempotency.CodeRequestTooLarge)
	s.order("large", `{"n":3}`).want(t, 200, "3 3 7 []", false) // nothing was locked
}

// Two middlewares read one body: each keeps its own limit, and what somebody between them has read is gone.
func TestBody_TwoReaders(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	var runs atomic.Int64
	s := serve(t, func(r *gin.Engine) {
		r.Use(ginlock.LockByKey("{json.id}", idempotency.WithLocker(l)), func(c *gin.Context) {
			if c.GetHeader("X-Read") != "" {
				_, _ = io.Copy(io.Discard, c.Request.Body)
			}
		}, ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l), idempotency.MaxRequestBody(10)))
		r.POST("/orders", counter(&runs))
	})
	s.order("k", `{"id":1}`).want(t, 201, "run 1", false)
	s.order("k", `{"id":1000}`).wantProblem(t, 413, idempotency.CodeRequestTooLarge)
	s.order("k", `{"id":1}`, "X-Read", "1").wantProblem(t, 500, idempotency.CodeMisconfigured)
}

// A client that asks before it sends a body that is too large gets no 100 Continue.
func TestBody_ExpectContinue(t *testing.T) {
	t.Parallel()
	s := post(t, func(*gin.Context) { t.Error("it ran") })
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	_, _ = io.WriteString(conn, "POST /orders HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 1048577\r\nExpect: 100-continue\r\n\r\n")
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 413 ") {
		t.Errorf("%q, %v", line, err)
	}
}

// A body that is too slow, or too large for a limit outside, is refused before anything is locked.
func TestBody_SlowAndLimitedBody(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	r := gin.New()
	r.Use(func(c *gin.Context) {
		if c.GetHeader("X-Limit") != "" {
			c.Request.Body = http.MaxBytesReader(c.Writer, c.Request.Body, 4)
		}
	}, ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(lockerOn(t, n))))
	r.POST("/orders", func(*gin.Context) { t.Error("it ran") })
	patient := httptest.NewServer(r)
	defer patient.Close()
	s := &server{t: t, url: patient.URL, client: patient.Client()}
	s.order("k", "hello", "X-Limit", "1").wantProblem(t, 413, idempotency.CodeRequestTooLarge)

	ts := httptest.NewUnstartedServer(r)
	ts.Config.ReadTimeout = 200 * time.Millisecond
	ts.Start()
	defer ts.Close()
	var resp *http.Response
	for try := 0; resp == nil && try < 10; try++ { // a busy machine may not read the header in time
		conn, err := net.Dial("tcp", strings.TrimPrefix(ts.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = fmt.Fprintf(conn, "POST /orders HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n%s: k\r\n\r\nhalf", idempotencyKey)
		resp, _ = http.ReadResponse(bufio.NewReader(conn), nil)
	}
	if resp == nil || resp.StatusCode != 408 {
		t.Errorf("%v; want 408", resp)
	}
	if keys := n.Client().Keys(t.Context(), "*").Val(); len(keys) != 0 {
		t.Errorf("%v were written", keys)
	}
}
