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
)

// ClientOption configures [UnaryClientInterceptor]. A nil one is ignored, the later of two wins.
type ClientOption interface{ applyClient(*client) }

type clientOption func(*client)

func (o clientOption) applyClient(c *client) { o(c) }

// KeyMetadata sets the name of the metadata that carries the key. Default "idempotency-key".
func KeyMetadata(name string) ClientOption {
	return clientOption(func(c *client) { c.name = strings.ToLower(name) })
}

type client struct {
	name string
	safe sync.Map // whether a method has no side effects, by its full name
}

// UnaryClientInterceptor returns the client's half of [ByMetadata]: each call gets a key of its own, which it keeps over
// its retries: those of gRPC's retry policy, and those of a retry interceptor that stands after this one. To retry by
// calling again, call with [idempotency.ContextWithKey]; a key that is in the metadata already is left alone. Methods
// with idempotency_level = NO_SIDE_EFFECTS get none, where their descriptor is linked in.
//
// It panics at wiring when the name cannot be that of text metadata.
func UnaryClientInterceptor(opts ...ClientOption) grpc.UnaryClientInterceptor {
	c := &client{name: keyMetadata}
	for _, o := range opts {
		if o != nil {
			o.applyClient(c)
		}
	}
	if why := badMetadata(c.name); why != "" {
		panic(fmt.Sprintf("grpclock: KeyMetadata(%q): %s", c.name, why))
	}
	return c.unary
}

func (c *client) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if md, _ := metadata.FromOutgoingContext(ctx); len(md.Get(c.name)) > 0 || c.noSideEffects(method) {
		return invoker(ctx, method, req, reply, cc, opts...)
	}
	key, ok := idempotency.KeyFromContext(ctx)
	if !ok {
		key = idempotency.NewKey()
	}
	value, err := idempotency.FormatKey(key)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return invoker(metadata.AppendToOutgoingContext(ctx, c.name, value), method, req, reply, cc, opts...)
}

func (c *client) noSideEffects(method string) bool {
	if v, ok := c.safe.Load(method); ok {
		return v.(bool)
	}
	safe := hasNoSideEffects(findMethod(method, nil))
	c.safe.Store(method, safe)
	return safe
}
