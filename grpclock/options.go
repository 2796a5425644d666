package grpclock

import (
	"context"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/claim"
)

// Option configures [ByMetadata], [ByField], [ByKey], [By] and [ByProto]. The options of package
// idempotency that are not about HTTP are Options: Require, Retain, Wait, RunAgain, MaxRun,
// MaxBody, FailOpen, Service, WithLocker, WithEncryption, ReadPlain. A nil Option is
// ignored. If two options set the same thing, the later one counts. If an option is wrong, the
// constructor of the interceptor panics.
type Option interface{ claim.GRPCOption }

// LockOption configures [LockByKey], [LockBy], [StreamLockByKey] and [StreamLockBy]: [Principal],
// and of package idempotency Wait, Require, FailOpen and WithLocker. Every LockOption is an
// [Option], too.
type LockOption interface{ claim.GRPCLockOption }

// config is the configuration of an interceptor.
type config struct {
	claim.Settings
	principal   func(context.Context) string
	decide      func(codes.Code) idempotency.Fate
	fingerprint func(context.Context, proto.Message) []byte
	metadata    map[string]bool // that is recorded
	recover     func(context.Context, any, idempotency.Run) (any, idempotency.Recovery, error)
}

func newConfig() config {
	return config{
		Settings: claim.DefaultSettings(),
		decide:   DefaultFate,
		metadata: make(map[string]bool),
	}
}

type option func(*config)

func (o option) GRPC(t claim.Target) { o(t.(*config)) }

type plainLockOption func(*config)

func (o plainLockOption) GRPC(t claim.Target) { o(t.(*config)) }
func (plainLockOption) GRPCLock()             {}

// Principal sets the caller: a name that is verified and stays the same over retries, such as a
// user or tenant id. Keys of different principals are independent of each other. If fn returns "",
// the caller is anonymous. The key of a plain lock contains the caller only if its template has
// {principal}.
//
// Without Principal the client's verified TLS certificate names the caller:
//
//   - By its issuer and its URIs. If it has no URIs, its subject counts instead, and the
//     alternative names count, too, if the subject has no common name.
//   - A retry must come with the credentials of the first call: the metadata authorization, cookie
//     (grpcgateway-cookie behind grpc-gateway) and x-api-key.
//   - Only a certificate that crypto/tls itself verified against ClientCAs counts. If
//     VerifyPeerCertificate verifies it, as in go-spiffe, all callers are anonymous. Then pass
//     Principal.
func Principal(fn func(context.Context) string) LockOption {
	return plainLockOption(func(c *config) {
		c.principal = fn
		c.Check(fn != nil, "Principal(nil): pass a function, or omit the option")
	})
}

// Decide sets what becomes of the key after an answer with this code. Unauthenticated always frees
// it. [DefaultFate] is the default. If the handler gave up because the lock was lost or the Locker
// closed, the outcome is unknown. The error may be another server's refusal that says that the call
// ran or is running. If fn frees the key then, the outcome is unknown, too.
func Decide(fn func(codes.Code) idempotency.Fate) Option {
	return option(func(c *config) {
		c.decide = fn
		c.Check(fn != nil, "Decide(nil): pass a function, or omit the option")
	})
}

// Fingerprint sets what a retry must repeat: the bytes that fn returns, which are stored as a
// salted hash. fn must not modify the request. By default all fields of the request count, even
// those that this process does not know.
//
// During a roll-out one process may know a new field and another may not. By default the same
// request looks the same to both. One case is an exception: the new field is a message, and the
// client wrote that message in another order than by number. Go does so with a oneof, extensions
// and maps. Such a retry is refused as another request. So deploy all servers before clients send
// the field.
func Fingerprint(fn func(context.Context, proto.Message) []byte) Option {
	return option(func(c *config) {
		c.fingerprint = fn
		c.Check(fn != nil, "Fingerprint(nil): pass a function, or omit the option")
	})
}

// Metadata names the headers and trailers that are recorded if the handler sets them. By default
// none are recorded. Names of credentials and of the transport's own metadata are refused.
//
// With this option the handler's context has a stream that remembers what is set, and
// grpc.SetSendCompressor fails in the handler. Call it in an interceptor outside of ours.
//
// Metadata that is set after the client hung up is recorded, too. Without this option
// grpc.SetHeader and grpc.SetTrailer fail then. Do not return their errors: a retry would get them.
func Metadata(names ...string) Option {
	return option(func(c *config) {
		for _, name := range names {
			name = strings.ToLower(name)
			c.Check(validName(name) && !neverRecorded(name), "Metadata(%q): it cannot be recorded", name)
			c.metadata[name] = true
		}
	})
}

// Recover makes fn decide about a call whose earlier run has an unknown outcome. The process of
// that run died, or its handler panicked or ran into a time-out. Without Recover a retry is
// refused.
//
// fn runs instead of the handler, under the claim, with the request of the retry. It finds out what
// the earlier run did, for example by asking the payment provider with [idempotency.DeriveKey].
// Then it returns [idempotency.Answered] and the answer, [idempotency.RunHandler] if nothing was
// done, or [idempotency.StillUnknown].
func Recover(
	fn func(ctx context.Context, req any, earlier idempotency.Run) (resp any, r idempotency.Recovery, err error),
) Option {
	return option(func(c *config) {
		c.recover, c.Recovers = fn, true
		c.Check(fn != nil, "Recover(nil): pass a function, or omit the option")
	})
}

// DefaultFate returns what becomes of the key after an answer over gRPC:
//
//   - InvalidArgument, Unauthenticated, PermissionDenied, Aborted and Unimplemented: nothing was
//     done, and the key is free.
//   - Canceled, DeadlineExceeded, ResourceExhausted and Unavailable: the outcome is unknown. gRPC
//     itself makes these codes, for example if the connection breaks or the answer is too large.
//     The other server may have acted before that. A handler may pass such an error on. If it did
//     nothing, it calls [idempotency.NothingDone], or answers Aborted.
//   - Everything else, Internal and Unknown included, is recorded.
func DefaultFate(code codes.Code) idempotency.Fate {
	switch code {
	case codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.Aborted, codes.Unimplemented:
		return idempotency.FreeKey
	case codes.Canceled, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Unavailable:
		return idempotency.OutcomeUnknown
	}
	return idempotency.KeepAnswer
}
