package grpclock_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/grpclock/internal/testpb"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

func TestReplay_ErrorDetails(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := once(t, func(context.Context, *request) (*order, error) {
		runs.Add(1)
		st, err := status.New(codes.FailedPrecondition, "söld out\n%").WithDetails(
			&errdetails.ErrorInfo{Reason: "SOLD_OUT", Domain: "shop"}, &errdetails.LocalizedMessage{Locale: "zh", Message: "售罄"}, &order{Id: "7"})
		if err != nil {
			t.Error(err)
		}
		p := st.Proto() // and a detail of a type that nobody knows
		p.Details = append(p.Details, &anypb.Any{TypeUrl: "type.googleapis.com/no.such.Type", Value: []byte{1, 2}})
		return nil, status.ErrorProto(p)
	})
	first := s.create("k", &request{})
	first.wantCode(t, codes.FailedPrecondition, false)
	again := s.create("k", &request{})
	again.wantCode(t, codes.FailedPrecondition, true)
	if a, b := status.Convert(first.err).Proto(), status.Convert(again.err).Proto(); !proto.Equal(a, b) || len(b.Details) != 4 {
		t.Errorf("%v is replayed as %v", a, b)
	}
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}

func TestReplay_Messages(t *testing.T) {
	t.Parallel()
	unknown := protowire.AppendBytes(protowire.AppendTag(nil, 99, protowire.BytesType), []byte("from a newer version"))
	withUnknown := &order{Id: "1"}
	withUnknown.ProtoReflect().SetUnknown(unknown)
	inner, err := anypb.New(&testpb.Receipt{Id: "inner"})
	if err != nil {
		t.Fatal(err)
	}
	large := make([]byte, 900<<10)
	_, _ = rand.NewChaCha8([32]byte{}).Read(large)
	for name, o := range map[string]*order{
		"full":             {Id: "1", Run: 7, Extra: inner},
		"Any of no type":   {Extra: &anypb.Any{TypeUrl: "example.com/no.such.Type", Value: []byte("\x00\xff")}},
		"unknown fields":   withUnknown,
		"empty":            {},
		"nil":              nil,
		"900 KiB of noise": {Blob: large},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			s := once(t, func(context.Context, *request) (*order, error) { runs.Add(1); return o, nil })
			for i, compressor := range []string{"", "", gzip.Name} {
				var opts []grpc.CallOption
				if compressor != "" {
					opts = append(opts, grpc.UseCompressor(compressor))
				}
				a := ask(t.Context(), func(ctx context.Context, r *request, more ...grpc.CallOption) (*order, error) {
					return s.Create(ctx, r, append(more, opts...)...)
				}, &request{}, idempotencyKey, "k")
				want := o
				if want == nil {
					want = &order{}
				}
				if a.err != nil || !proto.Equal(a.order, want) || a.replayed() != (i > 0) {
					t.Errorf("call %d: %v, %v, replayed %v", i, a.order, a.err, a.replayed())
				}
			}
			if runs.Load() != 1 {
				t.Errorf("%d runs", runs.Load())
			}
		})
	}
}

// An answer larger than MaxBody is sent, and is not kept.
func TestMaxBody_LargeAnswers(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]handler{
		"message": func(context.Context, *request) (*order, error) { return &order{Blob: make([]byte, 2000)}, nil },
		"header": func(ctx context.Context, _ *request) (*order, error) {
			return &order{}, grpc.SetHeader(ctx, metadata.Pairs("x", strings.Repeat("x", 2000)))
		},
		"error": func(context.Context, *request) (*order, error) {
			return nil, status.Error(codes.NotFound, strings.Repeat("x", 2000))
		},
		"invalid UTF-8": func(context.Context, *request) (*order, error) { return &order{Id: "\xff"}, nil }, // grpc cannot send it
	} {
		t.Run(name, func(t *testing.T) {
			var runs atomic.Int64
			s := once(t, func(ctx context.Context, r *request) (*order, error) { runs.Add(1); return h(ctx, r) }, idempotency.MaxBody(1000), grpclock.Metadata("x"))
			if a := s.create("k", &request{}); a.replayed() || a.reason() != "" {
				t.Errorf("%v, %v", a.order, a.err)
			}
			for range 2 {
				s.create("k", &request{}).wantRefusal(t, codes.FailedPrecondition, reasonResponseNotKept)
			}
			if runs.Load() != 1 {
				t.Errorf("%d runs", runs.Load())
			}
		})
	}
}

