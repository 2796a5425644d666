package grpclock_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
)

func TestLockByKey_OrphanedKey(t *testing.T) {
	t.Parallel()
	l, err := core.New(backendtest.Memory())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	s := serve(t, &orders{handle: func(context.Context, *request) (*order, error) { return &order{Run: 1}, nil }},
		grpc.UnaryInterceptor(grpclock.LockByKey("order:{req.order_id}", idempotency.FailOpen(), idempotency.WithLocker(l))))
	create := func() answer { return ask(t.Context(), s.Create, &request{OrderId: "1"}) }
	check.Orphan(t, l, "order:1")
	a := create()
	a.wantRefusal(t, codes.FailedPrecondition, reasonOutcomeUnknown)
	if pushback := a.trailer.Get("grpc-retry-pushback-ms"); len(pushback) > 0 {
		t.Errorf("grpc-retry-pushback-ms is %q; want a refusal that is not retryable", pushback)
	}
	if err := l.Unseal(t.Context(), "order:1"); err != nil {
		t.Fatal(err)
	}
	create().want(t, 1, false)
}
