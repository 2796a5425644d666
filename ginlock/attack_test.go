package ginlock_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
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
	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/testutil"
)

// A middleware outside may parse the form, as those against CSRF do, and leave no body to read.
// Another payload must not get the first one's answer even then.
func TestFingerprint_FormParsedBefore(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	var runs atomic.Int64
	s := serve(t, func(r *gin.Engine) {
		r.Use(func(c *gin.Context) { _ = c.PostForm("csrf") }, ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)))
		r.POST("/orders", func(c *gin.Context) { c.String(201, "%s %d", c.PostForm("a"), runs.Add(1)) })
	})
	form := func(a, file string) (string, string) {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		_ = w.WriteField("a", a)
		part, _ := w.CreateFormFile("f", "f.txt")
		_, _ = io.WriteString(part, file)
		_ = w.Close()
		return b.String(), w.FormDataContentType()
	}
	const urlencoded = "application/x-www-form-urlencoded"
	one, typeOne := form("1", "content")
	again, typeAgain := form("1", "content") // another boundary
	other, typeOther := form("1", "c0ntent")
	for _, tc := range []struct {
		key, body, contentType, want string // the code of a problem where there is no answer
	}{
		{"k1", "a=1&b=2", urlencoded, "1 1"},
		{"k1", "b=2&a=1", urlencoded, "1 1"},
		{"k1", "a=2&b=2", urlencoded, idempotency.CodeKeyReused},
		{"k1", "", urlencoded, idempotency.CodeKeyReused},
		{"k2", one, typeOne, "1 2"},
		{"k2", again, typeAgain, "1 2"},
		{"k2", other, typeOther, idempotency.CodeKeyReused},
	} {
		a := s.do("POST", "/orders", tc.body, idempotencyKey, tc.key, "Content-Type", tc.contentType)
		if a.status == 201 && a.body != tc.want || a.status != 201 && a.problem(t).Code != tc.want {
			t.Errorf("%s, %.20q: %v, want %s", tc.key, tc.body, a, tc.want)
		}
	}
}

// One that reads the body and leaves nothing is a mistake of the program: what cannot be compared is refused.
func TestFingerprint_BodyIsGone(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	var runs atomic.Int64
	read := func(c *gin.Context) { _, _ = io.Copy(io.Discard, c.Request.Body) }
	s := serve(t, func(r *gin.Engine) {
		r.POST("/once", read, ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), counter(&runs))
		r.POST("/repeats", read, ginlock.RefuseRepeats(time.Minute, idempotency.WithLocker(l)), counter(&runs))
		r.POST("/json", read, ginlock.LockByKey("{json.id}", idempotency.WithLocker(l)), counter(&runs))
	})
	for _, path := range []string{"/once", "/repeats", "/json"} {
		s.do("POST", path, `{"id":1}`, idempotencyKey, "k").wantProblem(t, 500, idempotency.CodeMisconfigured)
	}
	s.do("POST", "/once", "", idempotencyKey, "k").want(t, 201, "run 1", false) // there was none
	s.do("POST", "/once", "", idempotencyKey, "k").want(t, 201, "run 1", true)
}

// gin.Engine.HandleContext hands the request to another route with the bare writer. The middleware
// does not see that route's answer, and must not record an empty 200.
func TestHandleContext(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	var runs atomic.Int64
	s := serve(t, func(r *gin.Engine) {
		r.POST("/old", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), func(c *gin.Context) {
			c.Request.URL.Path = "/new"
			r.HandleContext(c)
		})
		r.POST("/both", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), func(c *gin.Context) {
			c.String(201, ", and before")
			c.Request.URL.Path = "/new"
			r.HandleContext(c)
		})
		r.POST("/new", counter(&runs))
	})
	s.do("POST", "/old", "", idempotencyKey, "k").want(t, 201, "run 1", false)
	s.do("POST", "/old", "", idempotencyKey, "k").wantProblem(t, 409, idempotency.CodeResponseNotKept)
	runs.Store(0)
	s.do("POST", "/both", "", idempotencyKey, "both").want(t, 201, "run 1, and before", false) // what was held comes after
	if n := runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// An attacker who writes to Redis can forge a record that is not encrypted. Even then, headers that
