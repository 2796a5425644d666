package ginlock_test

import (
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

func Example() {
	locker, err := core.New(backendtest.Memory()) // redisbackend.New(redisClient) in a service
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locker.Close()
	core.SetDefault(locker)
	defer core.SetDefault(nil)

	r := gin.New()
	r.Use(ginlock.ByHeader("Idempotency-Key"))
	orders := 0
	r.POST("/orders", func(c *gin.Context) {
		orders++
		c.JSON(http.StatusCreated, gin.H{"order": orders})
	})
	r.POST("/orders/:id/grab", ginlock.LockByKey("order:{param.id}"), func(c *gin.Context) {
		c.String(http.StatusOK, "grabbed %s", c.Param("id")) // one at a time per order
	})

	send := func(path, key string) {
		req := httptest.NewRequest(http.MethodPost, path, nil)
		req.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		r.ServeHTTP(w, req)
		fmt.Println(w.Code, w.Body, w.Header()["Idempotency-Replayed"])
	}
	send("/orders", "k1")
	send("/orders", "k1")
	send("/orders", "k2")
	send("/orders/7/grab", "k3")
	// Output:
	// 201 {"order":1} []
	// 201 {"order":1} [true]
	// 201 {"order":2} []
	// 200 grabbed 7 []
}

func ExampleRefuseRepeats() {
	locker, err := core.New(backendtest.Memory()) // redisbackend.New(redisClient) in a service
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locker.Close()
	r := gin.New()
	r.POST("/comments", ginlock.RefuseRepeats(3*time.Second, idempotency.WithLocker(locker)), func(c *gin.Context) {
		c.Redirect(http.StatusSeeOther, "/comments")
	})
	for _, text := range []string{"text=hello", "text=hello", "text=bye"} { // the second is a double click
		req := httptest.NewRequest(http.MethodPost, "/comments", strings.NewReader(text))
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		r.ServeHTTP(w, req)
		fmt.Println(w.Code)
	}
	// Output:
	// 303
	// 409
	// 303
}
