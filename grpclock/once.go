package grpclock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/claim"
)

// once runs a call under a claim, replays its answer or refuses it.
func (c *call) once(l *core.Locker, key string) (any, error) {
	msg := messageOf(c.req)
	if msg == nil {
		return nil, c.misconfigured(fmt.Errorf("its request is a %T, no protobuf message: "+
			"a retry could not be told from another request", c.req))
	}
	who := c.who()
	req := claim.Request{
		Key: c.claimKey(who, key),
		ID:  c.requestID(), Route: c.full, Deadline: serverDeadline(c.ctx),
	}
	if claim.Carries(c.ctx, req.Key) {
		return nil, c.misconfigured(errors.New("two interceptors guard it with the same key, " +
			"and the options of the inner one would be ignored: keep one of them"))
	}
	var payload []byte
	var err error
	if c.fingerprint != nil {
		payload = c.fingerprint(c.ctx, msg)
	} else if payload, err = canonical(msg.ProtoReflect()); err != nil {
		return nil, c.misconfigured(fmt.Errorf("its request cannot be written as protobuf: %w", err))
	}
	req.Fingerprint = claim.FingerprintOf(claim.Parts{
		claim.Method: claim.Digest([]byte(c.full)),
		claim.Body:   claim.Digest(payload),
	})
	req.Fingerprint.Credentials = c.credentials(who)
	c.claims.On(l, "grpc", c.Settings).Serve(c.ctx, req, c)
	return c.resp, c.err
}

// claimKey joins everything that a key belongs to, so that no part can imitate another. A key that
// comes with another method or request must not run: they are in the fingerprint.
func (c *call) claimKey(who, key string) string {
	if c.source.Content {
		return core.Join(c.Service, who, "grpc", c.source.Name, c.full, key)
	}
	return core.Join(c.Service, who, "grpc", c.source.Name, key)
}

// serverDeadline returns the deadline that the server's own interceptors set, or zero. The stream
// has the client's deadline. The client's deadline only says how long the client waits, and does
// not end a handler under a claim.
func serverDeadline(ctx context.Context) time.Time {
	deadline, ok := ctx.Deadline()
	type withContext interface{ Context() context.Context }
	stream, known := grpc.ServerTransportStreamFromContext(ctx).(withContext)
	if !ok || !known {
		return time.Time{}
	}
	_, inside := claim.FromContext(ctx) // then the client's deadline is gone already
	if clients, ok := stream.Context().Deadline(); ok && !inside && !deadline.Before(clients) {
		return time.Time{}
	}
	return deadline
}

// Refuse implements claim.Transport.
func (c *call) Refuse(err error) { c.err = c.refuseErr(err) }

// Unprotected implements claim.Transport.
func (c *call) Unprotected(err error) {
	c.logUnprotected(err)
	c.resp, c.err = c.handler(c.ctx, c.req)
}

// Replay implements claim.Transport.
func (c *call) Replay(r *claim.Record) { c.resp, c.err = c.replay(r) }

// Start implements claim.Transport.
func (c *call) Start(k *claim.Claim) {
	c.claim = k
	c.inner, c.sent = c.remember(k.Context())
}

// Recover implements claim.Transport.
func (c *call) Recover(earlier *claim.UnknownError) claim.Recovery {
	resp, said, err := c.recover(c.inner, c.req, idempotency.Run{
		Begun: earlier.Run.Begun, Ended: earlier.Since,
		Instance: earlier.Run.Instance, RequestID: earlier.Run.RequestID,
	})
	switch said {
	case idempotency.Answered:
		c.resp, c.err = resp, err
		return claim.Answered
	case idempotency.RunHandler:
		return claim.RunHandler
	}
	if err != nil {
		c.log(slog.LevelError, "grpclock: the outcome of an earlier run is still unknown", err)
	}
	c.err = c.refuse(idempotency.RefusalOf(idempotency.CodeOutcomeUnknown))
	return claim.StillUnknown
}

// Run implements claim.Transport.
func (c *call) Run() { c.resp, c.err = c.handler(c.inner, c.req) }

// Facts implements claim.Transport.
func (c *call) Facts() claim.Facts {
	code := statusOf(c.err).Code()
	// A handler may return the cause of its context's end, which has no status.
	ended := context.Cause(c.claim.Context())
	over := errors.Is(ended, core.ErrLost) || errors.Is(ended, core.ErrClosed)
	// Only the refusal itself: a handler that wraps one has run, and may have done something.
	inside, refused := c.err.(*refusal)
	return claim.Facts{
		NoHandler: refused && inside.fate == claim.Free,
		GaveUp: over && gaveUp(c.err) || code == codes.Unknown && ended != nil && errors.Is(c.err, ended) ||
			refused && inside.fate == claim.Unknown,
		Unauthenticated: code == codes.Unauthenticated,
		Verdict:         claim.Fate(c.decide(code)),
		ServerError:     code == codes.Internal || code == codes.Unknown || code == codes.DataLoss,
		RanElsewhere:    passedOn(c.err),
	}
}

// End implements claim.Transport.
func (c *call) End(f claim.Fate) {
	record := claim.Tombstone()
	if f == claim.Keep {
		record = c.record(c.resp, c.err, c.sent)
	}
	c.claim.End(f, record)
	if errors.Is(context.Cause(c.inner), core.ErrLost) && gaveUp(c.err) {
		c.resp, c.err = nil, c.refuse(idempotency.RefusalOf(idempotency.CodeLockLost))
	}
}

// passedOn reports whether err is the refusal of another server, which may have run the call or may
// be running it.
func passedOn(err error) bool {
	return slices.ContainsFunc(statusOf(err).Details(), func(detail any) bool {
		info, ok := detail.(*errdetails.ErrorInfo)
		return ok && info.Domain == Domain && claim.MayHaveRun(strings.ToLower(info.Reason))
	})
}

// statusOf returns the status that the server makes of a handler's error.
func statusOf(err error) *status.Status {
	st, ok := status.FromError(err)
	if !ok {
		st = status.FromContextError(err)
	}
	return st
}

// gaveUp reports whether a handler ended because its context did.
func gaveUp(err error) bool {
	ended := errors.Is(err, context.Canceled) || errors.Is(err, core.ErrLost)
	return err != nil && (ended || statusOf(err).Code() == codes.Canceled)
}