// are never recorded are not replayed.
func TestHeaders_ForgedHeaders(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l), idempotency.Headers("X-Mine"),
			idempotency.Fingerprint(func(*http.Request, []byte) []byte { return nil })), func(*gin.Context) {})
	})
	fingerprint := claim.FingerprintOf(claim.Parts{
		claim.Method: claim.Digest([]byte("POST")), claim.Path: claim.Digest([]byte("/orders")),
		claim.Body: claim.Digest([]byte("function"), nil),
	})
	fingerprint.Host = claim.Digest([]byte(s.host))
	forge := func(key string, record *claim.Record) {
		out, err := claim.New(l, "http", claim.DefaultSettings()).Begin(context.Background(), claim.Request{
			Key:         core.Join("", "", idempotencyKey, key),
			Fingerprint: fingerprint,
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := out.Claim.Complete(record); err != nil {
			t.Fatal(err)
		}
	}
	forge("k", &claim.Record{Status: 200, Body: []byte("x"), Header: map[string][]string{
		"Set-Cookie": {"session=1"}, "Transfer-Encoding": {"chunked"}, "Content-Length": {"999"}, "X-Other": {"1"}, "X-Mine": {"a\r\nSet-Cookie: b"}, "Location": {"/1"},
	}})
	a := s.order("k", "")
	a.want(t, 200, "x", true)
	for name := range a.header {
		switch name {
		case "Location", "X-Mine", "Idempotency-Replayed", "Date", "Content-Length", "Content-Type":
		default:
			t.Errorf("%s: %q", name, a.header[name])
		}
	}
	for _, status := range []int{0, 99, 100, 101, 103, 1000} {
		key := fmt.Sprint("k", status)
		forge(key, &claim.Record{Status: status})
		s.order(key, "").wantProblem(t, 409, idempotency.CodeResponseNotKept)
	}
}

// A client certificate is who asks, too.
func TestPrincipal_ClientCertificates(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	r := gin.New()
	var runs atomic.Int64
	r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), counter(&runs))
	certs, pool := clientCertificates(t, "ann", "bob")
	ts := httptest.NewUnstartedServer(r)
	ts.TLS = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool}
	ts.StartTLS()
	defer ts.Close()
	s := &server{t: t, url: ts.URL, client: ts.Client()}
	order := func(cert *tls.Certificate) answer {
		transport := ts.Client().Transport.(*http.Transport).Clone()
		if cert != nil {
			transport.TLSClientConfig.Certificates = []tls.Certificate{*cert}
		}
		defer transport.CloseIdleConnections()
		req, err := http.NewRequest("POST", ts.URL+"/orders", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(idempotencyKey, "k")
		return s.sendBy(&http.Client{Transport: transport}, req)
	}
	order(&certs[0]).want(t, 201, "run 1", false)
	order(&certs[0]).want(t, 201, "run 1", true)
	order(&certs[1]).wantProblem(t, 422, idempotency.CodeCredentialsChanged)
	order(nil).wantProblem(t, 422, idempotency.CodeCredentialsChanged)
}

// A hook that panics runs nothing twice: a panic before the handler leaves the key free, and one after it
// leaves the outcome unknown.
func TestHooksThatPanic(t *testing.T) {
	t.Parallel()
	for name, hook := range map[string]func(panics func()) idempotency.HTTPOption{
		"Principal": func(p func()) idempotency.HTTPOption {
			return ginlock.Principal(func(*gin.Context) string { p(); return "" })
		},
		"Decide": func(p func()) idempotency.HTTPOption {
			return idempotency.Decide(func(int, http.Header) idempotency.Fate { p(); return idempotency.KeepAnswer })
		},
		"Fingerprint": func(p func()) idempotency.HTTPOption {
			return idempotency.Fingerprint(func(*http.Request, []byte) []byte { p(); return nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var runs, calls atomic.Int64
			s := post(t, counter(&runs), idempotency.WithLocker(testutil.Locker(t, core.WithTTL(unknownAfter))), hook(func() {
				if calls.Add(1) == 1 {
					panic(errors.New("boom"))
				}
			}))
			if a := s.order("k", ""); a.status != 500 {
				t.Errorf("%v", a)
			}
			if runs.Load() == 0 {
				s.order("k", "").want(t, 201, "run 1", false)
				s.order("k", "").want(t, 201, "run 1", true)
				return
			}
			a := until(t, func() answer { return s.order("k", "") }, notRunning(t))
			a.wantProblem(t, 409, idempotency.CodeOutcomeUnknown)
			if n := runs.Load(); n != 1 {
				t.Errorf("%d runs", n)
			}
		})
	}
}

// clientCertificates makes one certificate of each name, and the authority that signed them.
func clientCertificates(t testing.TB, names ...string) ([]tls.Certificate, *x509.CertPool) {
	t.Helper()
	authority, key := newCertificate(t, "authority", nil, nil)
	pool := x509.NewCertPool()
	pool.AddCert(authority)
	certs := make([]tls.Certificate, len(names))
	for i, name := range names {
		leaf, own := newCertificate(t, name, authority, key)
		certs[i] = tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: own}
	}
	return certs, pool
}

