package grpclock_test

import (
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/grpclock/internal/testpb"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// TestDefaultFate_Unimplemented: a server that lacks the method did nothing. A retry runs after the
// deployment of the method.
func TestDefaultFate_Unimplemented(t *testing.T) {
	t.Parallel()
	i := grpc.UnaryInterceptor(grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(testutil.Locker(t))))
	old := serveWith(t, func(r grpc.ServiceRegistrar) { testpb.RegisterOrdersServer(r, testpb.UnimplementedOrdersServer{}) }, i)
	if a := old.create("k", &request{OrderId: "7"}); status.Code(a.err) != codes.Unimplemented {
		t.Errorf("the old server: %v", a.err)
	}
	var runs atomic.Int64
	serve(t, &orders{handle: counter(&runs)}, i).create("k", &request{OrderId: "7"}).want(t, 1, false)
}
