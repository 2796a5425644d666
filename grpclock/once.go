package grpclock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
)

// once runs a call, replays its answer or refuses it.
func (c *call) once(key string) (any, error) {
	request := messageOf(c.req)
	if request == nil {
		return nil, c.misconfigured(fmt.Errorf("its request is a %T, no protobuf message: nobody could tell a retry from another request", c.req))
	}
	who := c.caller()
	key = c.lookupKey(who.name, key)
	if idempotency.Carries(c.ctx, key) {
		return c.handler(c.ctx, c.req) // used twice: the outer one does it
	}
	var payload []byte
	if c.config.fingerprint != nil {
		payload = c.config.fingerprint(c.ctx, request)
	} else {
		payload = fingerprint(request.ProtoReflect())
	}
	fp := idempotency.Fingerprint{Payload: idempotency.Digest([]byte(c.full), payload), Credentials: who.credentials}
	out, err := c.claimsOn(c.locker).Begin(c.ctx, key, fp)
	switch {
	case err != nil:
		return nil, c.refuseErr(err)
	case out.Unprotected != nil:
		c.noteUnprotected(out.Unprotected)
		return c.handler(c.ctx, c.req)
	case out.Replay != nil:
		return c.replay(out.Replay)
	}
	return c.run(out.Claim)
}

// lookupKey is the key of the claim: no part of it can imitate another, and without a space none that ginlock makes.
func (m *method) lookupKey(who, key string) string {
	if m.space != "" {
		return idempotency.SpaceKey(m.space, who, key)
	}
	return core.Join(who, "grpc", m.full, m.source.name, key)
}

// claims are the Claims on a Locker.
type claims struct {
	*idempotency.Claims
	on *core.Locker
}

// claimsOn returns the Claims on l, which change when core.SetDefault is called again.
func (m *method) claimsOn(l *core.Locker) *idempotency.Claims {
	if made := m.claims.Load(); made != nil && made.on == l {
		return made.Claims
	}
	opts := append(slices.Clone(m.records), idempotency.WithTransport("grpc"), idempotency.WithRetention(m.retention), idempotency.WithWait(m.wait))
	if m.failOpen {
		opts = append(opts, idempotency.WithFailOpen())
	}
	made := &claims{idempotency.New(l, opts...), l}
	m.claims.Store(made)
	return made.Claims
}

// run runs the handler under its claim, and records its answer before it is sent.
func (c *call) run(claim *idempotency.Claim) (any, error) {
	defer c.abandon(claim) // before the answer is sent: a retry may follow at once. It leaves alone what was completed
	sent := capture(c.ctx)
	resp, err := c.handler(context.WithValue(sent.ctx(claim.Context()), heldKey{}, claim), c.req)
	if !c.keeps(err) {
		if errors.Is(context.Cause(claim.Context()), core.ErrLost) && cancelled(err) {
			return nil, c.refuse(refuseLost)
		}
		return resp, err
	}
	r, problem := c.record(resp, err, sent)
	if problem != nil {
		c.note(slog.LevelError, "grpclock: the answer cannot be recorded; a retry will be told so", problem)
	}
	c.complete(claim, r)
	return resp, err
}

// keeps says whether an answer is recorded.
func (c *call) keeps(err error) bool {
	var refused *refusedError
	code := statusOf(err).Code()
	switch {
	case errors.As(err, &refused):
		return false
	case code == codes.Unauthenticated:
		return false // whatever RecordIf says: whoever comes with the right credentials must get through
	case code > codes.Unauthenticated:
		return false // the largest there is
	}
	return c.recordIf(code)
}

// statusOf is the status that the server makes of a handler's error.
func statusOf(err error) *status.Status {
	st, ok := status.FromError(err)
	if !ok {
		st = status.FromContextError(err)
	}
	return st
}

// cancelled says whether a handler gave up since its context ended.
func cancelled(err error) bool {
	return err != nil && (statusOf(err).Code() == codes.Canceled || errors.Is(err, context.Canceled) || errors.Is(err, core.ErrLost))
}

// complete records the answer; if that fails the answer is sent all the same.
func (c *call) complete(claim *idempotency.Claim, r *idempotency.Record) {
	err := claim.Complete(c.ctx, r)
	switch {
	case err == nil:
	case errors.Is(err, core.ErrLost):
		c.note(slog.LevelError, "grpclock: the claim was lost while the handler ran; its answer is not recorded, and another may have run", err)
	default:
		c.note(slog.LevelError, "grpclock: the answer could not be recorded", err)
	}
}

func (c *call) abandon(claim *idempotency.Claim) {
	if err := claim.Abandon(c.ctx); err != nil {
		c.note(slog.LevelWarn, "grpclock: a claim could not be given up; its key is free when its lease ends", err)
	}
}
