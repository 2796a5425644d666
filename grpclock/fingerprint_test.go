package grpclock_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/grpclock/internal/testpb"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// full is a request with all its fields.
func full() *request {
	price := int64(-3)
	extra, _ := anypb.New(&testpb.Receipt{Id: "x"})
	r := &request{
		RequestId: "r", OrderId: "o", Quantity: -7, Tags: []string{"b", "", "a"}, Blob: []byte{0, 255}, Price: &price,
		Customer:   &testpb.Customer{Id: "c", Parent: &testpb.Customer{Parent: &testpb.Customer{}, Number: 1 << 63}},
		Attributes: map[string]string{"z": "", "": "y", "a": "b"}, Extra: extra, Payment: &testpb.Request_Cash{Cash: false},
		State: testpb.State_PAID, Numbers: []int32{3, -1, 0}, Friends: map[int32]*testpb.Customer{-1: {Id: "f"}, 5: {}},
	}
	r.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.VarintType), 7))
	return r
}

func canonical(t testing.TB, m protoreflect.Message) []byte {
	t.Helper()
	b, err := grpclock.Canonical(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// narrowed returns the type of request as a version of the schema has it that knows only the fields with these numbers.
func narrowed(t testing.TB, known func(n int32) bool) protoreflect.MessageType {
	t.Helper()
	f := protodesc.ToFileDescriptorProto(testpb.File_test_proto)
	for _, m := range f.MessageType {
		if m.GetName() != "Request" {
			continue
		}
		var fields []*descriptorpb.FieldDescriptorProto
		for _, field := range m.Field {
			if known(field.GetNumber()) {
				field.OneofIndex, field.Proto3Optional = nil, nil
				fields = append(fields, field)
			}
		}
		m.Field, m.OneofDecl = fields, nil
	}
	f.Service = nil
	d, err := protodesc.FileOptions{AllowUnresolvable: true}.New(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	return dynamicpb.NewMessageType(d.Messages().ByName("Request"))
}

// In the middle of a roll-out one process knows a field and the other does not: the same request must look the same.
func TestFingerprint_TwoSchemaVersions(t *testing.T) {
	t.Parallel()
	r := full()
	r.Attributes, r.Friends = map[string]string{"a": "b"}, map[int32]*testpb.Customer{5: {Id: "f"}} // see fingerprint
	r.Payment = &testpb.Request_Cash{Cash: true}
	sent, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	want := canonical(t, r.ProtoReflect())
	for name, known := range map[string]func(n int32) bool{
		"nothing":  func(int32) bool { return false },
		"odd":      func(n int32) bool { return n%2 == 1 && n != 11 },
		"old":      func(n int32) bool { return n < 6 },
		"new only": func(n int32) bool { return n > 9 && n != 11 },
	} {
		m := narrowed(t, known).New()
		if err := proto.Unmarshal(sent, m.Interface()); err != nil {
			t.Fatal(err)
		}
		if got := canonical(t, m); !bytes.Equal(got, want) {
			t.Errorf("%s: a version that knows less sees\n%x, not\n%x", name, got, want)
		}
		if deterministic, err := (proto.MarshalOptions{Deterministic: true}).Marshal(m.Interface()); err != nil || name == "odd" && bytes.Equal(deterministic, want) {
			t.Errorf("%s: deterministic marshalling would do: %v", name, err)
		}
	}
}

func TestFingerprint_TellsRequestsApart(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	for i, change := range []func(r *request){
		func(*request) {},
		func(r *request) { r.RequestId = "s" },
		func(r *request) { r.Customer.Parent.Parent = nil },
		func(r *request) { r.Quantity = 7 },
		func(r *request) { r.Tags = []string{"b", "a"} },
		func(r *request) { r.Tags = []string{"b", "a", ""} },
		func(r *request) { r.Attributes["z"] = "x" },
		func(r *request) { delete(r.Attributes, "") },
		func(r *request) { r.Extra.Value = nil },
		func(r *request) { r.Payment = nil },
		func(r *request) { r.Payment = &testpb.Request_Cash{Cash: true} },
		func(r *request) { r.Blob = append(r.Blob, 0) },
		func(r *request) { *r.Price = 3 },
		func(r *request) { r.Price = nil },
		func(r *request) { r.Numbers[2] = 1 },
		func(r *request) { r.Friends[5] = &testpb.Customer{Id: "g"} },
		func(r *request) { r.ProtoReflect().SetUnknown(nil) },
		func(r *request) {
			r.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.VarintType), 8))
		},
		func(r *request) { r.ProtoReflect().SetUnknown([]byte{0xff}) }, // nothing that could be received
	} {
		r := full()
		change(r)
		key := string(canonical(t, r.ProtoReflect()))
		if other, ok := seen[key]; ok {
			t.Errorf("change %d looks like change %d", i, other)
		}
		seen[key] = i
		for range 20 { // maps have no order
			if string(canonical(t, proto.Clone(r).ProtoReflect())) != key {
				t.Fatalf("change %d does not look like itself", i)
			}
		}
		if i == 18 {
			continue
		}
		var back request
		if err := proto.Unmarshal([]byte(key), &back); err != nil || !proto.Equal(&back, r) {
			t.Errorf("change %d: it is not the message: %v", i, err)
		}
	}
}

