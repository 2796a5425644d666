package grpclock_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/grpclock/internal/testpb"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/testutil"
)

// A record that nobody can read, or that is none of this method, is no licence to run again, and no answer.
func TestForgedRecords(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	s := serve(t, &orders{handle: counter(&runs)}, grpc.UnaryInterceptor(grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(l), grpclock.Metadata("ok"))))
	fingerprint := claim.FingerprintOf(claim.Parts{
		claim.Method: claim.Digest([]byte("/onelane.test.v1.Orders/Create")),
		claim.Body:   claim.Digest(canonical(t, (&request{}).ProtoReflect())),
	})
	fingerprint.Credentials = claim.Credentials(nil, nil, nil)
	full := func(key string) string {
		return core.Join("", "", "grpc", "metadata idempotency-key", key)
	}
	forge := func(key string, r *claim.Record) {
		t.Helper()
		out, err := claim.New(l, "grpc", claim.DefaultSettings()).Begin(context.Background(), claim.Request{Key: full(key), Fingerprint: fingerprint})
		if err != nil || out.Claim == nil {
			t.Fatalf("%+v, %v", out, err)
		}
		if err := out.Claim.Complete(r); err != nil {
			t.Fatal(err)
		}
	}
	body := func(m proto.Message) []byte {
		a, err := anypb.New(m)
		if err != nil {
			t.Fatal(err)
		}
		b, err := proto.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for name, r := range map[string]*claim.Record{
		"another method's type": {Body: body(&testpb.Receipt{Id: "x", Run: 9})},
		"no type":               {Body: nil},
		"unheard of":            {Body: func() []byte { b, _ := proto.Marshal(&anypb.Any{TypeUrl: "x/no.such"}); return b }()},
		"garbage":               {Body: []byte("garbage")},
		"garbage inside": {Body: func() []byte {
			b, _ := proto.Marshal(&anypb.Any{TypeUrl: "x/onelane.test.v1.Order", Value: []byte("\xff")})
			return b
		}()},
		"of HTTP":             {Status: 201, Body: []byte("{}")},
		"status without body": {Status: 5, Body: nil},
		"two codes":           {Status: 5, Body: []byte{8, 6}},
		"OK in an error":      {Status: 5, Body: []byte{8, 0}},
		"garbage error":       {Status: 5, Body: []byte("garbage")},
		"a tombstone":         claim.Tombstone(),
	} {
		forge(name, r)
		a := s.create(name, &request{})
		if a.wantRefusal(t, codes.FailedPrecondition, reasonResponseNotKept); runs.Load() != 0 {
			t.Fatalf("%s ran", name)
		}
	}
	k, err := l.Acquire(t.Context(), claim.LockKey(l, claim.KeyPrefix, full("no record")))
	if err == nil {
		err = k.Seal(t.Context(), []byte("\x08\x63"), time.Minute)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.create("no record", &request{}).wantRefusal(t, codes.FailedPrecondition, reasonResponseNotKept)
	// A well-formed record is taken, except for metadata that is not ours to send.
	forge("good", &claim.Record{Body: body(&order{Run: 7}), Header: map[string][]string{
		"header:set-cookie": {"x"}, "header:grpc-status": {"5"}, "trailer:grpc-status-details-bin": {"x"}, "header::path": {"x"},
		"x-plain": {"x"}, "header:": {"x"}, "trailer:idempotency-replayed": {"false"}, "header:ok": {"y"},
	}})
	a := s.create("good", &request{})
	a.want(t, 7, true)
	for name := range maps.Keys(metadata.Join(a.header, a.trailer)) {
		if name != "ok" && name != "content-type" && name != "idempotency-replayed" {
			t.Errorf("%s: %v %v", name, a.header, a.trailer)
		}
	}
}

// An answer that is never replayed is not in Redis either.
func TestMetadata_CredentialsNotStored(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	s := serve(t, &orders{handle: func(ctx context.Context, _ *request) (*order, error) {
		_ = grpc.SetTrailer(ctx, metadata.Pairs("authorization", "secret", "plain", "kept", "other", "dropped"))
		return &order{}, grpc.SetHeader(ctx, metadata.Pairs("set-cookie", "secret"))
	}}, grpc.UnaryInterceptor(grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(lockerOn(t, n)), grpclock.Metadata("Plain"))))
	s.create("k", &request{}, "authorization", "secret").want(t, 0, false)
	if _, value := claimOf(t, n); strings.Contains(value, "secret") || strings.Contains(value, "dropped") || !strings.Contains(value, "kept") {
		t.Errorf("the record is %q", value)
	}
}

