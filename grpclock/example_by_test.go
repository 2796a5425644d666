package grpclock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/grpclock/internal/testpb"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil/backendtest"
)

// exampleLocker is a Locker in memory; a service has core.New(redisbackend.New(redisClient)).
func exampleLocker() *core.Locker {
	locker, err := core.New(backendtest.Memory())
	if err != nil {
		panic(err)
	}
	return locker
}

// start starts a server of the service Orders, whose methods are handle, and returns a connection to it.
func start(handle handler, opts ...grpc.ServerOption) (conn *grpc.ClientConn, stop func()) {
	return startWith(&orders{handle: handle}, nil, opts...)
}

func startWith(o *orders, dial []grpc.DialOption, opts ...grpc.ServerOption) (conn *grpc.ClientConn, stop func()) {
	server := grpc.NewServer(opts...)
	testpb.RegisterOrdersServer(server, o)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	dial = append(dial, grpc.WithTransportCredentials(insecure.NewCredentials()))
	conn, err = grpc.NewClient(listener.Addr().String(), dial...)
	if err != nil {
		panic(err)
	}
	return conn, func() {
		_ = conn.Close()
		server.Stop()
		<-served
	}
}

// with is a context with metadata.
func with(kv ...string) context.Context {
	return metadata.AppendToOutgoingContext(context.Background(), kv...)
}

// told is the code of an error, and the reason in it.
func told(err error) string {
	s := status.Convert(err)
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return s.Code().String() + " " + info.Reason
		}
	}
	return s.Code().String()
}

// A payment is made once, however often its client sends it.
func ExampleByMetadata() {
	locker := exampleLocker()
	defer locker.Close()
	payments := int64(0)
	conn, stop := start(func(context.Context, *testpb.Request) (*testpb.Order, error) {
		payments++
		return &testpb.Order{Run: payments}, nil
	}, grpc.UnaryInterceptor(grpclock.ByMetadata("idempotency-key",
		idempotency.Require(),              // no payment without a key
		idempotency.Retain(7*24*time.Hour), // for so long a retry gets the answer of the first
		idempotency.WithLocker(locker),     // or core.SetDefault(locker), once
	)))
	defer stop()
	pay := func(ctx context.Context, cents int32) {
		order, err := testpb.NewOrdersClient(conn).Pay(ctx, &testpb.Request{Quantity: cents})
		fmt.Println(order.GetRun(), told(err))
	}
	pay(with(), 700)
	pay(with("idempotency-key", "k1"), 700)
	pay(with("idempotency-key", "k1"), 700) // the retry
	pay(with("idempotency-key", "k1"), 800) // another payment
	// Output:
	// 0 InvalidArgument IDEMPOTENCY_KEY_MISSING
	// 1 OK
	// 1 OK
	// 0 FailedPrecondition IDEMPOTENCY_KEY_REUSED
}

// The request has a field for its key, as AIP-155 has it.
func ExampleByField() {
	locker := exampleLocker()
	defer locker.Close()
	made := int64(0)
	conn, stop := start(func(context.Context, *testpb.Request) (*testpb.Order, error) {
		made++
		return &testpb.Order{Run: made}, nil
	}, grpc.UnaryInterceptor(grpclock.ByField("request_id", idempotency.WithLocker(locker))))
	defer stop()
	for _, id := range []string{"f81d4fae", "f81d4fae", "0a0c91e6"} {
		order, err := testpb.NewOrdersClient(conn).Create(with(), &testpb.Request{RequestId: id})
		fmt.Println(order.GetRun(), told(err))
	}
	// Output:
	// 1 OK
	// 1 OK
	// 2 OK
}