// A message can be deep and large at once: the time must not be the product.
func TestFingerprint_DeepMessages(t *testing.T) {
	t.Parallel()
	deep := &testpb.Customer{Id: strings.Repeat("x", 3<<20)}
	for range 9000 { // protobuf takes 10,000
		deep = &testpb.Customer{Parent: deep}
	}
	var b []byte
	took := time.Hour
	for try := 0; try < 3 && took > 5*time.Second; try++ { // the machine may be busy
		start := time.Now()
		b = canonical(t, (&request{Customer: deep}).ProtoReflect())
		took = time.Since(start)
	}
	if len(b) < 3<<20 || took > 5*time.Second {
		t.Errorf("%d bytes in %v", len(b), took)
	}
}

// Each of these messages has its fields out of order, and has all the others in it. To sort all of
// them would cost their size times their depth. The test is not parallel: it counts the allocations
// of the whole process.
func TestFingerprint_DeepDisorder(t *testing.T) {
	deep := &testpb.Customer{Id: strings.Repeat("x", 1<<20)}
	for range 200 {
		deep = &testpb.Customer{Parent: deep}
		deep.ProtoReflect().SetUnknown([]byte{1 << 3, 1}) // the id, as a number
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b := canonical(t, deep.ProtoReflect())
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 5*uint64(len(b)) {
		t.Errorf("%d bytes are allocated for a request of %d", n, len(b))
	}
	levels := 0
	for ; len(b) > 2 && b[0] == 1<<3; levels++ {
		b, _ = protowire.ConsumeBytes(b[3:])
	}
	if levels < 50 || levels > 60 {
		t.Errorf("%d levels are sorted", levels)
	}
}

// Some fields a client leaves out, or fills in with the default. Others only a newer server knows.
func TestFingerprint_OnTheWire(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := once(t, counter(&runs))
	r := full()
	s.create("k", r).want(t, 1, false)
	s.create("k", full()).want(t, 1, true)
	r.ProtoReflect().SetUnknown(nil)
	s.create("k", r).wantRefusal(t, codes.FailedPrecondition, reasonKeyReused)
}

// The request has only small fields that this process does not know, and is as large as a server
// takes by default. It costs no multiple of its size that matters. The test is not parallel: it
// counts the allocations of the whole process.
func TestFingerprint_ManyFields(t *testing.T) {
	var r request
	wire := bytes.Repeat([]byte{0xb0, 0x06, 1, 0xa8, 0x06, 1}, 4<<20/6) // 102: 1, 101: 1
	if err := proto.Unmarshal(wire, &r); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	sorted := canonical(t, r.ProtoReflect())
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 16*uint64(len(wire)) {
		t.Errorf("%d bytes are allocated for a request of %d", n, len(wire))
	}
	half := len(wire) / 2
	if want := append(bytes.Repeat([]byte{0xa8, 0x06, 1}, half/3), bytes.Repeat([]byte{0xb0, 0x06, 1}, half/3)...); !bytes.Equal(sorted, want) {
		t.Errorf("the fields are not in the order of their numbers")
	}
}

func TestFingerprint_Option(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := once(t, counter(&runs), grpclock.Fingerprint(func(_ context.Context, m proto.Message) []byte { return []byte(m.(*request).OrderId) }))
	s.create("k", &request{OrderId: "1", Quantity: 1}).want(t, 1, false)
	s.create("k", &request{OrderId: "1", Quantity: 2}).want(t, 1, true)
	s.create("k", &request{OrderId: "2", Quantity: 1}).wantRefusal(t, codes.FailedPrecondition, reasonKeyReused)
}

// raw is a codec that makes no messages.
type raw struct{}

func (raw) Name() string                    { return "proto" }
func (raw) Marshal(any) ([]byte, error)     { return []byte{}, nil }
func (raw) Unmarshal(_ []byte, v any) error { return nil }

// A request that is no protobuf message fails before anything runs, unless nobody has to read it.
func TestFingerprint_NoMessage(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	serveRaw := func(i grpc.UnaryServerInterceptor, resp any) *server {
		desc := testpb.Orders_ServiceDesc
		desc.Methods = []grpc.MethodDesc{{MethodName: "Create", Handler: func(srv any, ctx context.Context, dec func(any) error, i grpc.UnaryServerInterceptor) (any, error) {
			var req []byte
			_ = dec(&req)
			return i(ctx, req, &grpc.UnaryServerInfo{FullMethod: "/onelane.test.v1.Orders/Create"}, func(context.Context, any) (any, error) { runs.Add(1); return resp, nil })
		}}}
		return serveWith(t, func(r grpc.ServiceRegistrar) { r.RegisterService(&desc, &orders{}) }, grpc.ForceServerCodec(raw{}), grpc.UnaryInterceptor(i))
	}
	locker := testutil.Locker(t)
	serveRaw(grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(locker)), "x").create("k", &request{}).wantRefusal(t, codes.Internal, reasonMisconfigured)
	serveRaw(grpclock.ByField("order_id", idempotency.WithLocker(locker)), "x").create("k", &request{}).wantRefusal(t, codes.Internal, reasonMisconfigured)
	if runs.Load() != 0 {
		t.Errorf("%d runs", runs.Load())
	}
	locked := serveRaw(grpclock.LockByKey("{metadata.idempotency-key}", idempotency.WithLocker(locker)), "x")
	if a := locked.create("k", &request{}); a.err != nil || runs.Load() != 1 {
		t.Errorf("%v, %d runs", a.err, runs.Load())
	}
}

