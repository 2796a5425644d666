package grpclock_test

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/grpclock/internal/testpb"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil/backendtest"
)

// shop makes an order with each call.
type shop struct {
	testpb.UnimplementedOrdersServer
	orders int64
}

func (s *shop) Create(context.Context, *testpb.Request) (*testpb.Order, error) {
	s.orders++
	return &testpb.Order{Run: s.orders}, nil
}

func Example() {
	locker, err := core.New(backendtest.Memory()) // redisbackend.New(redisClient) in a service
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locker.Close()
	core.SetDefault(locker)
	defer core.SetDefault(nil)

	server := grpc.NewServer(grpc.UnaryInterceptor(grpclock.ByMetadata("idempotency-key")))
	testpb.RegisterOrdersServer(server, &shop{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()

	client := testpb.NewOrdersClient(conn)
	for _, key := range []string{"k1", "k1", "k2"} {
		ctx := metadata.AppendToOutgoingContext(context.Background(), "idempotency-key", key)
		var trailer metadata.MD
		order, err := client.Create(ctx, &testpb.Request{}, grpc.Trailer(&trailer))
		fmt.Println(order.GetRun(), err, trailer["idempotency-replayed"])
	}
	// Output:
	// 1 <nil> []
	// 1 <nil> [true]
	// 2 <nil> []
}

// A handler hands its token, which grows with each holder, to a resource that remembers the largest
// one. The resource refuses a holder that lost the lock without noticing.
func ExampleToken() {
	locker := exampleLocker()
	defer locker.Close()
	var tokens []uint64
	conn, stop := start(func(ctx context.Context, r *testpb.Request) (*testpb.Order, error) {
		token, err := idempotency.Token(ctx)
		tokens = append(tokens, token)
		return &testpb.Order{}, err
	}, grpc.UnaryInterceptor(grpclock.LockByKey("order:{req.order_id}", idempotency.WithLocker(locker))))
	defer stop()
	for range 2 {
		_, err := testpb.NewOrdersClient(conn).Grab(with(), &testpb.Request{OrderId: "7"})
		fmt.Println(err)
	}
	fmt.Println(tokens[0] < tokens[1])
	// Output:
	// <nil>
	// <nil>
	// true
}
