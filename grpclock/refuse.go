package grpclock

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
)

// Domain is the domain of the google.rpc.ErrorInfo that comes with each refusal of this package.
const Domain = "onelane"

// The reasons in the ErrorInfo of a refusal. They are stable.
const (
	ReasonKeyMissing         = "IDEMPOTENCY_KEY_MISSING"         // InvalidArgument, see Require
	ReasonKeyInvalid         = "IDEMPOTENCY_KEY_INVALID"         // InvalidArgument
	ReasonKeyReused          = "IDEMPOTENCY_KEY_REUSED"          // FailedPrecondition: with another request
	ReasonCredentialsChanged = "IDEMPOTENCY_CREDENTIALS_CHANGED" // FailedPrecondition
	ReasonInFlight           = "IDEMPOTENCY_IN_FLIGHT"           // Aborted, or Unavailable with RetryInFlight: the first still runs
	ReasonResponseNotKept    = "IDEMPOTENCY_RESPONSE_NOT_KEPT"   // FailedPrecondition: it ran, and its answer was not recorded
	ReasonOtherTransport     = "IDEMPOTENCY_OTHER_TRANSPORT"     // FailedPrecondition: it came over HTTP, see Space
	ReasonLockBusy           = "LOCK_BUSY"                       // Aborted
	ReasonLockSealed         = "LOCK_SEALED"                     // FailedPrecondition: the application sealed the lock's key
	ReasonLockLost           = "LOCK_LOST"                       // Aborted: while the handler ran
	ReasonLockUnavailable    = "LOCK_UNAVAILABLE"                // Unavailable: Redis is down, or there is no Locker; FailedPrecondition: the key is orphaned
	ReasonPrincipalMissing   = "PRINCIPAL_MISSING"               // Unauthenticated: a key is made of {principal}
	ReasonMisconfigured      = "MISCONFIGURED"                   // Internal: a mistake in the program, which is logged
)

// soon is when to try again: most calls take less. When a lease ends would be too late: that is for those that died.
const soon = time.Second

// refusal is an answer of this package instead of the handler's.
type refusal struct {
	code   codes.Code
	reason string
	text   string
	retry  bool
}

var (
	refuseMissing     = refusal{codes.InvalidArgument, ReasonKeyMissing, "the idempotency key is missing", false}
	refuseInvalid     = refusal{codes.InvalidArgument, ReasonKeyInvalid, "the idempotency key is invalid", false}
	refuseReused      = refusal{codes.FailedPrecondition, ReasonKeyReused, "the idempotency key was used with another request: send a new request with a new key, or a retry exactly as the first", false}
	refuseCredentials = refusal{codes.FailedPrecondition, ReasonCredentialsChanged, "the idempotency key was used with other credentials: send the retry with those of the first request, or a new request with a new key", false}
	refuseInFlight    = refusal{codes.Aborted, ReasonInFlight, "a request with this idempotency key is still running", true}
	refuseNotKept     = refusal{codes.FailedPrecondition, ReasonResponseNotKept, "the request was answered before, and its answer was not kept: look up its result, or send a new request with a new key", false}
	refuseTransport   = refusal{codes.FailedPrecondition, ReasonOtherTransport, "the request was sent before, over another transport: send the retry there, or look up its result", false}
	refuseBusy        = refusal{codes.Aborted, ReasonLockBusy, "another request is working on this", true}
	refuseSealed      = refusal{codes.FailedPrecondition, ReasonLockSealed, "this is closed for further requests", false}
	refuseLost        = refusal{codes.Aborted, ReasonLockLost, "the lock was lost while the request ran: check what became of it before it is sent again", false}
	refuseUnavailable = refusal{codes.Unavailable, ReasonLockUnavailable, "locks are not available", true}
	refuseOrphaned    = refusal{codes.FailedPrecondition, ReasonLockUnavailable, "the outcome of an earlier call is unknown: ask the operator of the service to check what it did", false}
	refuseNoLocker    = refusal{codes.Unavailable, ReasonLockUnavailable, "locks are not available: the server was started without a Locker, it has to call core.SetDefault", true}
	refuseNobody      = refusal{codes.Unauthenticated, ReasonPrincipalMissing, "the caller is not known", false}
	refuseWiring      = refusal{codes.Internal, ReasonMisconfigured, "the server is misconfigured", false}
)

