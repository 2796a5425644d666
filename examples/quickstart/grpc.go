package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"

	"github.com/gin-gonic/gin"
	"github.com/onelane/onelane/examples/grpc/orderpb"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/grpclock"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"gorm.io/gorm"
)

// contract is the kit in three lines.
func contract(r *gin.Engine, db *gorm.DB) {
	r.Use(ginlock.ByHeader("Idempotency-Key"))
	grpc.NewServer(grpc.UnaryInterceptor(grpclock.ByMetadata("idempotency-key")))
	db.Scopes(gormlock.Guard("stock:42"))
}

// newServer is a service on gRPC.
func newServer(orders orderpb.OrdersServer) *grpc.Server {
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(
		authenticate, // first: keys belong to users
		grpclock.ByMetadata("idempotency-key", grpclock.Principal(user)), // a retried call runs once; the retry gets the first answer
	))
	orderpb.RegisterOrdersServer(server, orders)
	return server
}

type userKey struct{}

// user is who authenticate found.
func user(ctx context.Context) string {
	name, _ := ctx.Value(userKey{}).(string)
	return name
}

// authenticate stands for a real login.
func authenticate(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	for _, v := range metadata.ValueFromIncomingContext(ctx, "authorization") {
		if name, ok := strings.CutPrefix(v, "Bearer "); ok && name != "" {
			return handler(context.WithValue(ctx, userKey{}, name), req)
		}
	}
	return nil, status.Error(codes.Unauthenticated, "who are you?")
}

// shop makes a new order of every call that it gets.
type shop struct {
	orderpb.UnimplementedOrdersServer
	orders atomic.Int64
}

func (s *shop) Create(ctx context.Context, r *orderpb.CreateRequest) (*orderpb.Order, error) {
	return &orderpb.Order{Id: fmt.Sprint(s.orders.Add(1)), Item: r.GetItem(), Customer: user(ctx)}, nil
}

// overGRPC sends an order three times.
func overGRPC(out io.Writer) error {
	var orders shop
	server := newServer(&orders)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer ann", "idempotency-key", "order-7")
	for range 3 {
		var trailer metadata.MD
		order, err := orderpb.NewOrdersClient(conn).Create(ctx, &orderpb.CreateRequest{Item: "tea"}, grpc.Trailer(&trailer))
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "order %s of %s, replayed: %t\n", order.GetId(), order.GetItem(), len(trailer.Get("idempotency-replayed")) > 0)
	}
	if n := orders.orders.Load(); n != 1 {
		return fmt.Errorf("%d orders", n)
	}
	return nil
}
