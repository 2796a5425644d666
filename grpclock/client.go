package grpclock

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
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

// UnaryClientInterceptor returns the client's half of [ByMetadata]: each call gets a key of its own, a random UUID, which
// it keeps over its retries: those of gRPC's retry policy, and those of a retry interceptor that stands after this
// one. To retry by calling again, put the key into the metadata yourself: one that is there is left alone. Methods
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
	if md, _ := metadata.FromOutgoingContext(ctx); len(md.Get(c.name)) == 0 && !c.noSideEffects(method) {
		ctx = metadata.AppendToOutgoingContext(ctx, c.name, newKey())
	}
	return invoker(ctx, method, req, reply, cc, opts...)
}

func (c *client) noSideEffects(method string) bool {
	if v, ok := c.safe.Load(method); ok {
		return v.(bool)
	}
	safe := hasNoSideEffects(findMethod(method, nil))
	c.safe.Store(method, safe)
	return safe
}

// newKey is a UUID of version 4 (RFC 9562).
func newKey() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
