package grpclock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"google.golang.org/grpc"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/internal/keytext"
)

// LockByKey returns an interceptor that holds the lock on a key while the handler runs. So one call
// at a time runs for each key. Nothing is recorded.
//
//   - If the key is taken, a call is refused with Aborted and LOCK_BUSY. With idempotency.Wait it
//     waits.
//   - The template is as in [ByKey]. Without a field it is one lock for all calls.
//   - The lock's key is exactly the text that the template makes. So LockByKey also excludes others
//     who lock that key through grpclock, ginlock, gormlock, or Acquire of package core.
//   - Methods without side effects are covered, too.
//   - The handler's context carries the lock, and ends when the lock is lost. A handler that
//     returns after that ends the call with Aborted and LOCK_LOST, unless it returns its own error.
//     gRPC's retry policy does not send such a call again.
func LockByKey(template string, opts ...LockOption) grpc.UnaryServerInterceptor {
	s, err := templateSource(template, qualifiedField)
	if err != nil {
		panic("grpclock: LockByKey: " + err.Error())
	}
	return newLocks("LockByKey", s, opts).unary
}

// LockBy is [LockByKey] with a function that makes the key, as in [By]. The key has up to 512
// bytes. Calls whose key is "" run unprotected, unless idempotency.Require is set.
func LockBy(fn func(ctx context.Context, req any) (string, error), opts ...LockOption) grpc.UnaryServerInterceptor {
	if fn == nil {
		panic("grpclock: LockBy(nil): pass a function that returns the key of a call")
	}
	return newLocks("LockBy", funcSource(fn), opts).unary
}

// StreamLockByKey is [LockByKey] for streams: it holds the lock from before the handler runs until
// it returns, at most for 15 minutes. For longer streams, pass a Locker with [core.WithMaxHold]
// to idempotency.WithLocker. The template has the fields {metadata.NAME} and {principal}, because
// there is no request yet when a stream begins.
//
// When the lock is lost or the Locker is closed, the context of the stream ends with a cause that
// matches [core.ErrLost] or [core.ErrClosed]. From then on the stream neither receives nor sends.
// It ends with LOCK_LOST, unless the handler returns its own error. This does not wake a handler
// that waits for a message.
func StreamLockByKey(template string, opts ...LockOption) grpc.StreamServerInterceptor {
	s, err := templateSource(template, qualifiedField)
	switch {
	case err != nil:
		panic("grpclock: StreamLockByKey: " + err.Error())
	case len(s.Reads) > 0:
		panic(fmt.Sprintf(
			"grpclock: StreamLockByKey(%q): there is no request yet "+
				"when a stream begins: use {metadata.…} or {principal}",
			template,
		))
	}
	return newLocks("StreamLockByKey", s, opts).stream
}

// StreamLockBy is [StreamLockByKey] with a function, as in [LockBy]. Its req is nil.
func StreamLockBy(fn func(ctx context.Context, req any) (string, error), opts ...LockOption) grpc.StreamServerInterceptor {
	if fn == nil {
		panic("grpclock: StreamLockBy(nil): pass a function that returns the key of a call")
	}
	return newLocks("StreamLockBy", funcSource(fn), opts).stream
}

func newLocks(name string, s source, opts []LockOption) *interceptor {
	return configure(name, &interceptor{source: s, locks: true}, opts)
}

// locked runs a unary call under a lock.
func (c *call) locked(l *core.Locker, key string) (resp any, err error) {
	err = c.underLock(l, key, func(ctx context.Context, _ *core.Lock) (err error) {
		resp, err = c.handler(ctx, c.req)
		return err
	})
	return resp, err
}

// underLock calls run with a context that carries the lock. If the call runs unprotected, run gets
// no lock and the context of the call.
func (c *call) underLock(
	l *core.Locker, key string, run func(context.Context, *core.Lock) error,
) (err error) {
	k, err := c.AcquireLock(c.ctx, l, key)
	switch {
	case err == nil:
	case c.FailOpen && errors.Is(err, core.ErrUnavailable):
		c.logUnprotected(err)
		return run(c.ctx, nil)
	case errors.Is(err, core.ErrInvalidKey):
		c.log(slog.LevelWarn, "grpclock: the key of a lock is refused", err)
		p := idempotency.RefusalOf(idempotency.CodeKeyInvalid)
		p.Detail = keytext.LockRefused
		return c.refuse(p)
	default:
		return c.refuseErr(err)
	}
	returned := false
	defer func() {
		closed := errors.Is(k.Err(), core.ErrClosed) // the Locker, while the handler ran
		lost := claim.ReleaseLock(c.ctx, k, c.Logger(), c.full)
		if returned && (lost && err == nil || (lost || closed) && gaveUp(err)) {
			// An interceptor outside may turn the refusal into another error.
			claim.SuggestAll(c.ctx, claim.Unknown)
			err = c.refuse(idempotency.RefusalOf(idempotency.CodeLockLost))
		}
	}()
	err = run(claim.WithLock(k), k)
	returned = true
	return err
}

// stream runs a stream under a lock.
func (i *interceptor) stream(
	srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	m := &method{config: i.config, full: info.FullMethod, source: i.source}
	c := &call{method: m, ctx: ss.Context()}
	if serversOwn(m.full) {
		return handler(srv, ss)
	}
	key, err := c.source.Read(c)
	l := c.UseLocker()
	switch {
	case err == keytext.ErrNoKey && !c.Require:
		return handler(srv, ss)
	case err != nil:
		return c.refuseKey(err)
	case l == nil:
		return c.refuseWithoutLocker()
	}
	return c.underLock(l, key, func(ctx context.Context, k *core.Lock) error {
		if k == nil {
			return handler(srv, ss)
		}
		// Once, because each refusal adds a trailer.
		refusal := sync.OnceValue(func() error { return c.refuse(idempotency.RefusalOf(idempotency.CodeLockLost)) })
		locked := &lockedStream{ServerStream: ss, ctx: ctx, refusal: refusal, lock: k}
		err := handler(srv, locked)
		if err == nil { // it may only have waited for its context
			err = locked.lost()
		}
		return err
	})
}

// lockedStream ends with its lock.
type lockedStream struct {
	grpc.ServerStream
	ctx     context.Context
	refusal func() error
	lock    *core.Lock
}

func (s *lockedStream) Context() context.Context { return s.ctx }

// RecvMsg looks at the lock when the message, or the end of the stream, has arrived. The wait for
// it may have been long, and a handler commits at the end.
func (s *lockedStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return cmp.Or(s.lost(), err)
}

func (s *lockedStream) SendMsg(m any) error {
	if err := s.lost(); err != nil {
		return err
	}
	return s.ServerStream.SendMsg(m)
}

// lost returns an error if nothing keeps others from the lock any more. Nothing renews the locks of
// a closed Locker.
func (s *lockedStream) lost() error {
	if err := s.lock.Err(); errors.Is(err, core.ErrLost) || errors.Is(err, core.ErrClosed) {
		return s.refusal()
	}
	return nil
}
