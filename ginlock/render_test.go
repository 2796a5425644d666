package ginlock_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ginzip "github.com/gin-contrib/gzip"
	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

const long = "all work and no play makes "

// answers are handlers as people write them.
func answers(file string) map[string]gin.HandlerFunc {
	text := strings.Repeat(long, 200)
	return map[string]gin.HandlerFunc{
		"JSON":          func(c *gin.Context) { c.JSON(201, gin.H{"text": text}) },
		"JSON, short":   func(c *gin.Context) { c.JSON(201, gin.H{"a": 1}) },
		"418":           func(c *gin.Context) { c.JSON(418, gin.H{"error": text}) },
		"404 and abort": func(c *gin.Context) { c.AbortWithStatusJSON(404, gin.H{"error": "none"}) },
		"410, empty":    func(c *gin.Context) { c.AbortWithStatus(410) },
		"204":           func(c *gin.Context) { c.Status(204) },
		"nothing":       func(*gin.Context) {},
		"redirect":      func(c *gin.Context) { c.Redirect(303, "/elsewhere") },
		"file":          func(c *gin.Context) { c.File(file) },
		"attachment":    func(c *gin.Context) { c.FileAttachment(file, "äö.txt") },
		"no such file":  func(c *gin.Context) { c.File(file + ".none") },
		"reader": func(c *gin.Context) {
			c.DataFromReader(200, int64(len(text)), "text/plain", strings.NewReader(text), map[string]string{"X-Extra": "1"})
		},
		"own length": func(c *gin.Context) {
			c.Header("Content-Length", "4")
			c.String(200, "1234")
		},
		"in parts": func(c *gin.Context) {
			for range 50 {
				_, _ = c.Writer.WriteString(long)
			}
		},
		"own encoding": func(c *gin.Context) {
			c.Header("Content-Encoding", "br")
			c.String(200, "not really")
		},
		"late header": func(c *gin.Context) {
			c.String(200, text)
			c.Header("X-Late", "1")
		},
		"informational": func(c *gin.Context) {
			c.Header("Link", "</style.css>; rel=preload")
			c.Status(http.StatusEarlyHints)
			c.Writer.WriteHeaderNow()
			c.String(200, "after it")
		},
		"set header again": func(c *gin.Context) {
			c.Header("Content-Type", "text/html")
			c.Data(200, "text/plain", []byte("text"))
		},
	}
}

// A client sees the same with the middleware and without, at the first try and at the retry. It
// does not matter which middleware compresses outside or inside of it.
func TestWriter_Answers(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file.txt")
	if err := os.WriteFile(file, []byte(strings.Repeat("file ", 500)), 0o644); err != nil {
		t.Fatal(err)
	}
	l := testutil.Locker(t)
	once := ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l), idempotency.Headers("X-Extra"))
	zip := ginzip.Gzip(ginzip.DefaultCompression)
	for around, chains := range map[string][2][]gin.HandlerFunc{
		"alone":        {{}, {once}},
		"gzip outside": {{zip}, {zip, once}},
		"gzip inside":  {{zip}, {once, zip}},
	} {
		for name, handler := range answers(file) {
			t.Run(around+", "+name, func(t *testing.T) {
				t.Parallel()
				s := serve(t, func(r *gin.Engine) {
					r.POST("/without", append(chains[0][:len(chains[0]):len(chains[0])], handler)...)
					r.POST("/with", append(chains[1][:len(chains[1]):len(chains[1])], handler)...)
				})
				want := s.plainly("/without", `"`+around+name+`"`)
				first := s.plainly("/with", `"`+around+name+`"`)
				if !reflect.DeepEqual(first, want) {
					t.Errorf("with the middleware the client got\n%v, without it\n%v", first, want)
				}
				again := s.plainly("/with", `"`+around+name+`"`)
				if again.header.Get("Idempotency-Replayed") != "true" {
					t.Errorf("not replayed: %v", again)
				}
				again.header.Del("Idempotency-Replayed")
				for _, name := range []string{"X-Late", "Accept-Ranges"} { // came too late, or is not recorded
					want.header.Del(name)
				}
				if !reflect.DeepEqual(again, want) {
					t.Errorf("the replay is\n%v, the first was\n%v", again, want)
				}
			})
		}
	}
}

