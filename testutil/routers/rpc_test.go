package routers

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

type text = wrapperspb.StringValue

const method = "/shop.v1.Orders/Create"

// ordersServer is what protoc-gen-go-grpc calls the interface of a service.
type ordersServer interface {
	Create(context.Context, *text) (*text, error)
}

type orders struct{ runs atomic.Int64 }

func (o *orders) Create(_ context.Context, r *text) (*text, error) {
	return wrapperspb.String(fmt.Sprintf("%s, run %d", r.Value, o.runs.Add(1))), nil
}

// ordersService is as protoc-gen-go-grpc writes it.
var ordersService = grpc.ServiceDesc{
	ServiceName: "shop.v1.Orders",
	HandlerType: (*ordersServer)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Create",
		Handler: func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			in := new(text)
			if err := decode(in); err != nil {
				return nil, err
			}
			return interceptor(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: method},
				func(ctx context.Context, req any) (any, error) {
					return srv.(ordersServer).Create(ctx, req.(*text))
				})
		},
	}},
}

// keyMatcher is the one of docs/idempotency.md.
func keyMatcher(name string) (string, bool) {
	if strings.EqualFold(name, "Idempotency-Key") {
		return "idempotency-key", true
	}
	return runtime.DefaultHeaderMatcher(name)
}

// gateway starts a gRPC server under grpclock.ByMetadata, and a gateway before it.
func gateway(t *testing.T, o *orders, opts ...runtime.ServeMuxOption) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(
		grpclock.ByMetadata("idempotency-key", idempotency.WithLocker(testutil.Locker(t)))))
	server.RegisterService(&ordersService, o)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	conn, err := grpc.NewClient("passthrough:///"+listener.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	mux := runtime.NewServeMux(opts...)
	if err := mux.HandlePath("POST", "/v1/orders", forward(mux, conn)); err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(mux)
	t.Cleanup(func() {
		front.Close()
		_ = conn.Close()
		server.Stop()
		<-served
	})
	return front.URL
}

// forward does what protoc-gen-grpc-gateway writes for a method with body: "*".
func forward(mux *runtime.ServeMux, conn *grpc.ClientConn) runtime.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request, _ map[string]string) {
		in, out := runtime.MarshalerForRequest(mux, r)
		ctx, err := runtime.AnnotateContext(r.Context(), mux, r, method)
		if err != nil {
			runtime.HTTPError(r.Context(), mux, out, w, r, err)
			return
		}
		var header, trailer metadata.MD
		req, resp := new(text), new(text)
		if err = in.NewDecoder(r.Body).Decode(req); err == nil {
			err = conn.Invoke(ctx, method, req, resp, grpc.Header(&header), grpc.Trailer(&trailer))
		}
		ctx = runtime.NewServerMetadataContext(ctx, runtime.ServerMetadata{HeaderMD: header, TrailerMD: trailer})
		if err != nil {
			runtime.HTTPError(ctx, mux, out, w, r, err)
			return
		}
		runtime.ForwardResponseMessage(ctx, mux, out, w, r, resp)
	}
}

// send posts an order with a key.
func send(t *testing.T, url, body, key string) (status int, answer string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestGateway_HeaderMatcher(t *testing.T) {
	t.Parallel()
	o := new(orders)
	url := gateway(t, o, runtime.WithIncomingHeaderMatcher(keyMatcher)) + "/v1/orders"
	for range 3 {
		if status, answer := send(t, url, `"book"`, `"k"`); status != 200 || answer != `"book, run 1"` {
			t.Errorf("%d %s", status, answer)
		}
	}
	// gRPC's FAILED_PRECONDITION is 400 over HTTP.
	if status, answer := send(t, url, `"pen"`, `"k"`); status != 400 || !strings.Contains(answer, "IDEMPOTENCY_KEY_REUSED") {
		t.Errorf("%d %s", status, answer)
	}
	if status, answer := send(t, url, `"book"`, `"other"`); status != 200 || answer != `"book, run 2"` {
		t.Errorf("%d %s", status, answer)
	}
	if n := o.runs.Load(); n != 2 {
		t.Errorf("%d runs", n)
	}
}

// Without the matcher the gateway drops the key, and each call runs: it is the matcher that protects.
func TestGateway_WithoutTheMatcher(t *testing.T) {
	t.Parallel()
	o := new(orders)
	url := gateway(t, o) + "/v1/orders"
	for range 2 {
		send(t, url, `"book"`, `"k"`)
	}
	if n := o.runs.Load(); n != 2 {
		t.Errorf("%d runs: the gateway forwards the key by itself, so docs/idempotency.md can be shorter", n)
	}
}

// connectOrders serves a Connect handler under idempotency.ByHeader.
func connectOrders(t *testing.T, create func(context.Context, *connect.Request[text]) (*connect.Response[text], error)) string {
	t.Helper()
	mux := http.NewServeMux()
	once := idempotency.ByHeader("Idempotency-Key", idempotency.WithLocker(testutil.Locker(t)))
	mux.Handle(method, once(connect.NewUnaryHandler(method, create)))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

func connectClient(url string, opts ...connect.ClientOption) *connect.Client[text, text] {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return connect.NewClient[text, text](client, url+method, opts...)
}

func call(client *connect.Client[text, text], body, key string) (*connect.Response[text], error) {
	r := connect.NewRequest(wrapperspb.String(body))
	r.Header().Set("Idempotency-Key", key)
	return client.CallUnary(context.Background(), r)
}

// The protocol of Connect, as protobuf and as JSON, is plain HTTP: a repeat gets the recorded answer.
func TestConnect_Replay(t *testing.T) {
	t.Parallel()
	o := new(orders)
	url := connectOrders(t, func(ctx context.Context, r *connect.Request[text]) (*connect.Response[text], error) {
		answer, err := o.Create(ctx, r.Msg)
		return connect.NewResponse(answer), err
	})
	for name, client := range map[string]*connect.Client[text, text]{
		"protobuf": connectClient(url), "json": connectClient(url, connect.WithProtoJSON()),
	} {
		first, err := call(client, "book", name)
		if err != nil {
			t.Fatal(name, err)
		}
		again, err := call(client, "book", name)
		if err != nil || again.Msg.Value != first.Msg.Value || again.Header().Get("Idempotency-Replayed") != "true" {
			t.Errorf("%s: %v, %v after %v", name, again, err, first)
		}
		if other, err := call(client, "pen", name); err == nil {
			t.Errorf("%s: another payload got %v", name, other)
		}
	}
	if n := o.runs.Load(); n != 2 {
		t.Errorf("%d runs", n)
	}
}

// The errors of a Connect handler are statuses of HTTP, and docs/idempotency.md says what they mean.
func TestConnect_Errors(t *testing.T) {
	t.Parallel()
	for code, runs := range map[connect.Code]int64{
		connect.CodeInternal: 1, connect.CodeNotFound: 1, // recorded
		connect.CodeInvalidArgument: 2, connect.CodeAborted: 2, connect.CodeResourceExhausted: 2, // nothing was done
		connect.CodeUnavailable: 1, connect.CodeDeadlineExceeded: 1, // unknown
	} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			var ran atomic.Int64
			client := connectClient(connectOrders(t, func(context.Context, *connect.Request[text]) (*connect.Response[text], error) {
				ran.Add(1)
				return nil, connect.NewError(code, fmt.Errorf("no"))
			}))
			for range 2 {
				if _, err := call(client, "book", "k"); err == nil {
					t.Error("no error")
				}
			}
			if n := ran.Load(); n != runs {
				t.Errorf("%d runs, want %d", n, runs)
			}
		})
	}
}
