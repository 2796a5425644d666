package testutil_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/sqlbackend"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// TestGinWithoutRedis: idempotent requests and plain locks, with nothing but a table of a database behind them.
func TestGinWithoutRedis(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		conns, err := db.DB()
		if err != nil {
			t.Fatal(err)
		}
		if err := sqlbackend.Migrate(t.Context(), conns); err != nil {
			t.Fatal(err)
		}
		servers := make([]*httptest.Server, 2) // two processes
		var charged, inside, grabbed atomic.Int64
		for i := range servers {
			l, err := core.New(sqlbackend.New(conns, sqlbackend.WithTimeout(time.Minute)), core.WithLogger(slog.New(slog.DiscardHandler)))
			if err != nil {
				t.Fatal(err)
			}
			r := gin.New()
			r.POST("/pay", ginlock.ByHeader("Idempotency-Key", idempotency.WithLocker(l), ginlock.Principal(everybody)), func(c *gin.Context) {
				time.Sleep(20 * time.Millisecond)
				c.JSON(http.StatusCreated, gin.H{"charge": charged.Add(1)})
			})
			r.POST("/orders/:id/grab", ginlock.LockByKey("order:{param.id}", idempotency.Wait(30*time.Second), idempotency.WithLocker(l)), func(c *gin.Context) {
				if inside.Add(1) != 1 {
					t.Error("two at a time")
				}
				time.Sleep(2 * time.Millisecond)
				inside.Add(-1)
				grabbed.Add(1)
				c.Status(http.StatusNoContent)
			})
			servers[i] = httptest.NewServer(r)
			t.Cleanup(func() { servers[i].Close(); _ = l.Close() })
		}
		post := func(i int, path, key string) (int, string) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, servers[i%2].URL+path, strings.NewReader(`{"amount":1}`))
			if err != nil {
				t.Error(err)
				return 0, ""
			}
			req.Host = "shop.example" // as a load balancer before both passes it on
			req.Header.Set("Idempotency-Key", key)
			res, err := servers[i%2].Client().Do(req)
			if err != nil {
				t.Error(err)
				return 0, ""
			}
			defer res.Body.Close()
			body, _ := io.ReadAll(res.Body)
			return res.StatusCode, string(body)
		}
		var all sync.WaitGroup
		for i := range 12 {
			all.Go(func() {
				if code, body := post(i, "/pay", "key-0123456789"); code != http.StatusCreated && code != http.StatusConflict {
					t.Errorf("pay: %d %s", code, body)
				}
			})
			all.Go(func() {
				if code, body := post(i, "/orders/7/grab", ""); code != http.StatusNoContent {
					t.Errorf("grab: %d %s", code, body)
				}
			})
		}
		all.Wait()
		for i := range 2 {
			if code, body := post(i, "/pay", "key-0123456789"); code != http.StatusCreated || !strings.Contains(body, `"charge":1`) {
				t.Errorf("a repeat on process %d got %d %s", i, code, body)
			}
		}
		if charged.Load() != 1 || grabbed.Load() != 12 {
			t.Errorf("%d charges and %d grabs, want 1 and 12", charged.Load(), grabbed.Load())
		}
	})
}

func everybody(*gin.Context) string { return "everybody" }
