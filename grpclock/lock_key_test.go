package grpclock_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/keytext"
	"github.com/onelane/onelane/testutil"
)

// A value is short enough, and the key that is made of it is not: a colon takes three bytes there.
func TestLockByKey_RefusedByTheLocker(t *testing.T) {
	t.Parallel()
	lock := grpclock.LockByKey("{metadata.x-a}", idempotency.WithLocker(testutil.Locker(t)))
	s := serve(t, &orders{}, grpc.UnaryInterceptor(lock))
	a := s.create("k", &request{}, "x-a", strings.Repeat(":", 255))
	if status.Code(a.err) != codes.InvalidArgument || !strings.Contains(a.err.Error(), keytext.LockRefused) {
		t.Error(a.err)
	}
}
