package idempotency_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// saga books a seat: charge, seat, and the refund if there is no seat. Each effect is a Step. decide
// takes the seat.
func saga(t *testing.T, decide func(ctx context.Context, take func() bool) bool) (booked, paid int) {
	t.Helper()
	seats := 0
	h := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(longLocker(t, testutil.Memory())),
		idempotency.Principal(anyone))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pay := func(name string, n int) {
			_, err := idempotency.Step(r.Context(), name, func(context.Context) (bool, error) {
				paid += n
				return true, nil
			})
			must(t, err)
		}
		pay("charge", 1)
		if !decide(r.Context(), func() bool { seats--; return seats >= 0 }) {
			pay("refund", -1)
			w.WriteHeader(http.StatusConflict) // sold out, and nothing is left of what was done
			return
		}
		booked++
		w.WriteHeader(http.StatusCreated)
	}))
	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/book", strings.NewReader("{}"))
		r.Header.Set("Idempotency-Key", "k")
		h.ServeHTTP(httptest.NewRecorder(), r)
		seats = 1 // somebody cancels before the retry
	}
	return booked, paid
}

// The reason of the refund is the result of a step, as the docs say. So a later run ends in the same way.
func TestStep_ReasonOfUndoIsAStep(t *testing.T) {
	t.Parallel()
	booked, paid := saga(t, func(ctx context.Context, take func() bool) bool {
		got, err := idempotency.Step(ctx, "seat", func(context.Context) (bool, error) { return take(), nil })
		must(t, err)
		return got
	})
	if booked != 0 || paid != 0 {
		t.Errorf("%d seats are booked, and %d are paid for: want none", booked, paid)
	}
}