// A claim that was lost, and taken over, cannot complete; its own client still gets its answer.
func TestByMetadata_ClaimTakenOver(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	first, second, n := newGate(t), newGate(t), testutil.Redis(t)
	l, other := lockerOn(t, n, core.WithTTL(30*time.Second)), lockerOn(t, n)
	byKey := func(l *core.Locker) grpc.ServerOption {
		return grpc.UnaryInterceptor(grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(l)))
	}
	s, s2 := serve(t, &orders{handle: first.behind(counter(&runs))}, byKey(l)), serve(t, &orders{handle: second.behind(counter(&runs))}, byKey(other))
	one := later(func() answer { return s.create("k", &request{}) })
	first.wait(t)
	key, _ := claimOf(t, n)
	if err := n.Client().Del(context.Background(), key).Err(); err != nil { // as an eviction, or a fail-over to an empty replica
		t.Fatal(err)
	}
	two := later(func() answer { return s2.create("k", &request{}) })
	second.wait(t)
	close(first.open)
	(<-one).want(t, 1, false)
	s2.create("k", &request{}).wantRefusal(t, codes.Aborted, reasonInFlight)
	close(second.open)
	(<-two).want(t, 2, false)
	s.create("k", &request{}).want(t, 2, true)
}

// A handler that gives up since its claim is lost is not a canceled client. A handler that fails
// otherwise says why.
func TestByMetadata_ClaimLost(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	l := lockerOn(t, n, core.WithTTL(2*time.Second))
	s := serve(t, &orders{handle: func(ctx context.Context, r *request) (*order, error) {
		n.Client().FlushAll(context.Background()) // of the one claim
		<-ctx.Done()
		if r.Quantity > 0 {
			return nil, status.Error(codes.DataLoss, "half of it is done")
		}
		return nil, ctx.Err()
	}}, grpc.UnaryInterceptor(grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(l))))
	s.create("k", &request{}).wantRefusal(t, codes.Aborted, reasonLockLost)
	s.create("k", &request{Quantity: 1}).wantCode(t, codes.DataLoss, false)
}

// An answer that is not of the method's type, which somebody inside has put there, is no answer to replay.
func TestRecord_AnotherMessage(t *testing.T) {
	t.Parallel()
	other := func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
		return &testpb.Receipt{Id: "x"}, nil
	}
	s := serve(t, &orders{}, grpc.ChainUnaryInterceptor(grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(testutil.Locker(t))), other))
	if a := s.create("k", &request{}); a.err != nil || a.order.Id != "x" {
		t.Errorf("%v, %v", a.order, a.err)
	}
	s.create("k", &request{}).wantRefusal(t, codes.FailedPrecondition, reasonResponseNotKept)
}

// A service that is made at run time has types that nobody else knows: its answers are replayed as what its handler made.
func TestReplay_TypesOfNoRegistry(t *testing.T) {
	t.Parallel()
	i := grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(testutil.Locker(t)))
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("made.proto"), Package: proto.String("made"), MessageType: []*descriptorpb.DescriptorProto{{Name: proto.String("Answer")}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	made := dynamicpb.NewMessage(file.Messages().Get(0))
	made.SetUnknown([]byte{0x08, 7})
	ctx, runs := metadata.NewIncomingContext(t.Context(), metadata.Pairs(idempotencyKey, "k")), 0
	for range 2 {
		resp, err := i(ctx, &request{}, &grpc.UnaryServerInfo{FullMethod: "/made.Service/Do"},
			func(context.Context, any) (any, error) { runs++; return made, nil })
		if m, ok := resp.(proto.Message); err != nil || !ok || !proto.Equal(m, made) || runs != 1 {
			t.Errorf("%v, %v after %d runs", resp, err, runs)
		}
	}
}

