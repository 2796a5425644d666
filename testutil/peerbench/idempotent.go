package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
)

const (
	idempotencyHeader = "Idempotency-Key"
	answer            = `{"order":4711}`
)

// idempotent: requests with an idempotency key, each sent twice.
func idempotent(goroutines int) scenario {
	return scenario{
		name: "idempotent",
		about: fmt.Sprintf("%d goroutines send each request twice, without a network: the first runs, the second is replayed. By hand is a middleware of the usual kind: "+
			"SET NX, the handler, SET; and for a repeat SET NX and GET. It has no renewal, and tells no retry that the first is still running.", goroutines),
		columns: []column{{"pairs per s", false}, {"commands fresh", true}, {"commands replayed", true}},
		open: func(b *bench) ([]contender, error) {
			addr, err := b.redis()
			if err != nil {
				return nil, err
			}
			client := redis.NewClient(&redis.Options{Addr: addr})
			l, err := newLocker([]redis.UniversalClient{client})
			if err != nil {
				return nil, err
			}
			gin.SetMode(gin.ReleaseMode)
			var runs atomic.Int64
			engine := func(middleware gin.HandlerFunc) *gin.Engine {
				e := gin.New()
				e.POST("/orders", middleware, func(c *gin.Context) {
					runs.Add(1)
					c.Data(http.StatusCreated, "application/json", []byte(answer))
				})
				return e
			}
			var next atomic.Int64
			measure := func(e *gin.Engine) func(context.Context, time.Duration) (sample, error) {
				return func(ctx context.Context, d time.Duration) (sample, error) {
					if err := errors.Join(flush(ctx, addr), post(e, "warm-up")); err != nil {
						return nil, err
					}
					key := "counted:" + strconv.FormatInt(next.Add(1), 10)
					fresh, err1 := monitored(addr, func() error { return post(e, key) })
					replayed, err2 := monitored(addr, func() error { return post(e, key) })
					if err := errors.Join(err1, err2); err != nil {
						return nil, err
					}
					before := runs.Load()
					t, err := load(ctx, d, goroutines, func(context.Context, int) (time.Duration, error) {
						began := time.Now()
						key := "k:" + strconv.FormatInt(next.Add(1), 10)
						return time.Since(began), errors.Join(post(e, key), post(e, key))
					})
					if ran := runs.Load() - before; err == nil && ran != t.held {
						err = fmt.Errorf("%d pairs of requests ran the handler %d times", t.held, ran)
					}
					return sample{t.perSecond(), float64(fresh), float64(replayed)}, err
				}
			}
			return []contender{
				{name: "ginlock.ByHeader", kind: ours, run: measure(engine(ginlock.ByHeader(idempotencyHeader, idempotency.WithLocker(l)))),
					close: func() { _, _ = l.Close(), client.Close() }},
				{name: "by hand", kind: theirs, run: measure(engine(byHand(client)))},
			}, nil
		},
		targets: []target{
			{"fresh: 2 round trips", func(r result) float64 { return r.of("ginlock.ByHeader", "commands fresh") }, 0, 2},
			{"replayed: 1 round trip", func(r result) float64 { return r.of("ginlock.ByHeader", "commands replayed") }, 0, 1},
		},
	}
}

// post is one request, which must be answered as the handler answers.
func post(e *gin.Engine, key string) error {
	r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(`{"sku":42}`))
	r.Header.Set(idempotencyHeader, key)
	w := httptest.NewRecorder()
	e.ServeHTTP(w, r)
	if w.Code != http.StatusCreated || w.Body.String() != answer {
		return fmt.Errorf("a request was answered with %d %s", w.Code, w.Body)
	}
	return nil
}

type captured struct {
	gin.ResponseWriter
	body []byte
}

func (w *captured) Write(b []byte) (int, error) {
	w.body = append(w.body, b...)
	return w.ResponseWriter.Write(b)
}

func byHand(client redis.UniversalClient) gin.HandlerFunc {
	return func(c *gin.Context) {
		ctx, key := c.Request.Context(), "idem:"+c.GetHeader(idempotencyHeader)
		err := client.SetArgs(ctx, key, "", redis.SetArgs{Mode: "NX", TTL: time.Minute}).Err()
		if errors.Is(err, redis.Nil) {
			stored, err := client.Get(ctx, key).Bytes()
			switch {
			case err != nil:
				_ = c.AbortWithError(http.StatusServiceUnavailable, err)
			case len(stored) == 0:
				c.AbortWithStatus(http.StatusConflict)
			default:
				c.Data(http.StatusCreated, "application/json", stored)
				c.Abort()
			}
			return
		}
		if err != nil {
			_ = c.AbortWithError(http.StatusServiceUnavailable, err)
			return
		}
		w := &captured{ResponseWriter: c.Writer}
		c.Writer = w
		c.Next()
		_ = client.Set(ctx, key, w.body, 24*time.Hour).Err()
	}
}
