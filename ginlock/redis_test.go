package ginlock_test

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

func secret(t testing.TB, id string) idempotency.EncryptionKey {
	t.Helper()
	block, err := aes.NewCipher([]byte(strings.Repeat(id, 16)[:16]))
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	return idempotency.EncryptionKey{ID: id, AEAD: aead}
}

// Every key in Redis has an expiry, while requests run and afterwards. That holds after every kind
// of middleware and outcome.
func TestNothingStaysForEver(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	l := lockerOn(t, n)
	check := func(when string, atLeast int) {
		client, ctx := n.Client(), context.Background()
		keys, err := client.Keys(ctx, "*").Result()
		if err != nil || len(keys) < atLeast {
			t.Errorf("%s: %q, %v", when, keys, err)
		}
		for _, key := range keys {
			const gone = -2 // since KEYS
			if left := client.PTTL(ctx, key).Val(); left != gone && left <= 0 || !strings.HasSuffix(key, ":fence") && left > time.Hour+time.Minute {
				t.Errorf("%s: %s stays for %v", when, key, left)
			}
		}
	}
	handlers := map[string]gin.HandlerFunc{
		"ok":     func(c *gin.Context) { c.String(200, "ok") },
		"fail":   func(c *gin.Context) { c.String(500, "fail") },
		"error":  func(c *gin.Context) { _ = c.Error(errors.New("left")) },
		"panic":  func(*gin.Context) { panic("boom") },
		"flush":  func(c *gin.Context) { c.Writer.Flush() },
		"inside": func(*gin.Context) { check("inside", 1) },
	}
	keep := []idempotency.HTTPOption{idempotency.WithLocker(l), idempotency.Retain(time.Hour), idempotency.WithEncryption(secret(t, "a"))}
	s := serve(t, func(r *gin.Engine) {
		for name, by := range map[string]gin.HandlerFunc{
			"header":  ginlock.ByHeader(idempotencyKey, keep...),
			"again":   ginlock.ByHeader(idempotencyKey, append(keep, idempotency.RunAgain(), idempotency.Service("again"))...),
			"key":     ginlock.ByKey("{json.id}:{param.id}", keep...),
			"lock":    ginlock.LockByKey("order:{param.id}", idempotency.WithLocker(l)),
			"waiting": ginlock.LockByKey("query:{query.id}", idempotency.Wait(time.Minute), idempotency.WithLocker(l)),
			"repeats": ginlock.RefuseRepeats(time.Hour, idempotency.WithLocker(l)),
		} {
			for how, handler := range handlers {
				r.POST("/"+name+"/"+how+"/:id", by, handler)
			}
		}
	})
	var all sync.WaitGroup
	for _, name := range []string{"header", "again", "key", "lock", "waiting", "repeats"} {
		for how := range handlers {
			for range 2 {
				all.Go(func() { s.do("POST", "/"+name+"/"+how+"/1?id=1", `{"id":1}`, idempotencyKey, name+how) })
			}
		}
	}
	all.Wait()
	check("afterwards", 3)
}

// An encrypted answer cannot be read in Redis, and is replayed all the same, even after a new key.
func TestByHeader_Encryption(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	var runs atomic.Int64
	service := func(keys ...idempotency.EncryptionKey) *server {
		return serve(t, func(r *gin.Engine) {
			r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(lockerOn(t, n)),
				idempotency.WithEncryption(keys[0], keys[1:]...)), counter(&runs))
		})
	}
	service(secret(t, "a")).order("k", "card 4711").want(t, 201, "run 1", false)
	service(secret(t, "b"), secret(t, "a")).order("k", "card 4711").want(t, 201, "run 1", true)
	service(secret(t, "c")).order("k", "card 4711").wantProblem(t, 409, idempotency.CodeResponseNotKept)
	for _, key := range n.Client().Keys(context.Background(), "*claim*").Val() {
		value := n.Client().Get(context.Background(), key).Val()
		if strings.Contains(value, "run 1") || strings.Contains(value, "text/plain") {
			t.Errorf("%s holds %q", key, value)
		}
	}
}

// Metrics have one outcome for each request, and its route.
func TestMetrics(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	n := testutil.Redis(t)
	l := lockerOn(t, n, core.WithTelemetry(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), nil))
	s := serve(t, func(r *gin.Engine) {
		r.Use(ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l), idempotency.FailOpen()))
		r.POST("/ok", func(c *gin.Context) { c.String(200, "ok") })
		r.POST("/busy", func(c *gin.Context) { c.String(409, "busy") })
		r.POST("/panic", func(*gin.Context) { panic("boom") })
		r.POST("/stream", func(c *gin.Context) { c.Header("Content-Type", "text/event-stream"); c.Writer.Flush() })
		r.POST("/lose", func(c *gin.Context) {
			n.Client().FlushAll(context.Background())
			c.String(200, "late")
		})
	})
	for _, path := range []string{"/lose", "/ok", "/ok", "/busy", "/panic", "/stream", "/stream"} {
		s.do("POST", path, "", idempotencyKey, path)
	}
	s.do("POST", "/ok", "other", idempotencyKey, "/ok")
	s.do("POST", "/ok", "") // without a key
	n.Kill()
	s.do("POST", "/ok", "", idempotencyKey, "k2").want(t, 200, "ok", false)
	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != "onelane.idempotency.requests" {
				continue
			}
			for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
				o, _ := p.Attributes.Value("onelane.outcome")
				transport, _ := p.Attributes.Value("onelane.transport")
				route, _ := p.Attributes.Value("onelane.route")
				got[transport.AsString()+" "+route.AsString()+" "+o.AsString()] += p.Value
			}
		}
	}
	want := map[string]int64{
		"http /ok ran": 1, "http /ok replayed": 1, "http /ok mismatch": 1, "http /ok unprotected": 1, "http /ok without_key": 1,
		"http /busy freed": 1, "http /panic unknown": 1, "http /stream tombstone": 1, "http /stream not_kept": 1, "http /lose lost": 1,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// The Locker's logger reports a lost claim or lock, with the route. The handler learns of it from
// its context.
func TestLossIsLogged(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	var log lines
	l := lockerOn(t, n, core.WithTTL(2*time.Second), core.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	lose := func(c *gin.Context) {
		n.Client().FlushAll(context.Background())
		<-c.Request.Context().Done()
		c.String(200, "%v", errors.Is(context.Cause(c.Request.Context()), core.ErrLost))
	}
	s := serve(t, func(r *gin.Engine) {
		r.POST("/once/:id", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), lose)
		r.POST("/lock/:id", ginlock.LockByKey("order:{param.id}", idempotency.WithLocker(l)), lose)
		r.POST("/repeats/:id", ginlock.RefuseRepeats(time.Minute, idempotency.WithLocker(l)), lose)
	})
	for path, want := range map[string]string{"/once/:id": "the claim was lost", "/lock/:id": "the lock was lost", "/repeats/:id": "the claim was lost"} {
		s.do("POST", strings.Replace(path, ":id", "1", 1), "", idempotencyKey, "k").want(t, 200, "true", false)
		until(t, func() answer { return answer{} }, func(answer) bool { return log.has(want, "route="+path) })
	}
}

// lines is what was logged.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// has reports whether there is a line with all of the words.
func (l *lines) has(words ...string) bool { return l.count(words...) > 0 }

// count returns how many lines have all of the words.
func (l *lines) count(words ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		found := true
		for _, word := range words {
			found = found && strings.Contains(line, word)
		}
		if found {
			n++
		}
	}
	return n
}
