package gormlock

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/onelane/onelane/internal/gormkeys"
	"github.com/onelane/onelane/internal/sqlerr"
)

// The errors of this package. Match them with [errors.Is]; the error that wraps them names the key
// and says what to do. A guard that does not get its lock returns core's errors: core.ErrTaken,
// core.ErrSealed, core.ErrUnavailable. If its lock ends too early, the error matches core.ErrLost.
var (
	// ErrNotRegistered reports a guard on a database without the plugin of [New].
	ErrNotRegistered = gormkeys.ErrNotRegistered
	// ErrDialect reports a kind of database that gormlock does not know. Its savepoints and the errors
	// that end a transaction may be others, so nothing could be guarded.
	ErrDialect = gormkeys.ErrDialect
	// ErrNoTransaction reports a call that needs an open transaction. Such a call is a guarded read,
	// a write of several rows with an optimistic.Version, [ForUpdate], [AfterCommit] or [SQLTx].
	ErrNoTransaction = gormkeys.ErrNoTransaction
	// ErrUnmanagedTransaction reports a guard in a transaction that did not begin through the plugin,
	// so that nothing would hold the lock until its COMMIT. It also reports a write of models with an
	// optimistic.Version there, as a rollback would leave their new versions in them.
	ErrUnmanagedTransaction = gormkeys.ErrUnmanagedTransaction
	// ErrGuardTooLate reports a guard after BEGIN, when the snapshot and other locks were taken.
	ErrGuardTooLate = errors.New("the guard comes too late")
	// ErrUnguarded reports a write to a table of [Protect] without a guard.
	ErrUnguarded = errors.New("the table is protected and no guard is held: write it in gormlock.Transaction, " +
		"under a context of gormlock.WithGuard, or after db.Scopes(gormlock.Guard(key))")
	// ErrCommitUnknown reports that COMMIT was sent and that its outcome is unknown. No answer came,
	// or the answer is not an error with which the database itself rolls back. The writes are there,
	// or they are not. If COMMIT had no answer, the key stays locked until its lease ends. A COMMIT
	// that is still on its way may even take effect later, beside the next holder, unless both are
	// [Fenced]. So find out by [Once] with the same key, or in a transaction with Fenced.
	ErrCommitUnknown = sqlerr.ErrCommitUnknown
	// ErrMismatch means that the key of [Once] is done already, with another [Fingerprint]
	// or, if [ClaimKey] made the key, for another request.
	ErrMismatch = errors.New("the key was used for something else")
	// ErrUnfinished means that a run of [Once] was committed in its middle, for example by DDL on
	// MySQL, and left no result. Nobody knows what it did, so it does not run again.
	ErrUnfinished = errors.New("an earlier run was committed without a result")
)

// guardError returns why the guard on keys failed.
func guardError(keys []string, why error) error { return &guardFailure{keys, why} }

// guardFailure builds its text when somebody reads it: a busy key makes many that nobody reads.
type guardFailure struct {
	keys []string
	why  error
}

func (e *guardFailure) Error() string {
	return "gormlock: guard " + quoted(e.keys) + ": " + e.why.Error()
}

func (e *guardFailure) Unwrap() error { return e.why }

func quoted(keys []string) string {
	var all []string
	for _, k := range keys {
		all = append(all, strconv.Quote(k))
	}
	return strings.Join(all, ", ")
}

// withoutOutcome hides the outcome of another transaction in err, which is from before a BEGIN. It
// may be the cause of the context: an errgroup cancels with the first error.
func withoutOutcome(err error) error {
	for _, outcome := range []error{ErrCommitUnknown, sqlerr.ErrInsufficient, sqlerr.ErrStale, ErrMismatch, ErrUnfinished} {
		if errors.Is(err, outcome) {
			return notBegunError{err}
		}
	}
	return err
}

// notBegunError matches the errors of contexts alone.
type notBegunError struct{ ended error }

func (e notBegunError) Error() string { return e.ended.Error() }
func (e notBegunError) Is(target error) bool {
	return (target == context.Canceled || target == context.DeadlineExceeded) && errors.Is(e.ended, target)
}
