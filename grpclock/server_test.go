package grpclock_test

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/grpclock/internal/testpb"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

const idempotencyKey = "idempotency-key"

// The reasons in the ErrorInfo of a refusal.
var (
	reasonKeyMissing         = strings.ToUpper(idempotency.CodeKeyMissing)
	reasonKeyInvalid         = strings.ToUpper(idempotency.CodeKeyInvalid)
	reasonKeyReused          = strings.ToUpper(idempotency.CodeKeyReused)
	reasonCredentialsChanged = strings.ToUpper(idempotency.CodeCredentialsChanged)
	reasonInFlight           = strings.ToUpper(idempotency.CodeInFlight)
	reasonResponseNotKept    = strings.ToUpper(idempotency.CodeResponseNotKept)
	reasonOutcomeUnknown     = strings.ToUpper(idempotency.CodeOutcomeUnknown)
	reasonLockBusy           = strings.ToUpper(idempotency.CodeLockBusy)
	reasonLockSealed         = strings.ToUpper(idempotency.CodeLockSealed)
	reasonLockLost           = strings.ToUpper(idempotency.CodeLockLost)
	reasonLockUnavailable    = strings.ToUpper(idempotency.CodeLockUnavailable)
	reasonPrincipalMissing   = strings.ToUpper(idempotency.CodePrincipalMissing)
	reasonMisconfigured      = strings.ToUpper(idempotency.CodeMisconfigured)
)

func TestMain(m *testing.M) {
	check.Parallel(8)
	slog.SetDefault(slog.New(slog.DiscardHandler))
	check.Main(m)
}

type (
	request = testpb.Request
	order   = testpb.Order
	handler = func(ctx context.Context, r *request) (*order, error)
)

// orders is a service whose handlers are the test's: all methods but Cancel and the streams run handle.
type orders struct {
	testpb.UnimplementedOrdersServer
	handle handler
	cancel func(ctx context.Context, r *request) (*testpb.Receipt, error)
	chat   func(s grpc.BidiStreamingServer[request, order]) error
}

func (o *orders) Create(ctx context.Context, r *request) (*order, error) { return o.handle(ctx, r) }
func (o *orders) Pay(ctx context.Context, r *request) (*order, error)    { return o.handle(ctx, r) }
func (o *orders) Refund(ctx context.Context, r *request) (*order, error) { return o.handle(ctx, r) }
func (o *orders) Grab(ctx context.Context, r *request) (*order, error)   { return o.handle(ctx, r) }
func (o *orders) Get(ctx context.Context, r *request) (*order, error)    { return o.handle(ctx, r) }
func (o *orders) Cancel(ctx context.Context, r *request) (*testpb.Receipt, error) {
	return o.cancel(ctx, r)
}
func (o *orders) Chat(s grpc.BidiStreamingServer[request, order]) error { return o.chat(s) }

// server is a gRPC server on a socket, and a client of it.
type server struct {
	t    testing.TB
	addr string
	testpb.OrdersClient
}

func serve(t testing.TB, o *orders, opts ...grpc.ServerOption) *server {
	t.Helper()
	return serveWith(t, func(r grpc.ServiceRegistrar) { testpb.RegisterOrdersServer(r, o) }, opts...)
}

func serveWith(t testing.TB, register func(grpc.ServiceRegistrar), opts ...grpc.ServerOption) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(append(opts, grpc.WaitForHandlers(true))...)
	register(g)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(l)
	}()
	t.Cleanup(func() {
		g.Stop()
		<-done
	})
	s := &server{t: t, addr: l.Addr().String()}
	s.OrdersClient = testpb.NewOrdersClient(s.dial())
	return s
}

// dial opens another connection; it is closed at the end of the test.
func (s *server) dial(opts ...grpc.DialOption) *grpc.ClientConn {
	s.t.Helper()
	opts = append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, opts...)
	conn, err := grpc.NewClient("passthrough:///"+s.addr, opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// once is the most used server: ByMetadata on a private Redis.
func once(t testing.TB, h handler, opts ...grpclock.Option) *server {
	t.Helper()
	opts = append([]grpclock.Option{idempotency.WithLocker(testutil.Locker(t))}, opts...)
	return serve(t, &orders{handle: h}, grpc.UnaryInterceptor(grpclock.ByMetadata(idempotencyKey, opts...)))
}

// answer is what a client sees.
type answer struct {
	order           *order
	err             error
	header, trailer metadata.MD
}

func (a answer) replayed() bool { return len(a.trailer.Get("idempotency-replayed")) == 1 }

type method = func(ctx context.Context, in *request, opts ...grpc.CallOption) (*order, error)

// ask calls a method; md is names and values. It may be called from any goroutine.
func ask(ctx context.Context, m method, r *request, md ...string) (a answer) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, md...)
	a.order, a.err = m(ctx, r, grpc.Header(&a.header), grpc.Trailer(&a.trailer))
	return a
}

