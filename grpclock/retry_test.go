package grpclock_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/grpclock/internal/testpb"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// retrying is a service config whose policy retries what leaves a call undone or in flight.
const retrying = `{"methodConfig":[{"name":[{"service":"onelane.test.v1.Orders"}],"retryPolicy":{
	"maxAttempts":5,"initialBackoff":"0.01s","maxBackoff":"0.1s","backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE","ABORTED"]}}]}`

// attempts counts what comes to the server.
func attempts(n *atomic.Int64) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		n.Add(1)
		return handler(ctx, req)
	}
}

// A refusal is nothing but trailers, so that the client's own policy goes on with it, when the trailers say so.
func TestRefusal_RetryPolicy(t *testing.T) {
	t.Parallel()
	var runs, tries, refusals atomic.Int64
	g := newGate(t)
	i := grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(testutil.Locker(t)))
	refused := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		resp, err := handler(ctx, req)
		if err != nil {
			refusals.Add(1)
		}
		return resp, err
	}
	s := serve(t, &orders{handle: g.behind(counter(&runs))}, grpc.ChainUnaryInterceptor(attempts(&tries), refused, i))
	client := testpb.NewOrdersClient(s.dial(grpc.WithDefaultServiceConfig(retrying)))
	first := later(func() answer { return ask(t.Context(), client.Create, &request{}, idempotencyKey, "k") })
	g.wait(t)
	start := time.Now()
	second := later(func() answer { return ask(t.Context(), client.Create, &request{}, idempotencyKey, "k") })
	until(t, func() answer { return answer{} }, func(answer) bool { return refusals.Load() > 0 })
	close(g.open)
	(<-first).want(t, 1, false)
	(<-second).want(t, 1, true)
	if tries.Load() < 3 {
		t.Errorf("%d attempts: nothing was retried", tries.Load())
	}
	// The back-off of the policy alone is 10 ms.
	if waited := time.Since(start); waited < 900*time.Millisecond {
		t.Errorf("the retry came after %v, before the time in grpc-retry-pushback-ms", waited)
	}
}

// The package's text warns of this case: with a header the refusal is an answer for the client's
// policy.
func TestRefusal_HeaderSetOutside(t *testing.T) {
	t.Parallel()
	var runs, tries atomic.Int64
	g := newGate(t)
	header := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		_ = grpc.SetHeader(ctx, metadata.Pairs("x-request-id", "1"))
		return handler(ctx, req)
	}
	i := grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(testutil.Locker(t)))
	s := serve(t, &orders{handle: g.behind(counter(&runs))}, grpc.ChainUnaryInterceptor(attempts(&tries), header, i))
	client := testpb.NewOrdersClient(s.dial(grpc.WithDefaultServiceConfig(retrying)))
	first := later(func() answer { return ask(t.Context(), client.Create, &request{}, idempotencyKey, "k") })
	g.wait(t)
	ask(t.Context(), client.Create, &request{}, idempotencyKey, "k").wantRefusal(t, codes.Aborted, reasonInFlight)
	if tries.Load() != 2 {
		t.Errorf("%d attempts, want 2", tries.Load())
	}
	close(g.open)
	(<-first).want(t, 1, false)
}

// The connection to the payment provider breaks after the charge. The handler returns the error of its call, and the
// client's policy sends it again.
func TestByMetadata_PassesOnUnavailable(t *testing.T) {
	t.Parallel()
	var charges, tries atomic.Int64
	i := grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(testutil.Locker(t)))
	s := serve(t, &orders{handle: func(context.Context, *request) (*order, error) {
		charges.Add(1)
		return nil, fmt.Errorf("charge: %w", status.Error(codes.Unavailable, "error reading from server: EOF"))
	}}, grpc.ChainUnaryInterceptor(attempts(&tries), i))
	client := testpb.NewOrdersClient(s.dial(grpc.WithDefaultServiceConfig(retrying)))
	a := ask(t.Context(), client.Create, &request{}, idempotencyKey, "k")
	if charges.Load() != 1 || tries.Load() < 2 {
		t.Errorf("%d charges under one key in %d attempts; the answer is %v", charges.Load(), tries.Load(), a.err)
	}
}

// The answer of the bank is larger than a gRPC client takes, which the handler's call learns after the charge.
func TestByMetadata_PassesOnTooLarge(t *testing.T) {
	t.Parallel()
	var charges atomic.Int64
	bank := serve(t, &orders{handle: func(context.Context, *request) (*order, error) {
		charges.Add(1)
		return &order{Blob: make([]byte, 5<<20)}, nil
	}})
	s := once(t, func(ctx context.Context, r *request) (*order, error) { return bank.Create(ctx, r) })
	s.create("k", &request{}).wantCode(t, codes.ResourceExhausted, false)
	if a := s.create("k", &request{}); charges.Load() != 1 {
		t.Errorf("%d charges under one key; the retry got %v", charges.Load(), a.err)
	}
}

// cutter is a proxy that cuts all its connections on demand.
type cutter struct {
	addr  string
	mu    sync.Mutex
	conns map[net.Conn]bool
}

