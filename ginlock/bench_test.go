package ginlock_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// BenchmarkMiddleware compares the middleware with the bare handler, and with what people write by
// hand. It uses one Redis and no sockets. There is a fresh request and a replay each. The size is
// that of the request's body and of the answer's.
//
//	go run ./testutil/servers go test -run '^$' -bench Middleware -benchmem ./ginlock
func BenchmarkMiddleware(b *testing.B) {
	n := testutil.Redis(b)
	l := lockerOn(b, n)
	memory, err := core.New(backendtest.Memory())
	if err != nil {
		b.Fatal(err)
	}
	defer memory.Close()
	for _, size := range []struct {
		name  string
		bytes int
	}{{"0", 0}, {"1KB", 1 << 10}, {"100KB", 100 << 10}} {
		payload := bytes.Repeat([]byte("x"), size.bytes)
		answer := func(c *gin.Context) {
			_, _ = c.GetRawData() // as a handler that binds does
			c.Data(201, "application/octet-stream", payload)
		}
		for _, kind := range []struct {
			name string
			by   []gin.HandlerFunc
		}{
			{"bare", nil},
			{"byhand", []gin.HandlerFunc{byHand(n.Client())}},
			{"ginlock", []gin.HandlerFunc{ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l))}},
			{"ginlock-memory", []gin.HandlerFunc{ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(memory))}}, // its own work alone
		} {
			r := gin.New()
			r.POST("/orders", append(kind.by, answer)...)
			for _, replay := range []bool{false, true} {
				if replay && kind.by == nil {
					continue
				}
				name := fmt.Sprintf("%s/%s/%s", size.name, map[bool]string{false: "fresh", true: "replay"}[replay], kind.name)
				b.Run(name, func(b *testing.B) {
					var w sink
					run := strconv.FormatInt(time.Now().UnixNano(), 36)
					b.SetBytes(int64(size.bytes))
					b.ReportAllocs()
					send := func(key string) {
						req, err := http.NewRequest("POST", "/orders", bytes.NewReader(payload))
						if err != nil {
							b.Fatal(err)
						}
						req.Header[idempotencyKey] = []string{key}
						w = sink{header: http.Header{}}
						r.ServeHTTP(&w, req)
						if w.status != 201 || w.size != size.bytes {
							b.Fatalf("%d, %d bytes", w.status, w.size)
						}
					}
					send(run + "-0")
					for i := 0; b.Loop(); i++ {
						if replay {
							send(run + "-0")
						} else {
							send(run + "+" + strconv.Itoa(i))
						}
					}
				})
			}
		}
	}
}

// sink takes an answer.
type sink struct {
	header       http.Header
	status, size int
}

func (s *sink) Header() http.Header { return s.header }
func (s *sink) WriteHeader(status int) {
	s.status = status
}
func (s *sink) Write(b []byte) (int, error) {
	s.size += len(b)
	return len(b), nil
}

// byHand is the usual middleware: SET NX, the handler, SET; a retry is a GET. It knows no fingerprint, no principal, no
// renewal, no lost claim and no headers.
func byHand(client *redis.Client) gin.HandlerFunc {
	type kept struct {
		Status int
		Body   []byte
	}
	return func(c *gin.Context) {
		ctx, key := c.Request.Context(), "byhand:"+c.GetHeader(idempotencyKey)
		set, err := client.SetNX(ctx, key, "pending", time.Hour).Result()
		if err != nil {
			c.AbortWithStatus(503)
			return
		}
		if !set {
			var k kept
			value, err := client.Get(ctx, key).Bytes()
			if err != nil || json.Unmarshal(value, &k) != nil {
				c.AbortWithStatus(409)
				return
			}
			c.Abort()
			c.Data(k.Status, "application/octet-stream", k.Body)
			return
		}
		w := &copying{ResponseWriter: c.Writer}
		c.Writer = w
		c.Next()
		value, _ := json.Marshal(kept{w.Status(), w.body})
		client.Set(ctx, key, value, time.Hour)
	}
}

type copying struct {
	gin.ResponseWriter
	body []byte
}

func (w *copying) Write(b []byte) (int, error) {
	w.body = append(w.body, b...)
	return w.ResponseWriter.Write(b)
}
