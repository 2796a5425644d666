package grpclock

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/claim"
)

// Domain is the domain of the google.rpc.ErrorInfo in each refusal. Its reason is a code of
// [idempotency.Refusal] in upper case, for example IDEMPOTENCY_KEY_REUSED.
const Domain = "onelane"

var grpcCodes = map[string]codes.Code{
	idempotency.CodeKeyMissing:         codes.InvalidArgument,
	idempotency.CodeKeyInvalid:         codes.InvalidArgument,
	idempotency.CodeKeyReused:          codes.FailedPrecondition,
	idempotency.CodeCredentialsChanged: codes.FailedPrecondition,
	idempotency.CodeResponseNotKept:    codes.FailedPrecondition,
	idempotency.CodeOutcomeUnknown:     codes.FailedPrecondition,
	idempotency.CodeLockSealed:         codes.FailedPrecondition,
	idempotency.CodeInFlight:           codes.Aborted,
	idempotency.CodeLockBusy:           codes.Aborted,
	idempotency.CodeLockLost:           codes.Aborted,
	idempotency.CodeLockUnavailable:    codes.Unavailable,
	idempotency.CodePrincipalMissing:   codes.Unauthenticated,
	idempotency.CodeMisconfigured:      codes.Internal,
	idempotency.CodeNothingDone:        codes.Aborted, // see Error
}

// refusal is the error of a call that an interceptor refused. If the whole call ends with it, fate
// is what becomes of the key of an interceptor outside.
type refusal struct {
	error
	fate claim.Fate
}

// GRPCStatus is for package status.
func (r *refusal) GRPCStatus() *status.Status { return statusOf(r.error) }

func (r *refusal) Unwrap() error { return r.error }

// refuse answers a call without its handler. It sets nothing but trailers, because a client's retry
// policy treats a call with a header as answered.
func (c *call) refuse(p idempotency.Refusal) error {
	code := grpcCodes[p.Code]
	pushback := ""
	if p.Retryable && p.RetryAfter > 0 {
		pushback = strconv.FormatInt(p.RetryAfter.Milliseconds(), 10)
	}
	if p.Code == idempotency.CodeLockLost {
		// The handler ran, so a client whose retry policy has Aborted must not send the call again.
		pushback = "-1"
	}
	if pushback != "" {
		// An error means that the client is gone.
		_ = grpc.SetTrailer(c.ctx, metadata.Pairs("grpc-retry-pushback-ms", pushback))
	}
	return refusalOf(code, p)
}

// refusalOf returns the error of a refusal.
func refusalOf(code codes.Code, p idempotency.Refusal) error {
	details := []protoadapt.MessageV1{
		&errdetails.ErrorInfo{Reason: strings.ToUpper(p.Code), Domain: Domain},
	}
	if p.Retryable && p.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(p.RetryAfter)})
	}
	words := []string{"onelane: " + p.Title + "."}
	for _, more := range []string{p.Detail, p.Correction} {
		if more != "" {
			words = append(words, more)
		}
	}
	st, err := status.New(code, strings.Join(words, " ")).WithDetails(details...)
	if err != nil {
		return status.Error(codes.Internal, err.Error()) // the details above can always be marshalled
	}
	r := &refusal{st.Err(), claim.Free} // the handler did not run
	if p.Code == idempotency.CodeLockLost {
		r.fate = claim.Unknown
	}
	return r
}

// refuseKey answers a call whose key could not be read.
func (c *call) refuseKey(err error) error {
	code, detail, correction := c.source.Refused(err)
	if _, ok := status.FromError(err); ok { // of the function of By
		return &refusal{err, claim.Free}
	}
	p := idempotency.RefusalOf(code)
	p.Detail, p.Correction = detail, cmp.Or(correction, p.Correction)
	return c.refuse(p)
}

// misconfigured answers a call that cannot be protected because of a mistake in the program.
func (c *call) misconfigured(err error) error {
	c.log(slog.LevelError, "grpclock: the method cannot be protected; its calls are refused", err)
	return c.refuse(idempotency.RefusalOf(idempotency.CodeMisconfigured))
}

func (c *call) refuseWithoutLocker() error {
	c.log(
		slog.LevelError,
		"grpclock: there is no Locker; the call is refused",
		errors.New("call core.SetDefault when the process starts, or pass idempotency.WithLocker"),
	)
	p := idempotency.RefusalOf(idempotency.CodeLockUnavailable)
	p.Detail = "The server was started without a Locker: it has to call core.SetDefault."
	return c.refuse(p)
}

// refuseErr answers a call that got no claim and no lock.
func (c *call) refuseErr(err error) error {
	code, loud := claim.CodeOf(err)
	if loud {
		c.log(slog.LevelError, "grpclock: the call is refused", err)
	}
	p := idempotency.RefusalOf(code)
	if part := claim.Differs(err); part != "" {
		c.Logger().WarnContext(context.WithoutCancel(c.ctx),
			"grpclock: a key came with another request; the call is refused", "differs", part, "method", c.full)
		p.Detail = "The " + part + " of this call differs from that of the first one."
	}
	refused := c.refuse(p)
	for _, ended := range []error{context.Canceled, context.DeadlineExceeded} {
		if code == idempotency.CodeLockUnavailable && errors.Is(err, ended) { // the client is gone
			return &refusal{status.FromContextError(ended).Err(), claim.Free}
		}
	}
	return refused
}

func (c *call) logUnprotected(err error) {
	c.log(
		slog.LevelWarn,
		"grpclock: the backend is not available; the call runs unprotected (FailOpen)",
		err,
	)
}
