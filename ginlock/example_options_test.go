package ginlock_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
)

// One middleware for all routes, and what is different on one of them.
func ExampleRoute() {
	locker := exampleLocker()
	defer locker.Close()
	r := gin.New()
	r.Use(ginlock.ByHeader("Idempotency-Key", ginlock.WithLocker(locker),
		ginlock.Route("POST /payments",
			ginlock.Require(),
			ginlock.Retain(7*24*time.Hour),
			ginlock.MaxRequestBody(16<<10))))
	r.POST("/comments", func(c *gin.Context) { c.Status(http.StatusCreated) })
	r.POST("/payments", func(c *gin.Context) { c.Status(http.StatusCreated) })

	fmt.Println(code(send(r, "POST", "/comments", "hello")))
	fmt.Println(code(send(r, "POST", "/payments", "{}")))
	fmt.Println(code(send(r, "POST", "/payments", strings.Repeat("x", 20<<10), "Idempotency-Key: k1")))
	// Output:
	// 201
	// 400 idempotency_key_missing
	// 413 request_too_large
}

// Only what changes an order locks it.
func ExampleMethods() {
	locker := exampleLocker()
	defer locker.Close()
	r := gin.New()
	locked := func(c *gin.Context) {
		_, unlocked := ginlock.Token(c)
		fmt.Println(c.Request.Method, unlocked == nil)
	}
	orders := r.Group("/orders/:id", ginlock.ByParam("id", ginlock.LockOnly(), ginlock.Methods("PUT", "DELETE"), ginlock.WithLocker(locker)))
	orders.GET("", locked)
	orders.PUT("", locked)
	send(r, "GET", "/orders/7", "")
	send(r, "PUT", "/orders/7", "{}")
	// Output:
	// GET false
	// PUT true
}

// Who comes second waits until the first is done.
func ExampleWait() {
	locker := exampleLocker()
	defer locker.Close()
	r := gin.New()
	var second sync.WaitGroup
	r.POST("/orders/:id/grab", ginlock.ByParam("id", ginlock.LockOnly(), ginlock.Wait(5*time.Second), ginlock.WithLocker(locker)), func(c *gin.Context) {
		user := c.GetHeader("X-User")
		fmt.Println(user, "grabs")
		if user == "ann" {
			second.Go(func() { send(r, "POST", "/orders/7/grab", "", "X-User: ben") })
			time.Sleep(20 * time.Millisecond)
		}
		fmt.Println(user, "is done")
	})
	send(r, "POST", "/orders/7/grab", "", "X-User: ann")
	second.Wait()
	// Output:
	// ann grabs
	// ann is done
	// ben grabs
	// ben is done
}

// A card that was declined may be tried again with the same key.
func ExampleRecordIf() {
	locker := exampleLocker()
	defer locker.Close()
	r := gin.New()
	answers := []int{http.StatusPaymentRequired, http.StatusCreated}
	r.POST("/payments", ginlock.ByHeader("Idempotency-Key", ginlock.WithLocker(locker), ginlock.RecordIf(func(status int) bool {
		return status < 500 && status != http.StatusPaymentRequired
	})), func(c *gin.Context) {
		c.Status(answers[0])
		answers = answers[1:]
	})
	for range 3 {
		fmt.Println(code(send(r, "POST", "/payments", "{}", "Idempotency-Key: k1")))
	}
	// Output:
	// 402
	// 201
	// 201
}

// This client writes the time into each try: what makes it the same payment is the amount.
func ExampleFingerprint() {
	locker := exampleLocker()
	defer locker.Close()
	r := gin.New()
	amount := func(_ *gin.Context, body []byte) []byte {
		var payment struct{ Cents int }
		_ = json.Unmarshal(body, &payment) // a body that is no JSON has no amount: the handler refuses it
		return fmt.Append(nil, payment.Cents)
	}
	r.POST("/payments", ginlock.ByHeader("Idempotency-Key", ginlock.Fingerprint(amount), ginlock.WithLocker(locker)), func(c *gin.Context) {
		c.Status(http.StatusCreated)
	})
	fmt.Println(code(send(r, "POST", "/payments", `{"cents":700,"sent":"10:00"}`, "Idempotency-Key: k1")))
	fmt.Println(code(send(r, "POST", "/payments", `{"cents":700,"sent":"10:01"}`, "Idempotency-Key: k1")))
	fmt.Println(code(send(r, "POST", "/payments", `{"cents":900,"sent":"10:02"}`, "Idempotency-Key: k1")))
	// Output:
	// 201
	// 201
	// 422 idempotency_key_reused
}

