package grpclock

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"google.golang.org/grpc"

	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/internal/keytext"
)

// ByMetadata returns an interceptor that takes the key from the metadata of this name. The key k is
// sent in quotes, "k" (RFC 8941), or plain. It has 1 to 255 printable ASCII characters, and without
// quotes no comma. A call with any other value is refused with InvalidArgument. Calls without the
// metadata run unprotected, unless idempotency.Require is set. Methods with idempotency_level =
// NO_SIDE_EFFECTS and the services grpc.health and grpc.reflection run unprotected, too.
//
// ByMetadata panics if the name cannot be the name of text metadata, or if an option is wrong. The
// Locker may be set later with [core.SetDefault]. Until then calls with a key are refused with
// Unavailable.
func ByMetadata(name string, opts ...Option) grpc.UnaryServerInterceptor {
	s, err := metadataSource(name)
	if err != nil {
		panic(fmt.Sprintf("grpclock: ByMetadata(%q): %v", name, err))
	}
	return newInterceptor("ByMetadata", s, opts)
}

// ByField returns an interceptor that takes the key from a field of the request: "request_id", or
// "order.id" of a message in it. Otherwise ByField works as [ByMetadata].
//
// The field is one of these:
//
//   - Text has at most 255 bytes and no control characters.
//   - Bytes: at most 127, which the key has as lower-case hexadecimal digits.
//   - An integer, an enum or a bool: the key has an enum as its number, and a bool as true or
//     false.
//
// Calls that leave the field empty run unprotected, unless idempotency.Require is set. A method
// whose request has no such field is refused with Internal, and logged. [Check] finds such a method
// when the server is built.
//
// ByField panics if path cannot be the path of a field, or if an option is wrong.
func ByField(path string, opts ...Option) grpc.UnaryServerInterceptor {
	if !validPath(path) {
		panic(fmt.Sprintf(
			`grpclock: ByField(%q): pass the path of a field: `+
				`"request_id", or "order.id" of a message in the request`,
			path,
		))
	}
	return newInterceptor("ByField", fieldSource(path), opts)
}

// ByKey returns an interceptor that makes the key of a template, for example
// "{metadata.x-tenant}:{req.order.id}". Values are escaped as in [core.Join], and between two
// fields there must be a ":". The fields are:
//
//   - {req.PATH}: a field of the request, as in [ByField]
//   - {metadata.NAME}: metadata, as [ByMetadata] reads it
//   - {principal}: the caller, see [Principal]
//
// If a field is missing, the call is refused with InvalidArgument. If {principal} is missing, it is
// refused with Unauthenticated. Otherwise ByKey works as [ByField].
func ByKey(template string, opts ...Option) grpc.UnaryServerInterceptor {
	s, err := templateSource(template, qualifiedField)
	if err == nil {
		err = s.Varies()
	}
	if err != nil {
		panic("grpclock: ByKey: " + err.Error())
	}
	return newInterceptor("ByKey", s, opts)
}

// By returns an interceptor that takes the key from fn: a text without control characters, or "" if
// the call has none. Join parts that come from outside with [core.Join]. [grpc.Method] names the
// method. If fn returns an error, the call is refused. An error with a gRPC status is returned as
// it is. Any other error is logged and becomes InvalidArgument. Otherwise By works as [ByMetadata].
func By(fn func(ctx context.Context, req any) (string, error), opts ...Option) grpc.UnaryServerInterceptor {
	if fn == nil {
		panic("grpclock: By(nil): pass a function that returns the key of a call")
	}
	return newInterceptor("By", funcSource(fn), opts)
}

// interceptor is what one call of ByMetadata, or of another constructor, made.
type interceptor struct {
	config
	source  source // without Read, each method's option says where its key comes from
	locks   bool   // nothing is recorded
	methods sync.Map
}

func newInterceptor(name string, s source, opts []Option) grpc.UnaryServerInterceptor {
	return configure(name, &interceptor{source: s}, opts).unary
}

// configure applies the options, and panics if one is wrong.
func configure[O Option](name string, i *interceptor, opts []O) *interceptor {
	i.config = newConfig()
	for _, o := range opts {
		if any(o) != nil {
			o.GRPC(&i.config)
		}
	}
	if !i.locks && i.source.Read != nil {
		i.NeedsSeals()
	}
	if text := i.Err(); text != "" {
		panic("grpclock: " + name + ": " + text)
	}
	return i
}

// unary runs a call, replays its answer or refuses it.
func (i *interceptor) unary(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	m := i.method(info.FullMethod, req)
	if r := checking(ctx); r != nil {
		r.add(m)
		return handler(ctx, req)
	}
	c := &call{method: m, ctx: ctx, req: req, handler: handler}
	switch {
	case m.err != nil:
		return nil, c.misconfigured(m.err)
	case m.passes:
		return handler(ctx, req)
	}
	l := c.UseLocker()
	key, err := c.source.Read(c)
	switch {
	case err == keytext.ErrNoKey && !c.Require: // the error of a template's field is wrapped
		if l != nil && !c.locks {
			c.claims.On(l, "grpc", c.Settings).CountWithoutKey(ctx, c.full)
		}
		return handler(ctx, req)
	case err != nil:
		return nil, c.refuseKey(err)
	case l == nil:
		return nil, c.refuseWithoutLocker()
	case c.locks:
		return c.locked(l, key)
	}
	return c.once(l, key)
}

// call is one call of a method.
type call struct {
	*method
	ctx     context.Context
	req     any
	handler grpc.UnaryHandler

	claim *claim.Claim
	inner context.Context // of the handler
	sent  *stream
	resp  any
	err   error
}

func (c *call) log(level slog.Level, text string, err error) {
	args := []any{"method", c.full}
	if err != nil {
		args = append(args, "error", err)
	}
	c.Logger().Log(context.WithoutCancel(c.ctx), level, text, args...)
}
