package grpclock_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/grpclock/internal/testpb"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil/backendtest"
)

// count is a method that counts its calls.
func count() handler {
	var runs atomic.Int64
	return func(context.Context, *testpb.Request) (*testpb.Order, error) {
		return &testpb.Order{Run: runs.Add(1)}, nil
	}
}

// The client gives each call a key, and gRPC's own retries keep it: here the server is too busy at first.
func ExampleUnaryClientInterceptor() {
	locker := exampleLocker()
	defer locker.Close()
	busy := true
	conn, stop := startWith(&orders{handle: count()}, []grpc.DialOption{
		grpc.WithUnaryInterceptor(grpclock.UnaryClientInterceptor("x-request-id")),
		grpc.WithDefaultServiceConfig(`{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":4,
			"initialBackoff":"0.01s","maxBackoff":"0.1s","backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE","ABORTED"]}}]}`),
	}, grpc.ChainUnaryInterceptor(
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if busy {
				busy = false
				return nil, status.Error(codes.Unavailable, "come again")
			}
			return next(ctx, req)
		},
		grpclock.ByMetadata("x-request-id", idempotency.Require(), idempotency.WithLocker(locker))))
	defer stop()
	order, err := testpb.NewOrdersClient(conn).Create(with(), &testpb.Request{})
	fmt.Println(order.GetRun(), err)
	// Output: 1 <nil>
}

// A client that must survive a crash makes the key itself, and stores it before the first call.
func ExampleUnaryClientInterceptor_storedKey() {
	locker := exampleLocker()
	defer locker.Close()
	conn, stop := startWith(&orders{handle: count()},
		[]grpc.DialOption{grpc.WithUnaryInterceptor(grpclock.UnaryClientInterceptor("idempotency-key"))},
		grpc.UnaryInterceptor(grpclock.ByMetadata("idempotency-key", idempotency.WithLocker(locker))))
	defer stop()
	client := testpb.NewOrdersClient(conn)
	stored := rand.Text() // in a file or a database
	for range 2 {         // the second call is after the crash
		order, err := client.Create(idempotency.ContextWithKey(with(), stored), &testpb.Request{})
		fmt.Println(order.GetRun(), err)
	}
	// Output:
	// 1 <nil>
	// 1 <nil>
}

// Ann's keys are not Ben's. An example believes metadata; a service takes what authentication has found out.
func ExamplePrincipal() {
	locker := exampleLocker()
	defer locker.Close()
	user := func(ctx context.Context) string {
		return strings.Join(metadata.ValueFromIncomingContext(ctx, "user"), "")
	}
	conn, stop := start(count(), grpc.UnaryInterceptor(
		grpclock.ByMetadata("idempotency-key", grpclock.Principal(user), idempotency.WithLocker(locker))))
	defer stop()
	for _, user := range []string{"ann", "ann", "ben"} {
		order, err := testpb.NewOrdersClient(conn).Create(with("user", user, "idempotency-key", "k1"), &testpb.Request{})
		fmt.Println(user, order.GetRun(), err)
	}
	// Output:
	// ann 1 <nil>
	// ann 1 <nil>
	// ben 2 <nil>
}

// An order that is not found may be there at the next try: the answer is not recorded.
func ExampleDecide() {
	locker := exampleLocker()
	defer locker.Close()
	answers := []codes.Code{codes.NotFound, codes.OK}
	conn, stop := start(func(context.Context, *testpb.Request) (*testpb.Order, error) {
		code := answers[0]
		answers = answers[1:]
		return &testpb.Order{}, status.Error(code, code.String())
	}, grpc.UnaryInterceptor(grpclock.ByMetadata("idempotency-key", idempotency.WithLocker(locker),
		grpclock.Decide(func(c codes.Code) idempotency.Fate {
			if c == codes.NotFound {
				return idempotency.FreeKey
			}
			return grpclock.DefaultFate(c)
		}))))
	defer stop()
	for range 3 {
		_, err := testpb.NewOrdersClient(conn).Pay(with("idempotency-key", "k1"), &testpb.Request{})
		fmt.Println(told(err))
	}
	// Output:
	// NotFound
	// OK
	// OK
}

// This client writes the time into each try: what makes it the same payment is the price.
func ExampleFingerprint() {
	locker := exampleLocker()
	defer locker.Close()
	price := func(_ context.Context, m proto.Message) []byte {
		if r, ok := m.(*testpb.Request); ok {
			return fmt.Append(nil, r.GetPrice())
		}
		all, _ := proto.MarshalOptions{Deterministic: true}.Marshal(m) // another method of the server
		return all
	}
	conn, stop := start(count(), grpc.UnaryInterceptor(
		grpclock.ByMetadata("idempotency-key", grpclock.Fingerprint(price), idempotency.WithLocker(locker))))
	defer stop()
	for _, try := range []struct {
		sent  string
		price int64
	}{{"10:00", 700}, {"10:01", 700}, {"10:02", 900}} {
		_, err := testpb.NewOrdersClient(conn).Create(with("idempotency-key", "k1"),
			&testpb.Request{Price: &try.price, Tags: []string{try.sent}})
		fmt.Println(told(err))
	}
	// Output:
	// OK
	// OK
	// FailedPrecondition IDEMPOTENCY_KEY_REUSED
}

