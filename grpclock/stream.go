package grpclock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"google.golang.org/grpc"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
)

// StreamServerInterceptor returns an interceptor that holds the lock of key, exactly that, for as long as a stream lives:
// from before its handler runs until it returns. The context of the stream carries the lock, and is cancelled, with
// cause [core.ErrLost], when it is lost; from then on the stream neither receives nor sends, and ends with Aborted and
// LOCK_LOST. A handler that waits for a message of its client hears of it with the next one, or by the context.
//
// A stream has no one answer to replay, so [LockOnly] goes without saying, and options that are about recording panic
// at wiring, like a nil key and options that contradict each other.
func StreamServerInterceptor(key KeyFunc, opts ...Option) grpc.StreamServerInterceptor {
	if key == nil {
		panic("grpclock: StreamServerInterceptor(nil): pass a function that makes the key")
	}
	return newStreamInterceptor(funcSource(key), opts)
}

// StreamByKey is [StreamServerInterceptor] with a template as in [ByKey], over {metadata.…} and {principal}: there is no
// request yet when a stream begins.
func StreamByKey(template string, opts ...Option) grpc.StreamServerInterceptor {
	s, err := templateSource(template, qualifiedField)
	switch {
	case err != nil:
		panic("grpclock: StreamByKey: " + err.Error())
	case len(s.paths) > 0:
		panic(fmt.Sprintf("grpclock: StreamByKey(%q): there is no request yet when a stream begins: use {metadata.…} or {principal}", template))
	}
	return newStreamInterceptor(s, opts)
}

func newStreamInterceptor(s *source, opts []Option) grpc.StreamServerInterceptor {
	i := &interceptor{config: newConfig(opts), source: s}
	if len(i.recording) > 0 {
		panic("grpclock: a stream has no one answer to replay, it is locked only: remove " + strings.Join(i.recording, ", "))
	}
	if i.uuid4 {
		panic("grpclock: UUID4 is for ByField only")
	}
	i.lockOnly = true
	return i.stream
}

func (i *interceptor) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	m := &method{i: i, config: i.config, full: info.FullMethod, source: i.source}
	c := &call{method: m, ctx: ss.Context(), log: slog.Default()}
	key, err := c.source.read(c)
	switch {
	case err == idempotency.ErrNoKey && !c.require:
		return handler(srv, ss)
	case err != nil:
		return c.refuseKey(err)
	}
	if err := c.findLocker(); err != nil {
		return err
	}
	k, err := c.acquire(key)
	switch {
	case err == nil:
	case c.runUnprotected(err):
		return handler(srv, ss)
	default:
		return c.refuseErr(err)
	}
	s := &lockedStream{ServerStream: ss, ctx: withLock(k), lock: k}
	returned := false
	defer func() {
		if !returned { // it panics
			_ = c.release(k)
		}
	}()
	err = handler(srv, s)
	returned = true
	if lost := errors.Is(c.release(k), core.ErrLost); lost && (err == nil || cancelled(err)) {
		return c.refuse(refuseLost)
	}
	return err
}

// lockedStream ends with its lock.
type lockedStream struct {
	grpc.ServerStream
	ctx  context.Context
	lock *core.Lock
}

func (s *lockedStream) Context() context.Context { return s.ctx }

// RecvMsg looks at the lock when the message is there: the wait for it may have been long.
func (s *lockedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return s.lost()
}

func (s *lockedStream) SendMsg(m any) error {
	if err := s.lost(); err != nil {
		return err
	}
	return s.ServerStream.SendMsg(m)
}

func (s *lockedStream) lost() error {
	if err := s.lock.Err(); errors.Is(err, core.ErrLost) {
		return refuseLost.err()
	}
	return nil
}
