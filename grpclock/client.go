package grpclock

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/onelane/onelane/internal/keytext"
)

// client is the name of the metadata that has the key.
type client string

// UnaryClientInterceptor returns the client's half of [ByMetadata]. Each call gets its own key in
// the metadata of this name, and keeps it over its retries. Both gRPC's retry policy and a retry
// interceptor after ours may retry. If an interceptor before ours retries, each attempt gets a new
// key. A key that is in the metadata already is kept. Methods with idempotency_level =
// NO_SIDE_EFFECTS get no key, if their descriptor is linked in.
//
// To retry with a second call, pass both calls a context of [idempotency.ContextWithKey]. If a call
// must survive a crash of the client, make its key with crypto/rand.Text, and store it before the
// first call. After a restart, call again with the stored key.
//
// UnaryClientInterceptor panics if the name cannot be the name of text metadata.
func UnaryClientInterceptor(name string) grpc.UnaryClientInterceptor {
	if _, err := metadataSource(name); err != nil {
		panic(fmt.Sprintf("grpclock: UnaryClientInterceptor(%q): %v", name, err))
	}
	return client(strings.ToLower(name)).unary
}

func (name client) unary(
	ctx context.Context,
	method string,
	req, reply any,
	cc *grpc.ClientConn,
	invoker grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	if md, _ := metadata.FromOutgoingContext(ctx); len(md.Get(string(name))) > 0 || hasNoSideEffects(findMethod(method, nil)) {
		return invoker(ctx, method, req, reply, cc, opts...)
	}
	key, ok := keytext.FromContext(ctx)
	if !ok {
		key = rand.Text()
	}
	value, err := keytext.Format(key)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return invoker(
		metadata.AppendToOutgoingContext(ctx, string(name), value),
		method,
		req,
		reply,
		cc,
		opts...)
}
