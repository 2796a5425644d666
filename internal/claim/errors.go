package claim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/onelane/onelane/core"
)

var (
	// ErrInFlight means that the first request with the key is running.
	ErrInFlight = errors.New("idempotency: a request with this key is running; try again later, or set Wait")
	// ErrMismatch means that the key belongs to another request.
	ErrMismatch = errors.New("idempotency: the key belongs to another request; send a new key")
	// ErrCredentials matches ErrMismatch, and means that the credentials differ. Whether the payload
	// differs too stays hidden: a stranger must not be able to guess at it.
	ErrCredentials = fmt.Errorf("%w: the credentials differ", ErrMismatch)
	// ErrRecord means that the value under a key is no record that this version can read.
	ErrRecord = errors.New("idempotency: the record cannot be read")
	// ErrUnknown means that nobody knows what the first request did. See [UnknownError].
	ErrUnknown = errors.New("idempotency: the outcome of an earlier request is unknown")
	// ErrOver means that the claim has ended.
	ErrOver = errors.New("idempotency: the claim has ended; begin another one")
)

// MismatchError means that the key belongs to a request that differs in a part. It matches
// [ErrMismatch].
type MismatchError struct {
	// Part is host, method, path, query, headers or body.
	Part string
}

// Error names the part, and no value.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("idempotency: the key belongs to another request, whose %s differs; send a new key", e.Part)
}

// Is makes the error match [ErrMismatch].
func (e *MismatchError) Is(target error) bool { return target == ErrMismatch }

// Differs returns the part in which a refused request differs from the first one, or "".
func Differs(err error) string {
	if e, ok := errors.AsType[*MismatchError](err); ok {
		return e.Part
	}
	return ""
}

// Run describes one run of a request.
type Run struct {
	// Begun is when the run began, by the clock of its instance. It is zero if that is not known.
	Begun time.Time
	// Instance names the process, as [core.WithInstance] set it.
	Instance string
	// RequestID is the request's id, or empty.
	RequestID string
}

// UnknownError means that an earlier run of the request ended without an answer. The process of
// that run died, its claim was lost, or its handler panicked or ran into a time-out. It matches
// [ErrUnknown].
type UnknownError struct {
	// Key is that of the lock, which onelanectl takes.
	Key string
	// Run is the run whose outcome is unknown.
	Run Run
	// Since is when its claim ended.
	Since time.Time

	orphan *core.OrphanedError
}

// Error names the key, the run and what an operator can do.
func (e *UnknownError) Error() string {
	return fmt.Sprintf("idempotency: key %q: the outcome of the run on %s, which ended at %s, is unknown: "+
		"find out what it did; if it did nothing, onelanectl unseal lets the next retry run", e.Key, e.Run.Instance, e.Since.Format(time.RFC3339))
}

// Is makes the error match [ErrUnknown].
func (e *UnknownError) Is(target error) bool { return target == ErrUnknown }

// Unwrap returns the [*core.OrphanedError].
func (e *UnknownError) Unwrap() error { return e.orphan }

// CodeOf returns the code of package idempotency for a request that got no claim and no lock
// because of err. loud reports whether an operator should know.
func CodeOf(err error) (code string, loud bool) {
	switch {
	case errors.Is(err, ErrCredentials):
		return "idempotency_credentials_changed", false
	case errors.Is(err, ErrMismatch):
		return "idempotency_key_reused", false
	case errors.Is(err, ErrInFlight):
		return "idempotency_in_flight", false
	case errors.Is(err, ErrUnknown), errors.Is(err, core.ErrOrphaned):
		return "idempotency_outcome_unknown", true
	case errors.Is(err, ErrRecord):
		return "idempotency_response_not_kept", true
	case errors.Is(err, core.ErrNoSeals):
		return "misconfigured", true
	case errors.Is(err, core.ErrTaken):
		return "lock_busy", false
	case errors.Is(err, core.ErrSealed):
		return "lock_sealed", false
	}
	clientGone := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	return "lock_unavailable", !clientGone
}

// ranCodes are the refusals that say that a handler has run, or is running.
var ranCodes = []string{
	"idempotency_in_flight", "idempotency_outcome_unknown", "idempotency_response_not_kept", "idempotency_key_reused",
	"idempotency_credentials_changed", "duplicate_submit", "lock_lost",
}

// MayHaveRun reports whether a refusal with this code says that a handler has run, or is running.
// The refusal may be another server's that a handler passes on.
func MayHaveRun(code string) bool { return slices.Contains(ranCodes, code) }

// SaysRan reports whether an answer, in whatever format, has the code of such a refusal.
func SaysRan(body []byte) bool {
	return slices.ContainsFunc(ranCodes, func(code string) bool { return bytes.Contains(body, []byte(code)) })
}