// create calls Create with a key.
func (s *server) create(key string, r *request, md ...string) answer {
	return ask(context.Background(), s.Create, r, append(md, idempotencyKey, key)...)
}

// want checks for an order with the number of a run.
func (a answer) want(t testing.TB, run int64, replayed bool) {
	t.Helper()
	if a.err != nil || a.order.GetRun() != run || a.replayed() != replayed {
		t.Fatalf("got %v, %v, replayed %v; want run %d, replayed %v", a.order, a.err, a.replayed(), run, replayed)
	}
}

// reason is that in the error's ErrorInfo.
func (a answer) reason() string {
	for _, d := range status.Convert(a.err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.Domain == grpclock.Domain {
			return info.Reason
		}
	}
	return ""
}

func (a answer) wantRefusal(t testing.TB, code codes.Code, reason string) {
	t.Helper()
	if status.Code(a.err) != code || a.reason() != reason || a.replayed() {
		t.Fatalf("got %v, %v (%s), replayed %v; want %v with %s", a.order, a.err, a.reason(), a.replayed(), code, reason)
	}
}

func (a answer) wantCode(t testing.TB, code codes.Code, replayed bool) {
	t.Helper()
	if status.Code(a.err) != code || a.reason() != "" || a.replayed() != replayed {
		t.Fatalf("got %v, %v, replayed %v; want %v, replayed %v", a.order, a.err, a.replayed(), code, replayed)
	}
}

// counter answers with the number of the run.
func counter(runs *atomic.Int64) handler {
	return func(_ context.Context, r *request) (*order, error) {
		return &order{Id: r.OrderId, Run: runs.Add(1)}, nil
	}
}

// gate is a handler that stands still until it is opened, or the test is over.
type gate struct {
	entered, open chan struct{}
	over          <-chan struct{}
}

func newGate(t testing.TB) *gate {
	return &gate{make(chan struct{}, 64), make(chan struct{}), t.Context().Done()}
}

func (g *gate) stand() {
	g.entered <- struct{}{}
	select {
	case <-g.open:
	case <-g.over:
	}
}

// wait returns when a call stands at the gate.
func (g *gate) wait(t testing.TB) {
	t.Helper()
	select {
	case <-g.entered:
	case <-time.After(check.Patience):
		t.Fatal("no call came to the gate")
	}
}

// behind runs next once the gate is open.
func (g *gate) behind(next handler) handler {
	return func(ctx context.Context, r *request) (*order, error) {
		g.stand()
		return next(ctx, r)
	}
}

// later makes a call beside the test, which need not wait for its answer.
func later(call func() answer) <-chan answer {
	answers := make(chan answer, 1)
	go func() { answers <- call() }()
	return answers
}

// until asks again until ok.
func until(t testing.TB, call func() answer, ok func(answer) bool) answer {
	t.Helper()
	pause := 5 * time.Millisecond // more and more of it: a wait for the end of a lease is long
	for end := time.Now().Add(check.Patience); ; time.Sleep(pause) {
		if a := call(); ok(a) {
			return a
		} else if time.Now().After(end) {
			t.Fatalf("still %v, %v after %v", a.order, a.err, check.Patience)
		}
		pause = min(2*pause, 80*time.Millisecond)
	}
}

// lockerOn returns a Locker on a node; closed at the end of the test. It waits long for a busy machine.
func lockerOn(t testing.TB, n *testutil.Node, opts ...core.Option) *core.Locker {
	t.Helper()
	return lockerWithin(t, n, 10*time.Second, opts...)
}

// lockerWithin is lockerOn with a time-out for each call of the node.
func lockerWithin(t testing.TB, n *testutil.Node, timeout time.Duration, opts ...core.Option) *core.Locker {
	t.Helper()
	b := redisbackend.New(n.Client())
	b.NodeTimeout = timeout
	l, err := core.New(b, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// incoming is a value of the metadata that a handler sees.
func incoming(ctx context.Context, name string) string {
	if v := metadata.ValueFromIncomingContext(ctx, name); len(v) > 0 {
		return v[0]
	}
	return ""
}
