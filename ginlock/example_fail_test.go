package ginlock_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

func ExampleFail() {
	locker, err := core.New(backendtest.Memory()) // redisbackend.New(redisClient) in a service
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locker.Close()
	work := func(context.Context) error { return nil }
	r := gin.New()
	r.POST("/units", func(c *gin.Context) {
		err := locker.Do(c.Request.Context(), "stock:42", work, core.WithWait(10*time.Millisecond))
		if err != nil {
			ginlock.Fail(c, err)
			return
		}
		c.Status(http.StatusCreated)
	})
	lock, _ := locker.Acquire(context.Background(), "stock:42") // by somebody else
	defer lock.Release(context.Background())
	w := httptest.NewRecorder()
	r.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/units", nil))
	fmt.Println(w.Code, w.Header().Get("Retry-After"))
	// Output: 409 1
}
