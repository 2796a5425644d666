package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
)

// A consumer of a queue charges an order once, however often its message comes.
func ExampleDo() {
	locker := exampleLocker()
	defer locker.Close()
	type charge struct{ ID, State string }
	// consume handles a message, and reports whether to acknowledge it.
	consume := func(order, body string) (ack bool) {
		c, err := idempotency.Do(context.Background(), locker, core.Join("charge", order), func(ctx context.Context) (charge, error) {
			key, err := idempotency.DeriveKey(ctx, "charge") // for the provider: the same in every run
			if err != nil {
				return charge{}, fmt.Errorf("%w: %w", idempotency.ErrNothingDone, err)
			}
			fmt.Println("the provider gets", len(key), "letters and", body)
			return charge{"c1", "paid"}, nil
		}, idempotency.Retain(14*24*time.Hour), idempotency.Payload([]byte(body)), idempotency.MaxRun(time.Minute), idempotency.MaxBody(10<<10))
		switch {
		case err == nil, errors.Is(err, idempotency.ErrNotKept):
			fmt.Println("acknowledge", c.ID)
			return true
		case errors.Is(err, idempotency.ErrUnknown), errors.Is(err, idempotency.ErrMismatch), errors.Is(err, idempotency.ErrUnreadable):
			fmt.Println("a human must look: park the message")
			return true
		}
		fmt.Println("again later:", err)
		return false
	}
	consume("42", "7 EUR")
	consume("42", "7 EUR")
	consume("42", "9 EUR")
	// Output:
	// the provider gets 32 letters and 7 EUR
	// acknowledge c1
	// acknowledge c1
	// a human must look: park the message
}

// A provider sends a webhook again until it gets a 200. The payment names the effect, and not the
// event, because several events report one payment.
func ExampleDo_webhook() {
	locker := exampleLocker()
	defer locker.Close()
	webhook := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := idempotency.Do(r.Context(), locker, core.Join("credit", r.PathValue("payment")), func(context.Context) (struct{}, error) {
			fmt.Println("credited", r.PathValue("payment"))
			return struct{}{}, nil
		}, idempotency.Retain(30*24*time.Hour), idempotency.Wait(5*time.Second))
		switch {
		case err == nil, errors.Is(err, idempotency.ErrNotKept):
			_, _ = io.WriteString(w, "success")
		case errors.Is(err, idempotency.ErrUnknown):
			http.Error(w, "a human must look", http.StatusInternalServerError)
		default:
			http.Error(w, "later", http.StatusServiceUnavailable)
		}
	})
	mux := http.NewServeMux()
	mux.Handle("POST /events/{payment}", webhook)
	for range 2 {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/events/p7", strings.NewReader("{}")))
		fmt.Println(w.Code, w.Body)
	}
	// Output:
	// credited p7
	// 200 success
	// 200 success
}

// A job asks the bank after a crash, instead of paying out again.
func ExampleRecoverWith() {
	locker := exampleLocker(core.WithTTL(50 * time.Millisecond)) // so that the example does not wait for long
	defer locker.Close()
	bank := map[string]string{}
	payOut := func(day string, dies bool) (string, error) {
		return idempotency.Do(context.Background(), locker, core.Join("payout", day), func(ctx context.Context) (string, error) {
			bank[day] = "transfer 1"
			if dies {
				return "", errors.New("the bank did not answer")
			}
			return bank[day], nil
		}, idempotency.Retain(365*24*time.Hour), idempotency.Wait(time.Minute), idempotency.RecoverWith(
			func(_ context.Context, earlier idempotency.Run) (string, idempotency.Recovery, error) {
				if id, ok := bank[day]; ok {
					return id, idempotency.Answered, nil
				}
				return "", idempotency.RunHandler, nil
			}))
	}
	_, err := payOut("2026-11-28", true)
	var unknown *idempotency.UnknownError
	fmt.Println(errors.As(err, &unknown), unknown.Err)
	fmt.Println(payOut("2026-11-28", false))
	// Output:
	// true the bank did not answer
	// transfer 1 <nil>
}