// refusedError is a refusal as an error, so that an interceptor outside knows it and does not record it.
type refusedError struct{ st *status.Status }

func (e *refusedError) Error() string              { return e.st.Err().Error() }
func (e *refusedError) GRPCStatus() *status.Status { return e.st }

// err is the refusal with its details.
func (r refusal) err() error {
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: r.reason, Domain: Domain}}
	if r.retry {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(soon)})
	}
	st := status.New(r.code, "onelane: "+r.text)
	if with, err := st.WithDetails(details...); err == nil {
		st = with
	}
	return &refusedError{st}
}

// refuse answers a call without its handler: by nothing but trailers, since a client's retry policy takes any header for
// an answer.
func (c *call) refuse(r refusal) error {
	if r.retry {
		pushback := strconv.FormatInt(soon.Milliseconds(), 10)
		_ = grpc.SetTrailer(c.ctx, metadata.Pairs("grpc-retry-pushback-ms", pushback)) // the call is over: there is nobody to answer
	}
	return r.err()
}

// refuseKey answers a call whose key could not be read.
func (c *call) refuseKey(err error) error {
	if err == idempotency.ErrNoKey {
		r := refuseMissing
		r.text += ": send it as " + c.source.name
		return c.refuse(r)
	}
	if errors.Is(err, errNobody) {
		return c.refuse(refuseNobody)
	}
	if _, ok := status.FromError(err); ok { // of a KeyFunc
		return err
	}
	r := refuseInvalid
	r.text += " (" + c.source.name + "): " + cause(err).Error()
	return c.refuse(r)
}

// cause is the innermost error: what is around it is not for clients.
func cause(err error) error {
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return err
}

// misconfigured answers a call that cannot be protected because of a mistake in the program.
func (c *call) misconfigured(err error) error {
	c.log.ErrorContext(c.ctx, "grpclock: the method cannot be protected; its calls are refused", "method", c.full, "error", err)
	return c.refuse(refuseWiring)
}

// refuseErr answers a call that got no lock or claim.
func (c *call) refuseErr(err error) error {
	var mismatch *idempotency.MismatchError
	switch {
	case errors.As(err, &mismatch) && mismatch.Credentials:
		return c.refuse(refuseCredentials)
	case mismatch != nil && mismatch.Transport != "":
		return c.refuse(refuseTransport)
	case mismatch != nil:
		return c.refuse(refuseReused)
	case errors.Is(err, idempotency.ErrInFlight):
		r := refuseInFlight
		if c.retryInFlight {
			r.code = codes.Unavailable
		}
		return c.refuse(r)
	case errors.Is(err, idempotency.ErrRecord):
		c.note(slog.LevelError, "grpclock: a record cannot be read; the call is refused", err)
		return c.refuse(refuseNotKept)
	case errors.Is(err, core.ErrInvalidKey):
		c.note(slog.LevelWarn, "grpclock: a lock's key is refused", err)
		return c.refuseKey(errLong)
	case errors.Is(err, core.ErrTaken):
		return c.refuse(refuseBusy)
	case errors.Is(err, core.ErrSealed):
		return c.refuse(refuseSealed)
	case errors.Is(err, core.ErrOrphaned):
		c.note(slog.LevelError, "grpclock: the key is orphaned; the call is refused until the key is unsealed", err)
		return c.refuse(refuseOrphaned)
	case errors.Is(err, context.DeadlineExceeded): // of the call
		return status.FromContextError(context.DeadlineExceeded).Err()
	case errors.Is(err, context.Canceled):
		return status.FromContextError(context.Canceled).Err()
	}
	c.note(slog.LevelError, "grpclock: no lock can be had; the call is refused", err)
	return c.refuse(refuseUnavailable)
}

// runUnprotected says whether a call is to run although Redis is not available. One whose client is gone is not: its error is that of its
// context.
func (c *call) runUnprotected(err error) bool {
	if !c.failOpen || !errors.Is(err, core.ErrUnavailable) {
		return false
	}
	c.noteUnprotected(err)
	return true
}

func (c *call) noteUnprotected(err error) {
	c.note(slog.LevelWarn, "grpclock: no lock can be had; the call runs unprotected (FailOpen)", err)
}

func (c *call) note(level slog.Level, text string, err error) {
	c.log.Log(c.ctx, level, text, "method", c.full, "error", err)
}