// A header of the application belongs to the answer, and is replayed with it.
func ExampleHeaders() {
	locker := exampleLocker()
	defer locker.Close()
	r := gin.New()
	r.POST("/orders", ginlock.ByHeader("Idempotency-Key", ginlock.Headers("X-Order-Number"), ginlock.WithLocker(locker)), func(c *gin.Context) {
		c.Header("X-Order-Number", "7")
		c.Status(http.StatusCreated)
	})
	for range 2 {
		h := send(r, "POST", "/orders", "{}", "Idempotency-Key: k1").Header()
		fmt.Printf("%q %q\n", h.Get("X-Order-Number"), h.Get("Idempotency-Replayed"))
	}
	// Output:
	// "7" ""
	// "7" "true"
}

// An answer that is too large to be kept is sent; a retry is told that it ran.
func ExampleMaxBody() {
	locker := exampleLocker()
	defer locker.Close()
	r := gin.New()
	r.POST("/export", ginlock.ByHeader("Idempotency-Key", ginlock.MaxBody(1<<10), ginlock.WithLocker(locker)), func(c *gin.Context) {
		c.String(http.StatusOK, strings.Repeat("x", 4<<10))
	})
	fmt.Println(send(r, "POST", "/export", "", "Idempotency-Key: k1").Body.Len())
	fmt.Println(code(send(r, "POST", "/export", "", "Idempotency-Key: k1")))
	// Output:
	// 4096
	// 409 idempotency_response_not_kept
}

// Answers have what customers bought: in Redis they are encrypted.
func ExampleRecords() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	locker, err := core.New(redisbackend.New(client))
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	block, err := aes.NewCipher(bytes.Repeat([]byte{1}, 32)) // a service reads its key from where its secrets are
	if err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	r := gin.New()
	r.POST("/orders", ginlock.ByHeader("Idempotency-Key", ginlock.WithLocker(locker), ginlock.Records(
		idempotency.WithEncryption(idempotency.EncryptionKey{ID: "2025", AEAD: aead}),
		idempotency.WithCompression(1<<10),
	)), func(c *gin.Context) {
		c.String(http.StatusCreated, "a book about roses")
	})
	for range 2 {
		fmt.Println(send(r, "POST", "/orders", "{}", "Idempotency-Key: k1").Body)
	}
	readable := false
	for _, key := range server.Keys() {
		value, _ := server.Get(key)
		readable = readable || strings.Contains(value, "roses")
	}
	fmt.Println("readable in Redis:", readable)
	// Output:
	// a book about roses
	// a book about roses
	// readable in Redis: false
}

// When Redis is down, comments are taken and payments are not.
func ExampleFailOpen() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1})
	defer client.Close()
	locker, err := core.New(redisbackend.New(client))
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	server.Close() // Redis is down

	r := gin.New()
	done := func(c *gin.Context) { c.Status(http.StatusCreated) }
	r.POST("/payments", ginlock.ByHeader("Idempotency-Key", ginlock.WithLocker(locker)), done)
	r.POST("/comments", ginlock.ByHeader("Idempotency-Key", ginlock.WithLocker(locker), ginlock.FailOpen()), done)
	fmt.Println(code(send(r, "POST", "/payments", "{}", "Idempotency-Key: k1")))
	fmt.Println(code(send(r, "POST", "/comments", "{}", "Idempotency-Key: k1")))
	// Output:
	// 503 lock_unavailable
	// 201
}

// Two routes, the old and the new one, make the same orders: a key that was used on one is used.
func ExampleSpace() {
	locker := exampleLocker()
	defer locker.Close()
	r := gin.New()
	r.Use(ginlock.ByHeader("Idempotency-Key", ginlock.Space("orders"), ginlock.WithLocker(locker)))
	order := func(c *gin.Context) { c.Status(http.StatusCreated) }
	r.POST("/v1/orders", order)
	r.POST("/v2/orders", order)
	fmt.Println(code(send(r, "POST", "/v1/orders", "{}", "Idempotency-Key: k1")))
	fmt.Println(code(send(r, "POST", "/v2/orders", "{}", "Idempotency-Key: k1")))
	// Output:
	// 201
	// 422 idempotency_key_reused
}

// Refusals look as all errors of this shop do.
func ExampleWithProblemWriter() {
	locker := exampleLocker()
	defer locker.Close()
	r := gin.New()
	r.POST("/payments", ginlock.ByHeader("Idempotency-Key", ginlock.Require(), ginlock.WithLocker(locker),
		ginlock.WithProblemWriter(func(c *gin.Context, p ginlock.Problem) {
			c.JSON(p.Status, gin.H{"error": p.Code, "again": p.Retryable})
		}),
	), func(c *gin.Context) {
		c.Status(http.StatusCreated)
	})
	fmt.Println(send(r, "POST", "/payments", "{}").Body)
	// Output: {"again":false,"error":"idempotency_key_missing"}
}
