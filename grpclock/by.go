package grpclock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"google.golang.org/grpc"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
)

// ByMetadata returns an interceptor that takes the key from the metadata of this name: "k" in quotes, as RFC 8941 has
// it, or plain k, of 1 to 255 printable ASCII characters; anything else is InvalidArgument. Calls without it run
// unprotected, unless [Require] is set, and so do those of methods with idempotency_level = NO_SIDE_EFFECTS, unless
// [LockOnly] is.
//
// It panics at wiring when the name cannot be that of text metadata, or when options contradict each other. The Locker
// may be set later, by [core.SetDefault]: until then calls with a key are Unavailable.
func ByMetadata(name string, opts ...Option) grpc.UnaryServerInterceptor {
	name = strings.ToLower(name)
	if why := badMetadata(name); why != "" {
		panic(fmt.Sprintf("grpclock: ByMetadata(%q): %s", name, why))
	}
	return newInterceptor(metadataSource(name), opts)
}

// ByField returns an interceptor that takes the key from a field of the request: "request_id", or "order.id" of a
// message in it. It is text, bytes, an integer, a bool or an enum, has at most 255 bytes without control characters,
// and, with [UUID4], the format that AIP-155 asks for. Calls that leave it empty run unprotected, unless [Require] or
// [LockOnly] is set. With LockOnly the lock is on the service, the path and the value: methods of one service that
// are locked so exclude each other.
//
// It panics at wiring when the path is no path, or when options contradict each other. A method whose request has no
// such field is refused with Internal, and logged; [Check] finds it when the server is built.
func ByField(path string, opts ...Option) grpc.UnaryServerInterceptor {
	if !validPath(path) {
		panic(fmt.Sprintf(`grpclock: ByField(%q): pass the path of a field: "request_id", or "order.id" of a message in the request`, path))
	}
	return newInterceptor(fieldSource(path), opts)
}

// ByKey returns an interceptor that makes the key of a template: "order:{req.order_id}". {req.…} is a field of the
// request as in [ByField], {metadata.…} metadata, and {principal} who calls; other text stands for itself.
// Values are escaped as by [core.Join], and between two fields there must be a ":", so that different
// values make different keys. With [LockOnly] the lock is on exactly
// that key, for all methods and for everybody who locks it, by ByKey of other services or Acquire of core; with
// [Principal] beside LockOnly it is another lock for each caller, which excludes nobody else. A call that leaves a part
// of it empty is InvalidArgument, or, for {principal}, Unauthenticated.
//
// It panics at wiring when the template is wrong, or when options contradict each other. A method whose request has no
// such field is refused with Internal, and logged; [Check] finds it when the server is built.
func ByKey(template string, opts ...Option) grpc.UnaryServerInterceptor {
	s, err := templateSource(template, qualifiedField)
	if err != nil {
		panic("grpclock: ByKey: " + err.Error())
	}
	return newInterceptor(s, opts)
}

// KeyFunc makes the key of a call. "" is none: the call runs unprotected, unless [Require] is set. Any error refuses
// the call: one with a gRPC status as it is, another as InvalidArgument, without its text. req is nil for streams.
// [grpc.Method] names the method. It may be called from several goroutines.
type KeyFunc func(ctx context.Context, req any) (string, error)

// UnaryServerInterceptor returns an interceptor that takes the key from key. With [LockOnly] the lock is on exactly that
// key, as with [ByKey] (but see [Principal]). It panics at wiring when key is nil, or when options contradict each other.
func UnaryServerInterceptor(key KeyFunc, opts ...Option) grpc.UnaryServerInterceptor {
	if key == nil {
		panic("grpclock: UnaryServerInterceptor(nil): pass a function that makes the key")
	}
	return newInterceptor(funcSource(key), opts)
}

// interceptor is one ByMetadata, or one of its like.
type interceptor struct {
	config
	source  *source   // nil: each method says where its key comes from
	methods sync.Map  // *method by its full name; there are as many as the server has
	shared  sync.Once // the note that all callers share one space of keys
}

func newInterceptor(s *source, opts []Option) grpc.UnaryServerInterceptor {
	i := &interceptor{config: newConfig(opts), source: s}
	if i.uuid4 && !s.field {
		panic("grpclock: UUID4 is for ByField only")
	}
	return i.unary
}

// unary sorts out which calls are not protected, and which have a bad key.
func (i *interceptor) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	m := i.method(info.FullMethod, req)
	if r := checking(ctx); r != nil {
		r.add(m)
		return handler(ctx, req)
	}
	c := &call{method: m, ctx: ctx, req: req, handler: handler, log: slog.Default()}
	switch {
	case m.err != nil:
		return nil, c.misconfigured(m.err)
	case m.passes:
		return handler(ctx, req)
	}
	key, err := c.source.read(c)
	switch {
	case err == idempotency.ErrNoKey && !m.require:
		return handler(ctx, req)
	case err != nil:
		return nil, c.refuseKey(err)
	}
	if err := c.findLocker(); err != nil {
		return nil, err
	}
	if m.lockOnly {
		return c.locked(key)
	}
	return c.once(key)
}

// findLocker sets the Locker to use.
func (c *call) findLocker() error {
	l := c.config.locker
	if l == nil {
		l = core.Default()
	}
	if l == nil {
		c.log.ErrorContext(c.ctx, "grpclock: there is no Locker: call core.SetDefault when the process starts, or pass grpclock.WithLocker", "method", c.full)
		return c.refuse(refuseNoLocker)
	}
	c.locker, c.log = l, l.Logger()
	return nil
}

// call is one call of a method.
type call struct {
	*method
	ctx     context.Context
	req     any
	handler grpc.UnaryHandler
	locker  *core.Locker
	log     *slog.Logger
	who     *caller // see caller
}

type heldKey struct{}

// held is the lock or the claim of a call.
type held interface {
	Token(context.Context) (uint64, error)
}

var errNotHeld = errors.New("grpclock: the call holds no lock and no claim, so it has no fencing token")

// Token returns the fencing token of the claim or lock that the handler's context carries, of the
// innermost one if there are several. Hand it to a resource that refuses smaller tokens. The first
// call costs a round trip (see [core.Lock.Token]). It is an error if the call runs unprotected.
func Token(ctx context.Context) (uint64, error) {
	h, ok := ctx.Value(heldKey{}).(held)
	if !ok {
		return 0, errNotHeld
	}
	return h.Token(ctx)
}
