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
	if c.fingerprint != nil {
		payload = c.fingerprint(c.ctx, msg)
	} else {
		payload = canonical(msg.ProtoReflect())
	}
	req.Fingerprint = claim.FingerprintOf(claim.Parts{
		claim.Method: claim.Digest([]byte(c.full)),
		claim.Body:   claim.Digest(payload),
	})
	req.Fingerprint.Credentials = c.credentials(who)
	out, err := c.claims.On(l, "grpc", c.Settings).Begin(c.ctx, req)
	switch {
	case err != nil:
		return nil, c.refuseErr(err)
	case out.Unprotected != nil:
		c.logUnprotected(out.Unprotected)
		return c.handler(c.ctx, c.req)
	case out.Replay != nil:
		return c.replay(out.Replay)
	}
	return c.run(out.Claim)
}

// claimKey joins everything that a key belongs to, so that no part can imitate another. A key that
// comes with another method or request must not run: they are in the fingerprint.
func (c *call) claimKey(who, key string) string {
	if c.source.content {
		return core.Join(c.Service, who, "grpc", c.source.name, c.full, key)
	}
	return core.Join(c.Service, who, "grpc", c.source.name, key)
}

// serverDeadline returns the deadline that the server's own interceptors set, or zero. The stream
// has the client's deadline. That one only says how long the client waits, and does not end a
// handler under a claim.
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

// run runs the handler under its claim, and records its answer before it is sent.
func (c *call) run(k *claim.Claim) (resp any, err error) {
	returned := false
	defer func() {
		if !returned { // a panic
			k.End(k.Settle(claim.Facts{Failed: true}), claim.Tombstone())
		}
		k.Close()
	}()
	ctx, sent := c.remember(k.Context())
	resp, err, ok := c.askRecover(ctx, k)
	if !ok {
		resp, err = c.handler(ctx, c.req)
	}
	returned = true
	record, f := claim.Tombstone(), c.fate(k, err)
	if f == claim.Keep {
		record = c.record(resp, err, sent)
	}
	k.End(f, record)
	if errors.Is(context.Cause(ctx), core.ErrLost) && gaveUp(err) {
		return nil, c.refuse(idempotency.RefusalOf(idempotency.CodeLockLost))
	}
	return resp, err
}

// askRecover lets Recover decide about an earlier run. It returns true if there is an answer.
func (c *call) askRecover(ctx context.Context, k *claim.Claim) (any, error, bool) {
	earlier := k.Adopted()
	if earlier == nil || c.recover == nil {
		return nil, nil, false
	}
	resp, decision, err := c.recover(ctx, c.req, idempotency.Run{
		Begun: earlier.Run.Begun, Ended: earlier.Since,
		Instance: earlier.Run.Instance, RequestID: earlier.Run.RequestID,
	})
	switch decision {
	case idempotency.Answered:
		c.recovered = true
		return resp, err, true
	case idempotency.RunHandler:
		for k := k; k != nil; k = k.Outer() {
			k.Withdraw(claim.Free) // NothingDone was about the earlier run
		}
		return nil, nil, false
	}
	if err != nil {
		c.log(slog.LevelError, "grpclock: the outcome of an earlier run is still unknown", err)
	}
	k.Decide(claim.Unknown)
	return nil, c.refuse(idempotency.RefusalOf(idempotency.CodeOutcomeUnknown)), true
}

// fate returns what becomes of the key after an answer with this error.
func (c *call) fate(k *claim.Claim, err error) claim.Fate {
	code := statusOf(err).Code()
	// A handler may return the cause of its context's end, which has no status.
	ended := context.Cause(k.Context())
	over := errors.Is(ended, core.ErrLost) || errors.Is(ended, core.ErrClosed)
	// Only the refusal itself: a handler that wraps one has run, and may have done something.
	inside, refused := err.(*refusal)
	return k.Settle(claim.Facts{
		NoHandler: refused && inside.fate == claim.Free,
		GaveUp: over && gaveUp(err) || code == codes.Unknown && ended != nil && errors.Is(err, ended) ||
			refused && inside.fate == claim.Unknown,
		Unauthenticated: code == codes.Unauthenticated,
		Verdict:         claim.Fate(c.decide(code)),
		ServerError:     code == codes.Internal || code == codes.Unknown || code == codes.DataLoss,
		RanElsewhere:    passedOn(err),
		Recovered:       c.recovered,
	})
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