func TestMetadata_HeadersAndTrailers(t *testing.T) {
	t.Parallel()
	outside := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if err := grpc.SetSendCompressor(ctx, gzip.Name); err != nil {
			t.Error(err)
		}
		_ = grpc.SetHeader(ctx, metadata.Pairs("x-outside", "h", "both", "outside"))
		_ = grpc.SetTrailer(ctx, metadata.Pairs("x-outside", "t"))
		return handler(ctx, req)
	}
	inside := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		_ = grpc.SetTrailer(ctx, metadata.Pairs("x-inside", "t"))
		return handler(ctx, req)
	}
	for _, tc := range []struct {
		name string
		send func(ctx context.Context, md metadata.MD) error
		err  error
	}{
		{"SetHeader", grpc.SetHeader, nil},
		{"SendHeader", grpc.SendHeader, nil},
		{"SetHeader and an error", grpc.SetHeader, status.Error(codes.NotFound, "gone")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			s := serve(t, &orders{handle: func(ctx context.Context, _ *request) (*order, error) {
				runs.Add(1)
				err := tc.send(ctx, metadata.Pairs("location", "/orders/1", "both", "inside", "list", "a", "list", "b", "x-bin", "\x00\xff",
					"set-cookie", "secret", "x-trace", "1"))
				if err != nil {
					t.Error(err)
				}
				return &order{}, errFirst(grpc.SetTrailer(ctx, metadata.Pairs("cost", "7", "x-bin", "\x01", "x-api-key", "secret")), tc.err)
			}}, grpc.ChainUnaryInterceptor(outside, grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(testutil.Locker(t)),
				grpclock.Metadata("Location", "both", "list", "x-bin", "cost", "x-inside", "x-outside")), inside))
			first, again := s.create("k", &request{}), s.create("k", &request{})
			if !again.replayed() || runs.Load() != 1 {
				t.Fatalf("%v, %v, %d runs", again.err, again.trailer, runs.Load())
			}
			for name, values := range map[string][]string{
				"location": {"/orders/1"}, "list": {"a", "b"}, "x-bin": {"\x00\xff"}, "x-outside": {"h"}, "both": {"outside", "inside"},
			} {
				if f, a := first.header.Get(name), again.header.Get(name); !slices.Equal(f, values) || !slices.Equal(a, values) {
					t.Errorf("header %s: first %q, replayed %q, want %q", name, f, a, values)
				}
			}
			for name, values := range map[string][]string{"cost": {"7"}, "x-bin": {"\x01"}, "x-outside": {"t"}, "x-inside": {"t"}} {
				if f, a := first.trailer.Get(name), again.trailer.Get(name); !slices.Equal(f, values) || !slices.Equal(a, values) {
					t.Errorf("trailer %s: first %q, replayed %q, want %q", name, f, a, values)
				}
			}
			for _, name := range []string{"set-cookie", "x-trace", "x-api-key"} {
				if v := append(again.header.Get(name), again.trailer.Get(name)...); len(v) > 0 {
					t.Errorf("%s is replayed: %q", name, v)
				}
			}
		})
	}
}