// One interceptor may serve two programs' types of one method: generated ones, and those made at run time.
func TestByField_TwoTypesOfOneMethod(t *testing.T) {
	t.Parallel()
	i := grpclock.LockByKey("order:{req.order_id}", idempotency.WithLocker(testutil.Locker(t)))
	file, err := protodesc.NewFile(protodesc.ToFileDescriptorProto(testpb.File_test_proto), protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	made := dynamicpb.NewMessage(file.Messages().ByName("Request"))
	made.Set(made.Descriptor().Fields().ByName("order_id"), protoreflect.ValueOfString("1"))
	for _, req := range []any{&request{OrderId: "1"}, made, &request{OrderId: "1"}} {
		resp, err := i(t.Context(), req, &grpc.UnaryServerInfo{FullMethod: testpb.Orders_Create_FullMethodName},
			func(context.Context, any) (any, error) { return &order{Id: "made"}, nil })
		if o, ok := resp.(*order); err != nil || !ok || o.Id != "made" {
			t.Errorf("%T: %v, %v", req, resp, err)
		}
	}
}

// No metadata of a client, however much or strange, gets past the key.
func TestByMetadata_HugeMetadata(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := once(t, counter(&runs))
	s.create(strings.Repeat("k", 1<<20), &request{}).wantRefusal(t, codes.InvalidArgument, reasonKeyInvalid)
	var md []string
	for i := range 2000 {
		md = append(md, fmt.Sprintf("x-%d", i), strings.Repeat("v", 100))
	}
	s.create("k", &request{}, md...).want(t, 1, false)
	s.create("k", &request{}).want(t, 1, true)
	many := make([]string, 0, 2000)
	for range 1000 {
		many = append(many, idempotencyKey, "k")
	}
	ask(t.Context(), s.Create, &request{}, many...).wantRefusal(t, codes.InvalidArgument, reasonKeyInvalid)
	s.create("k2", &request{}, "authorization", strings.Repeat("a", 1<<20)).want(t, 2, false)
}

// A handler that sends more metadata than is kept.
func TestMaxBody_Metadata(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := once(t, func(ctx context.Context, r *request) (*order, error) {
		for i := range 300 {
			_ = grpc.SetTrailer(ctx, metadata.Pairs("x", fmt.Sprint(i)+strings.Repeat("v", 5000)))
		}
		return counter(&runs)(ctx, r)
	}, grpclock.Metadata("x"))
	s.create("k", &request{}).want(t, 1, false)
	s.create("k", &request{}).wantRefusal(t, codes.FailedPrecondition, reasonResponseNotKept)
}

// A request as large as the server takes.
func TestByMetadata_LargeRequests(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := once(t, counter(&runs))
	r := &request{Blob: make([]byte, 3<<20)}
	s.create("k", r).want(t, 1, false)
	s.create("k", r).want(t, 1, true)
	r.Blob[len(r.Blob)-1]++
	s.create("k", r).wantRefusal(t, codes.FailedPrecondition, reasonKeyReused)
}

// The names of methods are not what a key is joined from by chance.
func TestKeys_CannotImitateEachOther(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := once(t, counter(&runs), grpclock.Principal(byUser))
	for run, c := range [][2]string{
		{"a", "b"}, {"a:b", "c"}, {"a", "b:c"}, {"", "a:grpc:b"}, {"a:grpc", "b"}, {"a%3Ab", "c"},
		{"ann:grpc:/onelane.test.v1.Orders/Create:metadata idempotency-key", "k"},
		{"ann", "grpc:/onelane.test.v1.Orders/Create:metadata idempotency-key:k"},
	} {
		s.create(c[1], &request{}, "user", c[0]).want(t, int64(run+1), false)
	}
}

func TestByKey_EnumsAndBools(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := serve(t, &orders{handle: counter(&runs)}, grpc.UnaryInterceptor(grpclock.ByKey("{req.state}:{req.cash}", idempotency.WithLocker(testutil.Locker(t)))))
	r := func(state testpb.State, cash bool) *request {
		return &request{State: state, Payment: &testpb.Request_Cash{Cash: cash}}
	}
	ask(t.Context(), s.Create, r(0, false)).want(t, 1, false)
	ask(t.Context(), s.Create, r(1, false)).want(t, 2, false)
	ask(t.Context(), s.Create, r(1, true)).want(t, 3, false)
	ask(t.Context(), s.Create, r(0, false)).want(t, 1, true)
	// In a oneof, a field that is not set differs from false.
	ask(t.Context(), s.Create, &request{}).wantRefusal(t, codes.InvalidArgument, reasonKeyMissing)
}
