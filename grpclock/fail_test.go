package grpclock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/internal/sqlerr"
	"github.com/onelane/onelane/internal/undone"
	"github.com/onelane/onelane/testutil"
)

func TestError_CodesAndFates(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t, core.WithTTL(3*time.Second))
	for name, c := range map[string]struct {
		err    error
		code   codes.Code
		reason string
		frees  bool
		retry  codes.Code // if it does not run
	}{
		"busy":        {&core.TakenError{Key: "stock:42"}, codes.Aborted, reasonLockBusy, true, 0},
		"unavailable": {undone.Mark(core.ErrUnavailable), codes.Unavailable, reasonLockUnavailable, true, 0},
		"rolled back": {undone.Mark(errors.New("bad connection")), codes.Aborted, strings.ToUpper(idempotency.CodeNothingDone), true, 0},
		"COMMIT":      {sqlerr.ErrCommitUnknown, codes.FailedPrecondition, reasonOutcomeUnknown, false, codes.FailedPrecondition},
		"lost":        {core.ErrLost, codes.Aborted, reasonLockLost, false, codes.FailedPrecondition},
		"other":       {errors.New("no such order"), codes.Unknown, "", false, codes.Unknown},
		"a status":    {status.Error(codes.NotFound, "no such order"), codes.NotFound, "", false, codes.NotFound},
		"another's":   {status.Error(codes.Unavailable, "connection reset"), codes.Unavailable, "", false, codes.FailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			s := once(t, func(context.Context, *request) (*order, error) {
				runs.Add(1)
				return nil, grpclock.Error(c.err)
			}, idempotency.WithLocker(l))
			first := s.create(name, &request{})
			if status.Code(first.err) != c.code || first.reason() != c.reason {
				t.Fatalf("got %v (%s), want %v (%s)", first.err, first.reason(), c.code, c.reason)
			}
			waits := false
			for _, d := range status.Convert(first.err).Details() {
				_, info := d.(*errdetails.RetryInfo)
				waits = waits || info
			}
			if waits != c.frees {
				t.Errorf("RetryInfo: %v", waits)
			}
			var again answer
			for end := time.Now().Add(check.Patience); ; time.Sleep(5 * time.Millisecond) {
				if again = s.create(name, &request{}); again.reason() != reasonInFlight || time.Now().After(end) {
					break
				}
			}
			if c.frees != (runs.Load() == 2) || !c.frees && status.Code(again.err) != c.retry {
				t.Errorf("%d runs, and the retry gets %v", runs.Load(), again.err)
			}
		})
	}
	if grpclock.Error(nil) != nil {
		t.Error("nil is an error")
	}
}