// Many drivers grab one order: one of them at a time. The lock is that of core's Acquire of "order:7".
func ExampleLockByKey() {
	locker := exampleLocker()
	defer locker.Close()
	conn, stop := start(func(ctx context.Context, r *testpb.Request) (*testpb.Order, error) {
		_, err := locker.TryAcquire(context.Background(), core.Join("order", r.GetOrderId()))
		fmt.Println("taken for others:", errors.Is(err, core.ErrTaken))
		token, err := idempotency.Token(ctx) // for a resource that refuses smaller tokens
		fmt.Println("token:", token > 0, err)
		return &testpb.Order{}, nil
	}, grpc.UnaryInterceptor(grpclock.LockByKey("order:{req.order_id}",
		idempotency.Wait(5*time.Second), // by default the second learns that the key is busy
		idempotency.WithLocker(locker))))
	defer stop()
	_, err := testpb.NewOrdersClient(conn).Grab(with(), &testpb.Request{OrderId: "7"})
	fmt.Println(told(err))
	// Output:
	// taken for others: true
	// token: true <nil>
	// OK
}

// The .proto says which methods are protected, and how:
//
//	rpc Pay(Request) returns (Order) {
//	  option (onelane.v1.lock) = { key: "order:{order_id}" mode: IDEMPOTENT retain: { seconds: 3600 } };
//	}
func ExampleByProto() {
	locker := exampleLocker()
	defer locker.Close()
	runs := int64(0)
	conn, stop := start(func(context.Context, *testpb.Request) (*testpb.Order, error) {
		runs++
		return &testpb.Order{Run: runs}, nil
	}, grpc.UnaryInterceptor(grpclock.ByProto(idempotency.WithLocker(locker))))
	defer stop()
	client := testpb.NewOrdersClient(conn)
	for range 2 {
		order, err := client.Pay(with(), &testpb.Request{OrderId: "7"})
		fmt.Println("Pay", order.GetRun(), told(err))
	}
	for range 2 { // has no option
		order, err := client.Create(with(), &testpb.Request{OrderId: "7"})
		fmt.Println("Create", order.GetRun(), told(err))
	}
	// Output:
	// Pay 1 OK
	// Pay 1 OK
	// Create 2 OK
	// Create 3 OK
}

// A field that was renamed is found when the server starts, and not by the first customer.
func ExampleCheck() {
	byField := grpclock.ByField("order_number")
	server := grpc.NewServer(grpc.UnaryInterceptor(byField))
	testpb.RegisterOrdersServer(server, &orders{})
	err := grpclock.Check(server, byField)
	fmt.Println(err != nil)
	// Output: true
}

// One stream at a time per room, from its beginning to its end.
func ExampleStreamLockByKey() {
	locker := exampleLocker()
	defer locker.Close()
	chat := func(stream grpc.BidiStreamingServer[testpb.Request, testpb.Order]) error {
		for {
			if _, err := stream.Recv(); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			if err := stream.Send(&testpb.Order{Id: "hello"}); err != nil {
				return err
			}
		}
	}
	conn, stop := startWith(&orders{chat: chat}, nil,
		grpc.StreamInterceptor(grpclock.StreamLockByKey("room:{metadata.room}", idempotency.WithLocker(locker))))
	defer stop()
	join := func(room string) {
		ctx, cancel := context.WithTimeout(with("room", room), 5*time.Second)
		defer cancel()
		first, _ := testpb.NewOrdersClient(conn).Chat(ctx)
		_ = first.Send(&testpb.Request{})
		answer, err := first.Recv()
		fmt.Println(answer.GetId(), told(err))

		second, _ := testpb.NewOrdersClient(conn).Chat(ctx)
		_, err = second.Recv()
		fmt.Println("the second:", told(err))
		_ = first.CloseSend()
		_, err = first.Recv()
		fmt.Println("the first ends:", err)
	}
	join("7")
	// Output:
	// hello OK
	// the second: Aborted LOCK_BUSY
	// the first ends: EOF
}

