package grpclock

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/keytext"
)

// ClientOption configures [UnaryClientInterceptor]. A nil option is ignored. If two options set the
// same thing, the later one counts.
type ClientOption interface{ applyClient(*client) }

type clientOption func(*client)

func (o clientOption) applyClient(c *client) { o(c) }

// KeyMetadata sets the name of the metadata that carries the key. The default is "idempotency-key".
func KeyMetadata(name string) ClientOption {
	return clientOption(func(c *client) { c.name = strings.ToLower(name) })
}

// OnKey calls fn with each call's method and key before the call is sent. Store the key there if
// the call must survive a crash of the client: after a restart send it again with
// [idempotency.ContextWithKey]. If fn returns an error, the call is not sent and its error wraps
// that of fn.
func OnKey(fn func(ctx context.Context, method, key string) error) ClientOption {
	return clientOption(func(c *client) { c.onKey = fn })
}

type client struct {
	name  string
	onKey func(ctx context.Context, method, key string) error
	safe  sync.Map // whether a method has no side effects, by its full name
}

// UnaryClientInterceptor returns the client's half of [ByMetadata]. Each call gets a key of its own
// and keeps it over its retries. Retries are those of gRPC's retry policy and those of a retry
// interceptor after this one. To retry with a second call, pass both calls a context of
// [idempotency.ContextWithKey]. A key that is in the metadata already is kept. Methods with
// idempotency_level = NO_SIDE_EFFECTS get no key, if their descriptor is linked in.
//
// UnaryClientInterceptor panics if the name cannot be the name of text metadata.
func UnaryClientInterceptor(opts ...ClientOption) grpc.UnaryClientInterceptor {
	c := &client{name: keyMetadata}
	for _, o := range opts {
		if o != nil {
			o.applyClient(c)
		}
	}
	if _, err := metadataSource(c.name); err != nil {
		panic(fmt.Sprintf("grpclock: KeyMetadata(%q): %v", c.name, err))
	}
	return c.unary
}

func (c *client) unary(
	ctx context.Context,
	method string,
	req, reply any,
	cc *grpc.ClientConn,
	invoker grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	if md, _ := metadata.FromOutgoingContext(ctx); len(md.Get(c.name)) > 0 || c.noSideEffects(method) {
		return invoker(ctx, method, req, reply, cc, opts...)
	}
	key, ok := keytext.FromContext(ctx)
	if !ok {
		key = idempotency.NewKey()
	}
	value, err := keytext.Format(key)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if c.onKey != nil {
		if err := c.onKey(ctx, method, key); err != nil {
			return fmt.Errorf("grpclock: OnKey: %w", err)
		}
	}
	return invoker(
		metadata.AppendToOutgoingContext(ctx, c.name, value),
		method,
		req,
		reply,
		cc,
		opts...)
}

func (c *client) noSideEffects(method string) bool {
	if v, ok := c.safe.Load(method); ok {
		return v.(bool)
	}
	safe := hasNoSideEffects(findMethod(method, nil))
	c.safe.Store(method, safe)
	return safe
}
