package grpclock_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

func TestLockByKey_BytesAreHexadecimal(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	s := serve(t, &orders{handle: func(context.Context, *request) (*order, error) {
		for key, want := range map[string]core.Status{"seat:412d3137": core.Held, "seat:A-17": core.Free} {
			if st, err := l.Inspect(context.Background(), key); err != nil || st.Status != want {
				t.Errorf("%q: %v, %v; want %v", key, st.Status, err, want)
			}
		}
		return &order{}, nil
	}}, grpc.UnaryInterceptor(grpclock.LockByKey("seat:{req.blob}", idempotency.WithLocker(l))))
	ask(t.Context(), s.Create, &request{Blob: []byte("A-17")}).want(t, 0, false)
}