// An answer that is too large to be kept is sent. A retry learns that the call ran.
func ExampleByMetadata_maxBody() {
	locker := exampleLocker()
	defer locker.Close()
	conn, stop := start(func(context.Context, *testpb.Request) (*testpb.Order, error) {
		return &testpb.Order{Blob: make([]byte, 4<<10)}, nil
	}, grpc.UnaryInterceptor(grpclock.ByMetadata("idempotency-key", idempotency.MaxBody(1<<10), idempotency.WithLocker(locker))))
	defer stop()
	for range 2 {
		order, err := testpb.NewOrdersClient(conn).Create(with("idempotency-key", "k1"), &testpb.Request{})
		fmt.Println(len(order.GetBlob()), told(err))
	}
	// Output:
	// 4096 OK
	// 0 FailedPrecondition IDEMPOTENCY_RESPONSE_NOT_KEPT
}

// When Redis is down, comments are taken and payments are not.
func ExampleByMetadata_failOpen() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	redisClient := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1})
	defer redisClient.Close()
	backend := redisbackend.New(redisClient)
	backend.NodeTimeout = 100 * time.Millisecond
	locker, err := core.New(backend)
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	server.Close() // Redis is down
	for _, option := range []grpclock.Option{nil, idempotency.FailOpen()} {
		conn, stop := start(count(), grpc.UnaryInterceptor(grpclock.ByMetadata("idempotency-key", idempotency.WithLocker(locker), option)))
		_, err := testpb.NewOrdersClient(conn).Create(with("idempotency-key", "k1"), &testpb.Request{})
		fmt.Println(told(err))
		stop()
	}
	// Output:
	// Unavailable LOCK_UNAVAILABLE
	// OK
}

// Answers have what customers bought: in Redis they are encrypted.
func ExampleByMetadata_encryption() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	redisClient := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer redisClient.Close()
	locker, err := core.New(redisbackend.New(redisClient))
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	block, err := aes.NewCipher(bytes.Repeat([]byte{1}, 32)) // a service reads its key from where its secrets are
	if err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	conn, stop := start(func(context.Context, *testpb.Request) (*testpb.Order, error) {
		return &testpb.Order{Id: "a book about roses"}, nil
	}, grpc.UnaryInterceptor(grpclock.ByMetadata("idempotency-key", idempotency.WithLocker(locker),
		idempotency.WithEncryption(idempotency.EncryptionKey{ID: "2025", AEAD: aead}))))
	defer stop()
	for range 2 {
		order, err := testpb.NewOrdersClient(conn).Create(with("idempotency-key", "k1"), &testpb.Request{})
		fmt.Println(order.GetId(), err)
	}
	readable := false
	for _, key := range server.Keys() {
		value, _ := server.Get(key)
		readable = readable || strings.Contains(value, "roses")
	}
	fmt.Println("readable in Redis:", readable)
	// Output:
	// a book about roses <nil>
	// a book about roses <nil>
	// readable in Redis: false
}

// The process died, or the provider did not answer in time: nobody knows whether the customer paid. The retry asks.
func ExampleRecover() {
	locker, err := core.New(backendtest.Memory(), core.WithTTL(100*time.Millisecond)) // a service keeps the default
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	paid := make(map[string]bool) // at the provider
	ask := func(ctx context.Context, _ any, _ idempotency.Run) (any, idempotency.Recovery, error) {
		charge, err := idempotency.DeriveKey(ctx, "charge")
		if err != nil {
			return nil, idempotency.StillUnknown, err
		}
		if paid[charge] {
			return &testpb.Order{Id: "paid"}, idempotency.Answered, nil
		}
		return nil, idempotency.RunHandler, nil
	}
	conn, stop := start(func(ctx context.Context, _ *testpb.Request) (*testpb.Order, error) {
		charge, err := idempotency.DeriveKey(ctx, "charge")
		if err != nil {
			return nil, err
		}
		paid[charge] = true
		return nil, status.Error(codes.DeadlineExceeded, "the provider did not answer")
	}, grpc.UnaryInterceptor(grpclock.ByMetadata("idempotency-key", grpclock.Recover(ask), idempotency.WithLocker(locker))))
	defer stop()
	for {
		order, err := testpb.NewOrdersClient(conn).Pay(with("idempotency-key", "k1"), &testpb.Request{})
		if status.Code(err) == codes.Aborted { // the lease of the first has not ended
			time.Sleep(10 * time.Millisecond)
			continue
		}
		fmt.Println(order.GetId(), told(err))
		if err == nil {
			return
		}
	}
	// Output:
	// DeadlineExceeded
	// paid OK
}

// A retry also gets the header that says where the order is.
func ExampleMetadata() {
	locker := exampleLocker()
	defer locker.Close()
	conn, stop := start(func(ctx context.Context, _ *testpb.Request) (*testpb.Order, error) {
		return &testpb.Order{}, grpc.SetHeader(ctx, metadata.Pairs("location", "/orders/1", "x-trace", "42"))
	}, grpc.UnaryInterceptor(grpclock.ByMetadata("idempotency-key", grpclock.Metadata("location"), idempotency.WithLocker(locker))))
	defer stop()
	for range 2 {
		var header metadata.MD
		_, err := testpb.NewOrdersClient(conn).Create(with("idempotency-key", "k1"), &testpb.Request{}, grpc.Header(&header))
		fmt.Println(header["location"], header["x-trace"], err)
	}
	// Output:
	// [/orders/1] [42] <nil>
	// [/orders/1] [] <nil>
}
