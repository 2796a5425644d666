// Command quickstart runs the code of the README. Clients retry payments and orders, many grab one
// order, and many buy units of stock. One process at a time does a job. Redis and the database are
// embedded.
//
//	go run ./examples/quickstart
//
// It exits with 1 when something happened twice.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/glebarez/sqlite"
	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/gormlock"
	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

func main() {
	if len(os.Args) > 1 {
		fmt.Fprintln(os.Stderr, "quickstart runs the code of the README, and has no arguments")
		os.Exit(2)
	}
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func run(out io.Writer) error {
	server, err := miniredis.Run()
	if err != nil {
		return err
	}
	defer server.Close()
	locker, err := connect(server.Addr())
	if err != nil {
		return err
	}
	defer locker.Close()
	return errors.Join(overHTTP(out), overGRPC(out), inTheDatabase(out, locker), byHand(out, locker))
}

// connect is what a service does once, when it starts.
func connect(addr string) (*core.Locker, error) {
	redisClient := redis.NewClient(&redis.Options{Addr: addr})
	locker, err := core.New(redisbackend.New(redisClient))
	if err != nil {
		return nil, err
	}
	core.SetDefault(locker) // the adapters use it unless you pass another one
	return locker, nil
}

// routes is a service on Gin.
func routes(pay, grab gin.HandlerFunc) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.Use(gin.Recovery(), login)               // authenticate first: keys belong to users
	r.Use(ginlock.ByHeader("Idempotency-Key")) // a retried POST runs once; the retry gets the first answer
	r.POST("/payments", pay)
	r.POST("/orders/:id/grab", ginlock.LockByKey("order:{param.id}"), grab) // one at a time per order; 07 is not 7: see LockBy
	return r
}

// login stands for a real one.
func login(c *gin.Context) {
	user, ok := strings.CutPrefix(c.GetHeader("Authorization"), "Bearer ")
	if !ok || user == "" {
		c.AbortWithStatus(http.StatusUnauthorized)
		return
	}
	c.Set(gin.AuthUserKey, user)
}

// overHTTP sends a payment three times, and lets ten people grab one order.
func overHTTP(out io.Writer) error {
	var payments, grabbed atomic.Int64
	pay := func(c *gin.Context) { c.JSON(http.StatusCreated, gin.H{"payment": payments.Add(1)}) }
	grab := func(c *gin.Context) {
		if !grabbed.CompareAndSwap(0, 1) {
			c.Status(http.StatusGone)
			return
		}
		c.Status(http.StatusOK)
	}
	service := httptest.NewServer(routes(pay, grab))
	defer service.Close()
	post := func(path, user, key string) (*http.Response, error) {
		r, err := http.NewRequest(http.MethodPost, service.URL+path, nil)
		if err != nil {
			return nil, err
		}
		r.Header.Set("Authorization", "Bearer "+user)
		r.Header.Set("Idempotency-Key", key)
		answer, err := http.DefaultClient.Do(r)
		if err == nil {
			_ = answer.Body.Close()
		}
		return answer, err
	}
	for range 3 {
		answer, err := post("/payments", "ann", `"order-7"`)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "payment: %d, replayed: %t\n", answer.StatusCode, answer.Header.Get("Idempotency-Replayed") == "true")
	}
	var people sync.WaitGroup
	var got atomic.Int64
	for i := range 10 {
		people.Go(func() {
			if answer, err := post("/orders/9/grab", fmt.Sprint("courier ", i), `"once"`); err == nil && answer.StatusCode == http.StatusOK {
				got.Add(1)
			}
		})
	}
	people.Wait()
	fmt.Fprintf(out, "order 9 has %d courier\n", got.Load())
	if payments.Load() != 1 || got.Load() != 1 {
		return fmt.Errorf("%d payments and %d couriers", payments.Load(), got.Load())
	}
	return nil
}

// Stock is how many units are left, and Order one that was sold.
type (
	Stock struct {
		SKU       int64 `gorm:"primaryKey;autoIncrement:false"`
		Remaining int
	}
	Order struct {
		ID  uint64 `gorm:"primaryKey"`
		SKU int64
	}
)

var errSoldOut = errors.New("sold out")

// sell sells a unit: read, decide, write, alone.
func sell(ctx context.Context, db *gorm.DB) error {
	return gormlock.Transaction(db.WithContext(ctx), "stock:42", func(tx *gorm.DB) error {
		var stock Stock
		if err := tx.First(&stock, "sku = ?", 42).Error; err != nil {
			return err
		}
		if stock.Remaining < 1 {
			return errSoldOut
		}
		if err := tx.Model(&stock).Update("remaining", stock.Remaining-1).Error; err != nil {
			return err
		}
		return tx.Create(&Order{SKU: 42}).Error
	}, gormlock.WithRetry(3))
}

// buy is sell as a handler.
func buy(db *gorm.DB) gin.HandlerFunc {
	return func(c *gin.Context) {
		switch err := sell(c.Request.Context(), db); {
		case errors.Is(err, errSoldOut):
			c.Status(http.StatusGone)
		case err != nil:
			ginlock.Fail(c, err) // a busy lock or a rolled-back transaction leaves the key free
		default:
			c.Status(http.StatusCreated)
		}
	}
}

// inTheDatabase lets twenty people buy five units.
func inTheDatabase(out io.Writer, locker *core.Locker) error {
	dir, err := os.MkdirTemp("", "quickstart")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	db, err := gorm.Open(sqlite.Open(dir+"/shop.db?_pragma=busy_timeout(10000)"), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		return err
	}
	defer func() {
		if pool, err := db.DB(); err == nil {
			_ = pool.Close()
		}
	}()
	if err := db.Use(gormlock.New(locker)); err != nil { // once, when the service starts
		return err
	}
	if err := db.AutoMigrate(&Stock{}, &Order{}); err != nil {
		return err
	}
	if err := db.Create(&Stock{SKU: 42, Remaining: 5}).Error; err != nil {
		return err
	}
	r := gin.New()
	r.POST("/units", login, ginlock.ByHeader("Idempotency-Key"), buy(db))
	var people sync.WaitGroup
	var sold atomic.Int64
	for i := range 20 {
		people.Go(func() {
			order := httptest.NewRequest(http.MethodPost, "/units", nil)
			order.Header.Set("Authorization", fmt.Sprint("Bearer buyer ", i))
			order.Header.Set("Idempotency-Key", `"once"`)
			answer := httptest.NewRecorder()
			r.ServeHTTP(answer, order)
			if answer.Code == http.StatusCreated {
				sold.Add(1)
			}
		})
	}
	people.Wait()
	var orders int64
	if err := db.Model(&Order{}).Count(&orders).Error; err != nil {
		return err
	}
	fmt.Fprintf(out, "%d of 5 units sold, %d orders\n", sold.Load(), orders)
	if sold.Load() != 5 || orders != 5 {
		return errors.New("the books are wrong")
	}
	return nil
}

// byHand does a job in one process at a time.
func byHand(out io.Writer, locker *core.Locker) error {
	return locker.Do(context.Background(), "report:2026-11", func(ctx context.Context) error { // ctx ends if the lock is lost
		return report(ctx, out)
	})
}

func report(_ context.Context, out io.Writer) error {
	_, err := fmt.Fprintln(out, "the report was written by one process")
	return err
}