func newCutter(t testing.TB, to string) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{addr: l.Addr().String(), conns: make(map[net.Conn]bool)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			c.mu.Lock()
			c.conns[in], c.conns[out] = true, true
			c.mu.Unlock()
			wg.Go(func() { _, _ = io.Copy(in, out); _ = in.Close(); _ = out.Close() })
			wg.Go(func() { _, _ = io.Copy(out, in); _ = in.Close(); _ = out.Close() })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		c.cut()
		wg.Wait()
	})
	return c
}

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.conns {
		_ = conn.Close()
	}
	clear(c.conns)
}

// The connection is cut after the handler ran and before its answer is sent. gRPC's own retry gets
// that answer, with the same key. Nobody but the client's interceptor chose that key.
func TestClient_RetryAfterLostAnswer(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	var keys sync.Map
	var c *cutter
	s := serve(t, &orders{handle: func(ctx context.Context, r *request) (*order, error) {
		keys.Store(incoming(ctx, idempotencyKey), true)
		c.cut()
		<-clientGone(ctx) // the handler makes the order all the same
		return counter(&runs)(ctx, r)
	}}, grpc.ChainUnaryInterceptor(watchClient, grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(testutil.Locker(t)), idempotency.Wait(5*time.Second))))
	c = newCutter(t, s.addr)
	conn, err := grpc.NewClient("passthrough:///"+c.addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(retrying), grpc.WithUnaryInterceptor(grpclock.UnaryClientInterceptor(idempotencyKey)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ask(t.Context(), testpb.NewOrdersClient(conn).Create, &request{}).want(t, 1, true)
	if n := runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
	count := 0
	keys.Range(func(any, any) bool { count++; return true })
	if count != 1 {
		t.Errorf("%d keys", count)
	}
}

func TestClient_Keys(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var keys []string
	s := serve(t, &orders{handle: func(ctx context.Context, _ *request) (*order, error) {
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, metadata.ValueFromIncomingContext(ctx, "x-key")...)
		return &order{}, nil
	}})
	client := testpb.NewOrdersClient(s.dial(grpc.WithUnaryInterceptor(grpclock.UnaryClientInterceptor("X-Key"))))
	for _, c := range []struct {
		name string
		call func() answer
		want func(keys []string) bool
	}{
		{"one for each call", func() answer {
			ask(t.Context(), client.Create, &request{})
			return ask(t.Context(), client.Create, &request{})
		}, func(k []string) bool { return len(k) == 2 && k[0] != k[1] && len(k[0]) > 20 }},
		{"one that is there is left alone", func() answer { return ask(t.Context(), client.Create, &request{}, "x-key", "mine") },
			func(k []string) bool { return len(k) == 1 && k[0] == "mine" }},
		{"that of the context, for retries of one's own", func() answer {
			return ask(idempotency.ContextWithKey(t.Context(), `a "b"`), client.Create, &request{})
		}, func(k []string) bool { return len(k) == 1 && k[0] == `"a \"b\""` }},
		{"none without side effects", func() answer { return ask(t.Context(), client.Get, &request{}) },
			func(k []string) bool { return len(k) == 0 }},
	} {
		keys = nil
		if a := c.call(); a.err != nil {
			t.Fatal(a.err)
		}
		if !c.want(keys) {
			t.Errorf("%s: %q", c.name, keys)
		}
	}
	ask(idempotency.ContextWithKey(t.Context(), "a\nb"), client.Create, &request{}).wantCode(t, codes.InvalidArgument, false)
}

// An attempt's number is no part of a key, and no part of the request.
func TestByMetadata_AttemptsAreNoKey(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := once(t, counter(&runs))
	s.create("k", &request{}).want(t, 1, false)
	for _, n := range []string{"1", "2", "-7", "nonsense"} {
		s.create("k", &request{}, "grpc-previous-rpc-attempts", n).want(t, 1, true)
	}
	ask(t.Context(), s.Create, &request{}, "grpc-previous-rpc-attempts", "1").want(t, 2, false)
	defer func() {
		if recover() == nil {
			t.Error("grpc-previous-rpc-attempts was taken for a key")
		}
	}()
	grpclock.ByMetadata("grpc-previous-rpc-attempts")
}

// The client's policy names Aborted, because of LOCK_BUSY. LOCK_LOST has the same code, but the
// handler ran.
func TestLockByKey_LostIsNotSentAgain(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	l := lockerOn(t, n, core.WithTTL(2*time.Second))
	var charges atomic.Int64
	s := serve(t, &orders{handle: func(ctx context.Context, r *request) (*order, error) {
		run := charges.Add(1)
		if run == 1 {
			n.Client().Del(context.Background(), "onelane:{order:7}")
			<-ctx.Done()
		}
		return &order{Id: r.OrderId, Run: run}, nil
	}}, grpc.UnaryInterceptor(grpclock.LockByKey("order:{req.order_id}", idempotency.WithLocker(l))))
	policy := strings.Replace(retrying, `"UNAVAILABLE"`, `"UNAVAILABLE","ABORTED"`, 1)
	client := testpb.NewOrdersClient(s.dial(grpc.WithDefaultServiceConfig(policy)))
	a := ask(t.Context(), client.Grab, &request{OrderId: "7"})
	if n := charges.Load(); n != 1 {
		t.Fatalf("%d charges in one call of the client; it got %v, %v", n, a.order, a.err)
	}
	a.wantRefusal(t, codes.Aborted, reasonLockLost)
}
