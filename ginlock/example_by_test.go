package ginlock_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil/backendtest"
)

// exampleLocker is a Locker in memory; a service has core.New(redisbackend.New(redisClient)).
func exampleLocker() *core.Locker {
	locker, err := core.New(backendtest.Memory())
	if err != nil {
		panic(err)
	}
	return locker
}

// send sends r a request with a JSON body and these headers ("Name: value"), and returns what came back.
func send(r http.Handler, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	r.ServeHTTP(w, req)
	return w
}

// code is that of a refusal, or else the status alone.
func code(w *httptest.ResponseRecorder) string {
	if _, rest, found := strings.Cut(w.Body.String(), `"code":"`); found {
		code, _, _ := strings.Cut(rest, `"`)
		return fmt.Sprint(w.Code, " ", code)
	}
	return fmt.Sprint(w.Code)
}

// A payment is made once, however often its client sends it.
func ExampleByHeader() {
	locker := exampleLocker()
	defer locker.Close()
	r := gin.New()
	payments := 0
	r.POST("/payments", ginlock.ByHeader("Idempotency-Key",
		idempotency.Require(),              // no payment without a key
		idempotency.Retain(7*24*time.Hour), // for so long a retry gets the answer of the first
		ginlock.Principal(userOf),          // Ann's keys are not Ben's
		idempotency.WithLocker(locker),     // or core.SetDefault(locker), once
	), func(c *gin.Context) {
		payments++
		c.JSON(http.StatusCreated, gin.H{"payment": payments})
	})
	pay := func(body string, headers ...string) {
		fmt.Println(code(send(r, "POST", "/payments", body, headers...)), payments)
	}
	pay(`{"cents":700}`, "X-User: ann")
	pay(`{"cents":700}`, "X-User: ann", "Idempotency-Key: k1")
	pay(`{"cents":700}`, "X-User: ann", "Idempotency-Key: k1") // the retry
	pay(`{"cents":800}`, "X-User: ann", "Idempotency-Key: k1") // another payment
	pay(`{"cents":700}`, "X-User: ben", "Idempotency-Key: k1")
	// Output:
	// 400 idempotency_key_missing 0
	// 201 1
	// 201 1
	// 422 idempotency_key_reused 1
	// 201 2
}

// userOf is what authentication has found out. An example believes a header.
func userOf(c *gin.Context) string { return c.GetHeader("X-User") }

// Many drivers grab one order: one of them at a time.
func ExampleLockByKey() {
	locker := exampleLocker()
	defer locker.Close()
	r := gin.New()
	r.POST("/orders/:id/grab", ginlock.LockByKey("order:{param.id}", idempotency.WithLocker(locker)), func(c *gin.Context) {
		if c.GetHeader("X-User") == "ann" { // while Ann grabs it, Ben tries
			fmt.Println("ben:", code(send(r, "POST", "/orders/7/grab", "", "X-User: ben")))
			fmt.Println("ben, another order:", code(send(r, "POST", "/orders/8/grab", "", "X-User: ben")))
		}
		c.Status(http.StatusOK)
	})
	fmt.Println("ann:", code(send(r, "POST", "/orders/7/grab", "", "X-User: ann")))
	// Output:
	// ben: 409 lock_busy
	// ben, another order: 200
	// ann: 200
}

// A payment provider calls back with its event, and for three days again when it got no answer. The
// id stays the same, but the body has how many deliveries are pending.
func ExampleByKey() {
	locker := exampleLocker()
	defer locker.Close()
	r := gin.New()
	idAlone := func(*http.Request, []byte) []byte { return nil } // the rest may change
	once := ginlock.ByKey("{json.id}", idempotency.Fingerprint(idAlone), idempotency.Retain(7*24*time.Hour), idempotency.WithLocker(locker))
	r.POST("/webhook", once, func(c *gin.Context) {
		var event struct{ ID string }
		if err := c.ShouldBindJSON(&event); err != nil { // a real handler checks the signature first
			c.Status(http.StatusBadRequest)
			return
		}
		fmt.Println("booked", event.ID)
		c.Status(http.StatusNoContent) // a 500 would be recorded, and the event never be booked
	})
	for _, pending := range []int{2, 1} {
		fmt.Println(code(send(r, "POST", "/webhook", fmt.Sprintf(`{"id":"evt-1","pending_webhooks":%d}`, pending))))
	}
	// Output:
	// booked evt-1
	// 204
	// 204
}

// A function makes the key; "" means that the request has none and runs unprotected.
func ExampleBy() {
	locker := exampleLocker()
	defer locker.Close()
	batch := func(c *gin.Context) (string, error) { return c.GetHeader("X-Batch"), nil }
	r := gin.New()
	r.POST("/imports", ginlock.By(batch, idempotency.WithLocker(locker)), func(c *gin.Context) {
		fmt.Println("imported")
		c.Status(http.StatusNoContent)
	})
	for range 2 {
		fmt.Println(code(send(r, "POST", "/imports", "", "X-Batch: b1")))
	}
	// Output:
	// imported
	// 204
	// 204
}

// The key is what two headers say together; an error refuses the request.
func ExampleLockBy() {
	locker := exampleLocker()
	defer locker.Close()
	key := func(c *gin.Context) (string, error) {
		shop, number := c.GetHeader("X-Shop"), c.GetHeader("X-Order")
		if shop == "" || number == "" {
			return "", errors.New("an order has a shop and a number")
		}
		return core.Join("order", shop, number), nil // Join, since both come from outside
	}
	r := gin.New()
	r.POST("/pack", ginlock.LockBy(key, idempotency.WithLocker(locker)), func(c *gin.Context) {
		state, err := locker.Inspect(c, "order:berlin:7")
		fmt.Println(state.Status, err)
	})
	fmt.Println(code(send(r, "POST", "/pack", "", "X-Shop: berlin", "X-Order: 7")))
	fmt.Println(code(send(r, "POST", "/pack", "", "X-Shop: berlin")))
	// Output:
	// held <nil>
	// 200
	// 400 idempotency_key_invalid
}

// A middleware that was passed to Use too late is found when the server starts.
func ExampleCheck() {
	r := gin.New()
	r.POST("/orders", func(c *gin.Context) { c.Status(201) })
	r.Use(ginlock.ByHeader("Idempotency-Key"))
	r.POST("/refunds", func(c *gin.Context) { c.Status(201) })
	fmt.Println(ginlock.Check(r, "POST /orders", "POST /refunds"))
	// Output:
	// ginlock: POST /orders cannot be protected: no middleware of this package covers it: pass one to the route, or to Use before it
}
