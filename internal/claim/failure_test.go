package claim_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/internal/sqlerr"
	"github.com/onelane/onelane/internal/undone"
)

func TestFailure_Table(t *testing.T) {
	t.Parallel()
	taken := &core.TakenError{Key: "k"}
	down := &core.UnavailableError{Key: "k", Nodes: []error{errors.New("connection refused")}}
	deadlock := &mysql.MySQLError{Number: 1213}
	for name, c := range map[string]struct {
		err  error
		code string
		fate claim.Fate
	}{
		"taken":                {fmt.Errorf("guard: %w", taken), "lock_busy", claim.Free},
		"taken, and the wait":  {&core.TakenError{Cause: context.DeadlineExceeded}, "lock_busy", claim.Free},
		"sealed":               {&core.SealedError{Key: "k"}, "lock_sealed", claim.Free},
		"not acquired":         {undone.Mark(down), "lock_unavailable", claim.Free},
		"closed":               {undone.Mark(core.ErrClosed), "lock_unavailable", claim.Free},
		"rolled back":          {undone.Mark(errors.New("connection reset")), "nothing_done", claim.Free},
		"rolled back, lost":    {undone.Mark(core.ErrLost), "nothing_done", claim.Free},
		"deadlock":             {fmt.Errorf("sell: %w", deadlock), "nothing_done", claim.Free},
		"said so":              {fmt.Errorf("%w: %w", claim.ErrNothingDone, errors.New("x")), "nothing_done", claim.Free},
		"Do in flight":         {claim.ErrInFlight, "lock_busy", claim.Free},
		"taken and refund":     {errors.Join(taken, errors.New("the refund failed")), "failed", claim.Keep},
		"Release failed":       {down, "failed", claim.Keep},
		"a lock that closed":   {core.ErrClosed, "failed", claim.Keep},
		"COMMIT unknown":       {fmt.Errorf("%w: %w", sqlerr.ErrCommitUnknown, deadlock), "idempotency_outcome_unknown", claim.Unknown},
		"marked and unknown":   {undone.Mark(sqlerr.ErrCommitUnknown), "idempotency_outcome_unknown", claim.Unknown},
		"Do unknown":           {claim.ErrUnknown, "idempotency_outcome_unknown", claim.Unknown},
		"orphaned":             {&core.OrphanedError{Key: "k"}, "idempotency_outcome_unknown", claim.Unknown},
		"lost":                 {core.ErrLost, "lock_lost", claim.Unknown},
		"time out":             {fmt.Errorf("charge: %w", context.DeadlineExceeded), "idempotency_outcome_unknown", claim.Unknown},
		"constraint":           {&mysql.MySQLError{Number: 1062}, "failed", claim.Keep},
		"an application's own": {errors.New("no such order"), "failed", claim.Keep},
	} {
		if code, fate := claim.Failure(c.err); code != c.code || fate != c.fate {
			t.Errorf("%s: %s, fate %v; want %s, %v", name, code, fate, c.code, c.fate)
		}
	}
}
