package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
)

// A handler that did nothing but fail leaves the rest to Fail. A busy lock frees the key.
func ExampleFail() {
	locker := exampleLocker()
	defer locker.Close()
	errSoldOut := errors.New("sold out")
	once := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(locker),
		idempotency.Principal(func(r *http.Request) string { return r.Header.Get("X-User") }))
	shop := once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := locker.Do(r.Context(), "stock:42", sell, core.WithWait(10*time.Millisecond))
		switch {
		case errors.Is(err, errSoldOut): // what clients should learn comes first
			http.Error(w, "sold out", http.StatusGone)
		case err != nil:
			idempotency.Fail(w, r, err)
		default:
			w.WriteHeader(http.StatusCreated)
		}
	}))
	lock, _ := locker.Acquire(context.Background(), "stock:42") // by somebody else
	first := send(shop, "", "X-User: ann", "Idempotency-Key: k1")
	fmt.Println(code(first), "again after", first.Header().Get("Retry-After"))
	_ = lock.Release(context.Background())
	fmt.Println(code(send(shop, "", "X-User: ann", "Idempotency-Key: k1")))
	// Output:
	// 409 lock_busy again after 1
	// 201
}

func sell(context.Context) error { return nil }
