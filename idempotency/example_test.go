package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

func Example() {
	locker, err := core.New(testutil.Memory()) // redisbackend.New(redisClient) in a service
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locker.Close()
	claims := idempotency.New(locker)

	pay := func(ctx context.Context, key, payload string) string {
		fp := idempotency.Fingerprint{Payload: idempotency.Digest([]byte(payload))}
		out, err := claims.Begin(ctx, core.Join("ann", "pay", key), fp)
		switch {
		case errors.Is(err, idempotency.ErrMismatch):
			return "another payment has this key"
		case err != nil:
			return "try later: " + err.Error()
		case out.Replay != nil:
			return "as before: " + string(out.Replay.Body)
		}
		defer out.Claim.Abandon(ctx) // leaves alone what was completed
		answer := "paid " + payload  // the work, under out.Claim.Context()
		if err := out.Claim.Complete(ctx, &idempotency.Record{Status: 200, Body: []byte(answer)}); err != nil {
			return "not recorded: " + err.Error()
		}
		return answer
	}

	ctx := context.Background()
	fmt.Println(pay(ctx, "k1", "7 EUR"))
	fmt.Println(pay(ctx, "k1", "7 EUR"))
	fmt.Println(pay(ctx, "k1", "8 EUR"))
	// Output:
	// paid 7 EUR
	// as before: paid 7 EUR
	// another payment has this key
}

func ExampleNewTransport() {
	var keys []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if keys = append(keys, r.Header.Get("Idempotency-Key")); len(keys) == 1 {
			panic(http.ErrAbortHandler) // the answer is lost
		}
		w.WriteHeader(http.StatusCreated)
	}))
	defer server.Close()
	client := &http.Client{Transport: idempotency.NewTransport(http.DefaultTransport)}
	defer client.CloseIdleConnections()
	resp, err := client.Post(server.URL, "application/json", strings.NewReader(`{"cents":700}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode, len(keys), keys[0] == keys[1])
	// Output: 201 2 true
}