// A client that has lost its access gets no replay: authentication comes first.
func TestOrder_AccessRevoked(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	var runs atomic.Int64
	var revoked atomic.Bool
	s := serve(t, func(r *gin.Engine) {
		r.Use(func(c *gin.Context) {
			if revoked.Load() {
				c.AbortWithStatus(403)
			}
		}, ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)))
		r.POST("/orders", counter(&runs))
	})
	s.order("k", "").want(t, 201, "run 1", false)
	revoked.Store(true)
	s.order("k", "").want(t, 403, "", false)
	revoked.Store(false)
	s.order("k", "").want(t, 201, "run 1", true)
}

// Middlewares in an order that is not the documented one: nothing runs twice.
func TestOrder_OtherOrders(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	var runs atomic.Int64
	once := ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l))
	recovery := gin.CustomRecoveryWithWriter(io.Discard, func(c *gin.Context, _ any) { c.AbortWithStatus(500) })
	errorWriter := func(c *gin.Context) {
		c.Next()
		if len(c.Errors) > 0 && !c.Writer.Written() {
			c.String(404, "%s", c.Errors.Last())
		}
	}
	login := func(c *gin.Context) {
		if c.GetHeader("Authorization") == "" {
			c.AbortWithStatus(401)
		}
	}
	s := serve(t, func(r *gin.Engine) {
		r.POST("/recovery", once, recovery, func(c *gin.Context) {
			if runs.Add(1) == 1 {
				panic("boom")
			}
			c.String(201, "run %d", runs.Load())
		})
		r.POST("/errors", once, errorWriter, func(c *gin.Context) { _ = c.Error(fmt.Errorf("run %d", runs.Add(1))) })
		r.POST("/login", once, login, counter(&runs))
	})
	for _, tc := range []struct {
		path, authorization string
		status              int
		body                string
		replayed            bool
	}{
		{"/recovery", "", 500, "", false},
		{"/recovery", "", 500, "", true},
		{"/errors", "", 404, "run 2", false},
		{"/errors", "", 404, "run 2", true},
		{"/login", "", 401, "", false},
		{"/login", "ann", 201, "run 3", false}, // the refusal has not taken the key
		{"/login", "ann", 201, "run 3", true},
	} {
		s.do("POST", tc.path, "", idempotencyKey, tc.path, "Authorization", tc.authorization).want(t, tc.status, tc.body, tc.replayed)
	}
}

// A middleware outside that reads a multipart body part by part leaves neither a body nor a parsed form.
func TestFingerprint_MultipartReadBefore(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	upload := func(c *gin.Context) {
		parts, err := c.Request.MultipartReader()
		for p := (*multipart.Part)(nil); err == nil; {
			if p, err = parts.NextPart(); err == nil {
				_, err = io.Copy(io.Discard, p)
			}
		}
	}
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.POST("/orders", upload, ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), counter(&runs))
		r.POST("/parsed", func(c *gin.Context) { _, _ = c.MultipartForm() }, ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), counter(&runs))
	})
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	_ = w.WriteField("a", "1")
	_ = w.Close()
	s.do("POST", "/orders", b.String(), idempotencyKey, "k", "Content-Type", w.FormDataContentType()).wantProblem(t, 500, idempotency.CodeMisconfigured)
	empty := "--" + w.Boundary() + "--\r\n" // a form all the same
	s.do("POST", "/parsed", empty, idempotencyKey, "k", "Content-Type", w.FormDataContentType()).want(t, 201, "run 1", false)
	s.do("POST", "/parsed", empty, idempotencyKey, "k", "Content-Type", w.FormDataContentType()).want(t, 201, "run 1", true)
}

// An answer whose headers are too large for a record is not kept: it must not run again.
func TestTombstone_HugeHeader(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := post(t, func(c *gin.Context) {
		c.Header("Link", strings.Repeat("x", 17<<20))
		counter(&runs)(c)
	})
	client := &http.Client{Transport: &http.Transport{MaxResponseHeaderBytes: 32 << 20}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequest("POST", s.url+"/orders", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(idempotencyKey, "k")
	s.sendBy(client, req).want(t, 201, "run 1", false)
	s.sendBy(client, req).wantProblem(t, 409, idempotency.CodeResponseNotKept)
}
