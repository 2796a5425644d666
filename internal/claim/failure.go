package claim

import (
	"context"
	"errors"
	"log/slog"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/sqlerr"
	"github.com/onelane/onelane/internal/undone"
)

// ErrNothingDone is how a function says that it did nothing.
var ErrNothingDone = errors.New("nothing was done")

// NothingDone reports whether it is certain that nothing was done before err. That holds if a lock
// was not acquired, or if a transaction is rolled back.
func NothingDone(err error) bool {
	return errors.Is(err, ErrNothingDone) || undone.Certain(err, func(err error) bool {
		switch err.(type) {
		case *core.TakenError, *core.SealedError:
			return true
		}
		return err == ErrInFlight || sqlerr.ConflictItself(err)
	})
}

// The codes of [Failure] that no refusal has.
const (
	codeNothingDone = "nothing_done"
	codeFailed      = "failed"
	codeUnknown     = "idempotency_outcome_unknown"
	codeLost        = "lock_lost"
)

// Failure returns the code of package idempotency for the error of a handler, and what becomes of
// its key. With Keep, the error is one of the application.
func Failure(err error) (code string, f Fate) {
	switch {
	case errors.Is(err, sqlerr.ErrCommitUnknown), errors.Is(err, ErrUnknown), errors.Is(err, core.ErrOrphaned):
		return codeUnknown, Unknown
	case NothingDone(err):
		code = codeNothingDone
		switch {
		case errors.Is(err, core.ErrTaken), errors.Is(err, ErrInFlight):
			code = "lock_busy"
		case errors.Is(err, core.ErrSealed):
			code = "lock_sealed"
		case errors.Is(err, core.ErrUnavailable), errors.Is(err, core.ErrClosed):
			code = "lock_unavailable"
		}
		return code, Free
	case errors.Is(err, core.ErrLost):
		return codeLost, Unknown
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return codeUnknown, Unknown
	}
	return codeFailed, Keep
}

// FailureLevel returns the level at which the error of a handler is logged. Clients do not see it.
func FailureLevel(code string) slog.Level {
	switch code {
	case "lock_busy", "lock_sealed":
		return slog.LevelDebug
	case codeNothingDone, "lock_unavailable":
		return slog.LevelWarn
	}
	return slog.LevelError
}
