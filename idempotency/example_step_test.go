package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/onelane/onelane/idempotency"
)

// sendKey sends a payment with a key to a handler, again as long as the first one runs.
func sendKey(h http.Handler, key string) {
	for {
		r := httptest.NewRequest(http.MethodPost, "/pay", strings.NewReader(`{"cents":700}`))
		r.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Header().Get("Retry-After") != "" && w.Code == http.StatusConflict {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		body, _ := io.ReadAll(w.Body)
		fmt.Println(w.Code, strings.TrimSpace(string(body)))
		return
	}
}

func anyone(*http.Request) string { return "ann" }

// A handler that runs again skips the steps that are done.
func ExampleStep() {
	locker := exampleLocker()
	defer locker.Close()
	protect := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(locker), idempotency.Principal(anyone))
	mailServerBusy := true
	pay := protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		receipt, err := idempotency.Step(r.Context(), "charge", func(context.Context) (string, error) {
			fmt.Println("charged")
			return "receipt 1", nil
		})
		if err == nil {
			_, err = idempotency.Step(r.Context(), "mail", func(context.Context) (bool, error) {
				if mailServerBusy {
					mailServerBusy = false
					return false, fmt.Errorf("the mail server is busy: %w", idempotency.ErrNothingDone)
				}
				return true, nil
			})
		}
		switch {
		case errors.Is(err, idempotency.ErrNothingDone):
			http.Error(w, err.Error(), http.StatusTooManyRequests) // frees the key
		case err != nil:
			http.Error(w, err.Error(), http.StatusGatewayTimeout) // nobody knows: a 500 would be recorded as the answer
		default:
			_, _ = io.WriteString(w, receipt)
		}
	}))
	sendKey(pay, "k1")
	sendKey(pay, "k1")
	// Output:
	// charged
	// 429 the mail server is busy: nothing was done
	// 200 receipt 1
}

func ExampleTransport() {
	var keys []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if keys = append(keys, r.Header.Get("Idempotency-Key")); len(keys) == 1 {
			panic(http.ErrAbortHandler) // the answer is lost
		}
		w.WriteHeader(http.StatusCreated)
	}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	defer server.Close()
	client := &http.Client{Transport: &idempotency.Transport{}}
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

// A job that may be restarted stores its key before the first attempt. After a crash it sends the
// payment with the stored key, and the server recognises it.
func ExampleContextWithKey() {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Header.Get("X-Request-Key"))
	}))
	defer server.Close()
	client := &http.Client{Transport: &idempotency.Transport{
		Header:        "X-Request-Key",
		Attempts:      6,
		Timeout:       5 * time.Second,
		RetryStatuses: []int{http.StatusBadGateway}, // of a gateway before a server that keeps its keys
		OnKey: func(_ *http.Request, key string) error {
			fmt.Println("store", key)
			return nil
		},
	}}
	defer client.CloseIdleConnections()
	ctx := idempotency.ContextWithKey(context.Background(), "payment-7") // or rand.Text()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader(`{"cents":700}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	resp, err := client.Do(r)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	// Output:
	// store payment-7
	// "payment-7"
}