// A compression outside may hold the answer until the end, and say only then how long it is. A
// header that it has removed stays removed.
func TestOrder_HeaderChangedOutside(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.Use(func(c *gin.Context) {
			outer := c.Writer
			h := &holding{ResponseWriter: outer}
			c.Writer = h
			c.Next()
			_, _ = outer.Write(bytes.ToUpper(h.held[:len(h.held)/2]))
		}, ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)))
		r.POST("/orders", func(c *gin.Context) {
			c.DataFromReader(200, 4, "text/plain", strings.NewReader("abcd"), nil)
		})
	})
	for i := range 2 {
		s.order("k", "").want(t, 200, "AB", i == 1)
	}
}

type holding struct {
	gin.ResponseWriter
	held []byte
}

func (w *holding) Write(b []byte) (int, error) {
	w.Header().Del("Content-Length")
	w.held = append(w.held, b...)
	return len(b), nil
}

// plainly sends a request and reads the answer as browsers do: decompressed, redirects not followed, and without the
// headers that say how it was sent.
func (s *server) plainly(path, key string) answer {
	s.t.Helper()
	req, err := http.NewRequest("POST", s.url+path, strings.NewReader("{}"))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set(idempotencyKey, key)
	req.Header.Set("Accept-Encoding", "gzip")
	resp, err := s.client.Transport.RoundTrip(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && len(b) > 0 && resp.Header.Get("Content-Encoding") == "gzip" {
		var zipped *gzip.Reader
		if zipped, err = gzip.NewReader(bytes.NewReader(b)); err == nil {
			b, err = io.ReadAll(zipped)
		}
	}
	if err != nil {
		s.t.Errorf("%s: after %d bytes: %v", path, len(b), err)
	}
	resp.Header.Del("Date")
	resp.Header.Del("Content-Length")
	return answer{resp.StatusCode, string(b), resp.Header}
}

// String is what a failed test says.
func (a answer) String() string { return fmt.Sprintf("%d %.60q %q", a.status, a.body, a.header) }

// Server-sent events come one by one, while the handler runs. A retry learns that they were not
// kept.
func TestTombstone_EventStream(t *testing.T) {
	t.Parallel()
	next := make(chan struct{})
	s := post(t, func(c *gin.Context) {
		c.Stream(func(io.Writer) bool {
			_, more := <-next
			if more {
				c.SSEvent("tick", "tock")
			}
			return more
		})
	})
	req, err := http.NewRequest("POST", s.url+"/orders", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = s.host
	req.Header.Set(idempotencyKey, "k")
	req.Header.Set("Content-Type", "application/json")
	time.AfterFunc(10*time.Millisecond, func() { next <- struct{}{} })
	resp, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	events := bufio.NewReader(resp.Body)
	for i := range 3 {
		if i > 0 {
			next <- struct{}{}
		}
		for _, want := range []string{"event:tick\n", "data:tock\n", "\n"} {
			if line, err := events.ReadString('\n'); err != nil || line != want {
				t.Fatalf("%q, %v; want %q", line, err, want)
			}
		}
		s.do("POST", "/orders", "", idempotencyKey, "k").wantProblem(t, 409, idempotency.CodeResponseNotKept)
	}
	close(next)
	if rest, err := io.ReadAll(events); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
	if got, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil || got != "text/event-stream" {
		t.Errorf("content type %q, %v", got, err)
	}
}

// HEAD has no effect to protect: it passes, with its header and without a body, key or not.
func TestKey_Head(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		r.Use(ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)))
		r.Any("/orders", counter(&runs))
	})
	for i := range 2 {
		a := s.do("HEAD", "/orders", "", idempotencyKey, "k")
		a.want(t, 201, "", false)
		if runs.Load() != int64(i+1) || a.header.Get("Content-Length") != "5" {
			t.Errorf("run %d: %v", runs.Load(), a)
		}
	}
}

// A middleware outside unpacks the body. A small one is longer when it is packed.
func TestBody_UnpackedOutside(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	s := serve(t, func(r *gin.Engine) {
		unpack := ginzip.Gzip(ginzip.DefaultCompression, ginzip.WithDecompressFn(ginzip.DefaultDecompressHandle))
		r.Use(unpack, ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)))
		r.POST("/orders", func(c *gin.Context) {
			b, _ := io.ReadAll(c.Request.Body)
			c.String(201, "%s run %d", b, runs.Add(1))
		})
	})
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = io.WriteString(z, `{"a":1}`)
	_ = z.Close()
	for _, replayed := range []bool{false, true} {
		a := s.order("k", packed.String(), "Content-Encoding", "gzip")
		a.body = a.body[:min(len(a.body), len(`{"a":1} run 1`))] // the middleware adds an end
		a.want(t, 201, `{"a":1} run 1`, replayed)
	}
}