// The key is the caller's tenant, which authentication has put into the context: one upload at a time for each.
func ExampleStreamLockBy() {
	locker := exampleLocker()
	defer locker.Close()
	type tenant struct{}
	authenticate := func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		return next(srv, authenticated{s, context.WithValue(s.Context(), tenant{}, "acme")})
	}
	key := func(ctx context.Context, _ any) (string, error) {
		name, _ := ctx.Value(tenant{}).(string)
		if name == "" {
			return "", status.Error(codes.Unauthenticated, "who are you?")
		}
		return core.Join("upload", name), nil
	}
	conn, stop := startWith(&orders{chat: func(s grpc.BidiStreamingServer[testpb.Request, testpb.Order]) error {
		state, err := locker.Inspect(s.Context(), "upload:acme")
		fmt.Println(state.Status, err)
		return nil
	}}, nil, grpc.ChainStreamInterceptor(authenticate, grpclock.StreamLockBy(key, idempotency.WithLocker(locker))))
	defer stop()
	stream, _ := testpb.NewOrdersClient(conn).Chat(with())
	_, err := stream.Recv()
	fmt.Println(err)
	// Output:
	// held <nil>
	// EOF
}

// authenticated is a stream whose context says who calls.
type authenticated struct {
	grpc.ServerStream
	ctx context.Context
}

func (a authenticated) Context() context.Context { return a.ctx }

// The key is made of what the call says, by a function.
func ExampleLockBy() {
	locker := exampleLocker()
	defer locker.Close()
	key := func(_ context.Context, req any) (string, error) {
		r, ok := req.(*testpb.Request)
		if !ok || r.GetOrderId() == "" {
			return "", nil // unprotected
		}
		return core.Join("order", r.GetCustomer().GetId(), r.GetOrderId()), nil
	}
	conn, stop := start(func(ctx context.Context, _ *testpb.Request) (*testpb.Order, error) {
		state, err := locker.Inspect(ctx, "order:ann:7")
		fmt.Println(state.Status, err)
		return &testpb.Order{}, nil
	}, grpc.UnaryInterceptor(grpclock.LockBy(key, idempotency.WithLocker(locker))))
	defer stop()
	client := testpb.NewOrdersClient(conn)
	_, _ = client.Grab(with(), &testpb.Request{OrderId: "7", Customer: &testpb.Customer{Id: "ann"}})
	_, _ = client.Grab(with(), &testpb.Request{})
	// Output:
	// held <nil>
	// free <nil>
}

// A key belongs to one tenant. The values of a template are escaped, and cannot imitate each other.
func ExampleByKey() {
	locker := exampleLocker()
	defer locker.Close()
	conn, stop := start(count(), grpc.UnaryInterceptor(
		grpclock.ByKey("{metadata.x-tenant}:{req.order_id}", idempotency.WithLocker(locker))))
	defer stop()
	for _, tenant := range []string{"a", "a", "b"} {
		order, err := testpb.NewOrdersClient(conn).Pay(with("x-tenant", tenant), &testpb.Request{OrderId: "7"})
		fmt.Println(tenant, order.GetRun(), err)
	}
	// Output:
	// a 1 <nil>
	// a 1 <nil>
	// b 2 <nil>
}

// A function makes the key. Calls without an order run unprotected.
func ExampleBy() {
	locker := exampleLocker()
	defer locker.Close()
	key := func(_ context.Context, req any) (string, error) {
		r, ok := req.(*testpb.Request)
		if !ok || r.GetOrderId() == "" {
			return "", nil
		}
		return core.Join(r.GetCustomer().GetId(), r.GetOrderId()), nil
	}
	conn, stop := start(count(), grpc.UnaryInterceptor(grpclock.By(key, idempotency.WithLocker(locker))))
	defer stop()
	for _, id := range []string{"7", "7", "", ""} {
		order, err := testpb.NewOrdersClient(conn).Pay(with(), &testpb.Request{OrderId: id})
		fmt.Println(order.GetRun(), err)
	}
	// Output:
	// 1 <nil>
	// 1 <nil>
	// 2 <nil>
	// 3 <nil>
}
