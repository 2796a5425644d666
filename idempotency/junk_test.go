package idempotency_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

func byUser(r *http.Request) string { return r.Header.Get("X-User") }

// keys are the keys in a node.
func keys(t testing.TB, n *testutil.Node) []string {
	t.Helper()
	all, err := n.Client().Keys(context.Background(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Requests that are refused leave nothing behind, however many keys they have.
func TestJunkKeys_LeaveNothing(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	s := orders(t, lockerOn(t, n), func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusUnprocessableEntity)
	}, idempotency.MaxRequestBody(8))
	for i := range 20 {
		a := s.post(t.Context(), "/orders/7", nil, "Idempotency-Key", fmt.Sprint("rejected", i))
		a.want(t, 422, "", false)
	}
	s.order("", "Idempotency-Key", `"open`).refused(t, idempotency.CodeKeyInvalid)
	s.order("123456789").refused(t, idempotency.CodeRequestTooLarge)
	check.Eventually(t, "nothing is left", func() bool { return len(keys(t, n)) == 0 })
}
