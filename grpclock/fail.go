package grpclock

import (
	"context"
	"log/slog"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/claim"
)

// Error returns what a handler returns that failed with err and did nothing else:
//
//	order, err := s.sell(ctx, r)
//	return order, grpclock.Error(err)
//
// A lock that was not acquired and a transaction that is certainly rolled back become Aborted or
// Unavailable, with RetryInfo. The key is free then and a retry runs. If the outcome of COMMIT is
// unknown or a lock was lost, the outcome is unknown to a retry. Any other error is returned as it
// is, and so is nil. [idempotency.Fail] has the rules. Return the result itself: if an error wraps
// it, only that error's code counts.
func Error(err error) error {
	if err == nil {
		return nil
	}
	code, fate := claim.Failure(err)
	grpcCode, ok := grpcCodes[code]
	if !ok || fate == claim.Keep {
		return err
	}
	slog.Default().Log(context.Background(), claim.FailureLevel(code), "grpclock: the handler failed", "code", code, "error", err)
	p := idempotency.RefusalOf(code)
	if code == idempotency.CodeOutcomeUnknown {
		p.Title = "The outcome of the call is unknown"
	}
	refused := refusalOf(grpcCode, p)
	if r, ok := refused.(*refusal); ok {
		r.fate = fate
	}
	return refused
}