func FuzzFingerprint(f *testing.F) {
	b, err := proto.Marshal(full())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte{})
	f.Add([]byte{0x0b, 0x0c}) // a group
	c := rand.NewChaCha8([32]byte{})
	for range 8 {
		more := bytes.Clone(b)
		more[c.Uint64()%uint64(len(b))]++
		f.Add(more)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var r request
		if proto.Unmarshal(b, &r) != nil {
			return
		}
		one := canonical(t, r.ProtoReflect())
		var again request
		if err := proto.Unmarshal(one, &again); err != nil || !proto.Equal(&r, &again) {
			t.Fatalf("%x is not the message %x: %v", one, b, err)
		}
		if two := canonical(t, again.ProtoReflect()); !bytes.Equal(one, two) {
			t.Fatalf("%x becomes %x", one, two)
		}
		var unknown emptypb.Empty // a version that knows no field
		if err := proto.Unmarshal(one, &unknown); err != nil {
			t.Fatal(err)
		}
		if two := canonical(t, unknown.ProtoReflect()); !bytes.Equal(one, two) {
			t.Fatalf("%x is %x to who knows no field", one, two)
		}
	})
}

// A request has only a map of numbers. A comparison must not make text of two keys: a request of 4
// MiB would take seconds. The test is not parallel: it counts the allocations of the whole process.
func TestFingerprint_MapOfNumbers(t *testing.T) {
	const n = 100_000
	r := &request{Friends: make(map[int32]*testpb.Customer, n)}
	for i := range int32(n) {
		r.Friends[1000+i] = &testpb.Customer{}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	sorted := canonical(t, r.ProtoReflect())
	runtime.ReadMemStats(&after)
	if each := (after.Mallocs - before.Mallocs) / n; each > 30 {
		t.Errorf("%d allocations for each entry", each)
	}
	var back request
	if err := proto.Unmarshal(sorted, &back); err != nil || !proto.Equal(&back, r) {
		t.Errorf("it is not the message: %v", err)
	}
}