func errFirst(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// wrapper is what an interceptor outside may have made of the stream.
type wrapper struct{ grpc.ServerTransportStream }

// A stream that cannot be asked is listened to.
func TestMetadata_WrappedStream(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	wrap := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		return handler(grpc.NewContextWithServerTransportStream(ctx, wrapper{grpc.ServerTransportStreamFromContext(ctx)}), req)
	}
	s := serve(t, &orders{handle: func(ctx context.Context, r *request) (*order, error) {
		err := errFirst(grpc.SetHeader(ctx, metadata.Pairs("a", "1")), grpc.SetTrailer(ctx, metadata.Pairs("b", "2")), grpc.SendHeader(ctx, metadata.Pairs("c", "3")))
		if err != nil {
			return nil, err
		}
		if grpc.SetHeader(ctx, metadata.Pairs("d", "4")) == nil {
			return nil, status.Error(codes.Internal, "a header was set after it was sent")
		}
		return counter(&runs)(ctx, r)
	}}, grpc.ChainUnaryInterceptor(wrap, grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(testutil.Locker(t)), grpclock.Metadata("a", "b", "c", "d"))))
	s.create("k", &request{}).want(t, 1, false)
	a := s.create("k", &request{})
	a.want(t, 1, true)
	if fmt.Sprint(a.header.Get("a"), a.trailer.Get("b"), a.header.Get("c"), a.header.Get("d")) != "[1] [2] [3] []" {
		t.Errorf("%v %v", a.header, a.trailer)
	}
}

// The messages are copies: a handler, or an interceptor outside, may do with its own what it likes.
func TestReplay_FreshMessages(t *testing.T) {
	t.Parallel()
	var seen []*order
	outside := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		resp, err := handler(ctx, req)
		o := resp.(*order) // of the method's own type
		seen = append(seen, o)
		o.Blob = bytes.Clone(o.Blob)
		o.Id += "!"
		return o, err
	}
	s := serve(t, &orders{handle: func(context.Context, *request) (*order, error) { return &order{Id: "1"}, nil }},
		grpc.ChainUnaryInterceptor(outside, grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(testutil.Locker(t)))))
	for range 3 {
		if a := s.create("k", &request{}); a.err != nil || a.order.Id != "1!" {
			t.Errorf("%v, %v", a.order, a.err)
		}
	}
	if len(seen) != 3 || seen[1] == seen[2] {
		t.Errorf("%p", seen)
	}
}

// The client hangs up while the handler runs; the handler then sets a header and a trailer.
func TestMetadata_ClientGone(t *testing.T) {
	t.Parallel()
	var setErr atomic.Value
	g := newGate(t)
	s := leasing(t, time.Minute, func(ctx context.Context, r *request) (*order, error) {
		g.entered <- struct{}{}
		<-clientGone(ctx)
		g.stand()
		if err := grpc.SetHeader(ctx, metadata.Pairs("x-order", "7")); err != nil {
			setErr.Store(err)
		}
		if err := grpc.SetTrailer(ctx, metadata.Pairs("x-cost", "9")); err != nil {
			setErr.Store(err)
		}
		return &order{Run: 1}, nil
	}, grpclock.Metadata("x-order", "x-cost"))
	s.hangUp(t, g, false)
	g.wait(t)
	close(g.open)
	a := until(t, func() answer { return s.create("k", &request{}) }, func(a answer) bool { return a.err == nil })
	if !a.replayed() || len(a.header.Get("x-order")) != 1 || len(a.trailer.Get("x-cost")) != 1 {
		t.Errorf("replayed %v, header %v, trailer %v; SetHeader/SetTrailer: %v", a.replayed(), a.header, a.trailer, setErr.Load())
	}
}

// gRPC sends such a text with U+FFFD, and protobuf does not take it.
func TestReplay_ErrorThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	s := once(t, func(context.Context, *request) (*order, error) {
		return nil, status.Error(codes.NotFound, "no \xfcbung")
	})
	first, again := s.create("k", &request{}), s.create("k", &request{})
	first.wantCode(t, codes.NotFound, false)
	again.wantCode(t, codes.NotFound, true)
	if first.err.Error() != again.err.Error() {
		t.Errorf("%v is replayed as %v", first.err, again.err)
	}
}
