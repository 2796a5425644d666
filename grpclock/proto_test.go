package grpclock_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/grpclock/internal/testpb"
	"github.com/onelane/onelane/grpclock/lockpb"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

func TestByProto(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	n := testutil.Redis(t)
	l := lockerOn(t, n)
	g := newGate(t)
	s := serve(t, &orders{handle: func(ctx context.Context, r *request) (*order, error) {
		if r.OrderId == "gate" {
			g.stand()
		}
		return counter(&runs)(ctx, r)
	}}, grpc.UnaryInterceptor(grpclock.ByProto(idempotency.WithLocker(l))))
	call := func(m method, id string, md ...string) answer {
		return ask(t.Context(), m, &request{OrderId: id}, md...)
	}
	// Pay: IDEMPOTENT, by a template, kept for an hour.
	call(s.Pay, "1").want(t, 1, false)
	call(s.Pay, "1").want(t, 1, true)
	ask(t.Context(), s.Pay, &request{OrderId: "1", Quantity: 2}).wantRefusal(t, codes.FailedPrecondition, reasonKeyReused)
	key, _ := claimOf(t, n)
	if ttl := n.Client().PTTL(t.Context(), key).Val(); ttl > time.Hour || ttl < 50*time.Minute {
		t.Errorf("%s is kept for %v", key, ttl)
	}
	call(s.Pay, "").wantRefusal(t, codes.InvalidArgument, reasonKeyMissing)
	// Refund: by metadata, required.
	call(s.Refund, "1").wantRefusal(t, codes.InvalidArgument, reasonKeyMissing)
	call(s.Refund, "1", idempotencyKey, "k").want(t, 2, false)
	call(s.Refund, "1", idempotencyKey, "k").want(t, 2, true)
	// Create has no option, and Get no side effects.
	for run := range int64(2) {
		call(s.Create, "1", idempotencyKey, "k").want(t, 3+2*run, false)
		call(s.Get, "1").want(t, 4+2*run, false)
	}
	// Grab: LOCK_ONLY, on the key that everybody else locks too.
	first := later(func() answer { return call(s.Grab, "gate") })
	g.wait(t)
	call(s.Grab, "gate").wantRefusal(t, codes.Aborted, reasonLockBusy)
	if _, err := l.TryAcquire(t.Context(), "order:gate"); err == nil {
		t.Error("order:gate is free")
	}
	close(g.open)
	(<-first).want(t, 7, false)
	call(s.Grab, "gate").want(t, 8, false)
}

// Principal, which IDEMPOTENT methods need, makes no locks of what LOCK_ONLY excludes everybody from.
func TestByProto_LocksExcludeAll(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	g := newGate(t)
	s := serve(t, &orders{handle: g.behind(counter(&runs))}, grpc.UnaryInterceptor(grpclock.ByProto(idempotency.WithLocker(testutil.Locker(t)), grpclock.Principal(byUser))))
	grab := func(user string) answer { return ask(t.Context(), s.Grab, &request{OrderId: "7"}, "user", user) }
	first := later(func() answer { return grab("ann") })
	g.wait(t)
	grab("bob").wantRefusal(t, codes.Aborted, reasonLockBusy)
	close(g.open)
	(<-first).want(t, 1, false)
}

// broken runs whatever it is asked for.
type broken struct {
	testpb.UnimplementedBrokenServer
	runs atomic.Int64
}

func (b *broken) run() (*order, error)                                     { b.runs.Add(1); return &order{}, nil }
func (b *broken) UnknownField(context.Context, *request) (*order, error)   { return b.run() }
func (b *broken) NotAScalar(context.Context, *request) (*order, error)     { return b.run() }
func (b *broken) NoKey(context.Context, *request) (*order, error)          { return b.run() }
func (b *broken) Ambiguous(context.Context, *request) (*order, error)      { return b.run() }
func (b *broken) ShortRetention(context.Context, *request) (*order, error) { return b.run() }
func (b *broken) LongRetention(context.Context, *request) (*order, error)  { return b.run() }

// A mistake that Check finds also fails the first call.
func TestByProto_WrongOptions(t *testing.T) {
	t.Parallel()
	b := &broken{}
	var checked error
	s := serveWith(t, func(r grpc.ServiceRegistrar) {
		testpb.RegisterBrokenServer(r, b)
		testpb.RegisterOrdersServer(r, &orders{})
		grpc_health_v1.RegisterHealthServer(r, health.NewServer())
		checked = grpclock.Check(r.(*grpc.Server))
	}, grpc.UnaryInterceptor(grpclock.ByProto(idempotency.WithLocker(testutil.Locker(t)))))
	if checked == nil {
		t.Fatal("Check found nothing")
	}
	client := testpb.NewBrokenClient(s.dial())
	for name, tc := range map[string]struct {
		call method
		says string
	}{
		"UnknownField":   {client.UnknownField, `has no field "no_such_field"`},
		"NotAScalar":     {client.NotAScalar, "is a message: name one of its fields"},
		"NoKey":          {client.NoKey, "no key: name what is locked"},
		"Ambiguous":      {client.Ambiguous, "write {req.principal}"},
		"ShortRetention": {client.ShortRetention, "at least 10ms"},
		"LongRetention":  {client.LongRetention, "at most 87600h0m0s"},
		"Stream":         {nil, "is a stream"},
	} {
		found := ""
		for line := range strings.SplitSeq(checked.Error(), "\n") {
			if strings.Contains(line, "/onelane.test.v1.Broken/"+name+" ") {
				found += line
			}
		}
		if !strings.Contains(found, tc.says) {
			t.Errorf("%s: Check says %q, want %q", name, found, tc.says)
		}
		if tc.call != nil {
			ask(t.Context(), tc.call, &request{OrderId: "1"}).wantRefusal(t, codes.Internal, reasonMisconfigured)
		}
	}
	if n := strings.Count(checked.Error(), "\n") + 1; n != 7 {
		t.Errorf("Check found %d mistakes, there are 7:\n%v", n, checked)
	}
	if b.runs.Load() != 0 {
		t.Errorf("%d ran", b.runs.Load())
	}
}

func TestCheck_Interceptors(t *testing.T) {
	t.Parallel()
	g := grpc.NewServer()
	testpb.RegisterOrdersServer(g, &orders{})
	for _, tc := range []struct {
		name  string
		i     []grpc.UnaryServerInterceptor
		wants []string // methods, or nothing
	}{
		{"nothing", nil, nil},
		{"metadata", []grpc.UnaryServerInterceptor{grpclock.ByMetadata("k")}, nil},
		{"good field", []grpc.UnaryServerInterceptor{grpclock.ByField("customer.id")}, nil},
		// Get has no side effects and passes.
		{"bad field", []grpc.UnaryServerInterceptor{grpclock.ByField("no_such_field")}, []string{"Cancel", "Create", "Grab", "Pay", "Refund"}},
		{"bad template", []grpc.UnaryServerInterceptor{grpclock.LockByKey("{req.tags}")}, []string{"Cancel", "Create", "Get", "Grab", "Pay", "Refund"}},
		{"selected", []grpc.UnaryServerInterceptor{selected(grpclock.ByField("no_such_field"), "Create", "Get")}, []string{"Create"}},
		{"two", []grpc.UnaryServerInterceptor{grpclock.ByField("order_id"), selected(grpclock.ByField("x"), "Pay")}, []string{"Pay"}},
	} {
		err := grpclock.Check(g, tc.i...)
		var lines []string
		if err != nil {
			lines = strings.Split(err.Error(), "\n")
		}
		if len(lines) != len(tc.wants) {
			t.Errorf("%s: %q, want %q", tc.name, lines, tc.wants)
			continue
		}
		for _, m := range tc.wants {
			if !strings.Contains(err.Error(), "/onelane.test.v1.Orders/"+m+" cannot be protected") {
				t.Errorf("%s: %q says nothing of %s", tc.name, lines, m)
			}
		}
	}
}

// dynamicOrders is the test's service as a program sees it that has only its descriptors: all types made at run time, the
// option too.
func dynamicOrders(t testing.TB, withOption bool) (protoreflect.ServiceDescriptor, *dynamicpb.Types) {
	t.Helper()
	set := &descriptorpb.FileDescriptorSet{}
	seen := map[string]bool{}
	var add func(f protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		for i := range f.Imports().Len() {
			add(f.Imports().Get(i).FileDescriptor)
		}
		set.File = append(set.File, protodesc.ToFileDescriptorProto(f))
	}
	add(testpb.File_test_proto)
	b, err := proto.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	parse := func(r interface {
		protoregistry.ExtensionTypeResolver
		protoregistry.MessageTypeResolver
	}) *protoregistry.Files {
		var set descriptorpb.FileDescriptorSet
		if err := (proto.UnmarshalOptions{Resolver: r}).Unmarshal(b, &set); err != nil {
			t.Fatal(err)
		}
		files, err := protodesc.NewFiles(&set)
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	files := parse(&protoregistry.Types{}) // the option is an unknown field
	types := dynamicpb.NewTypes(files)
	if withOption {
		files = parse(types) // the option is an extension of a dynamic type
	}
	d, err := files.FindDescriptorByName("onelane.test.v1.Orders")
	if err != nil {
		t.Fatal(err)
	}
	return d.(protoreflect.ServiceDescriptor), types
}

// serveDynamic serves the unary methods of a service that has no generated code.
func serveDynamic(t testing.TB, d protoreflect.ServiceDescriptor, runs *atomic.Int64, opts ...grpc.ServerOption) *server {
	desc := grpc.ServiceDesc{ServiceName: string(d.FullName()), HandlerType: (*any)(nil)}
	for i := range d.Methods().Len() {
		m := d.Methods().Get(i)
		if m.IsStreamingClient() || m.IsStreamingServer() {
			continue
		}
		desc.Methods = append(desc.Methods, grpc.MethodDesc{MethodName: string(m.Name()), Handler: func(srv any, ctx context.Context, dec func(any) error, i grpc.UnaryServerInterceptor) (any, error) {
			req := dynamicpb.NewMessage(m.Input())
			if err := dec(req); err != nil {
				return nil, err
			}
			return i(ctx, req, &grpc.UnaryServerInfo{FullMethod: "/" + string(d.FullName()) + "/" + string(m.Name())}, func(context.Context, any) (any, error) {
				resp := dynamicpb.NewMessage(m.Output())
				resp.Set(m.Output().Fields().ByName("run"), protoreflect.ValueOfInt64(runs.Add(1)))
				return resp, nil
			})
		}})
	}
	return serveWith(t, func(r grpc.ServiceRegistrar) { r.RegisterService(&desc, struct{}{}) }, opts...)
}

// A server without generated code reads the same options, as an unknown field or as a dynamic
// extension. It shares its records with a server that has the code.
func TestByProto_DynamicTypes(t *testing.T) {
	t.Parallel()
	for name, withOption := range map[string]bool{"unknown field": false, "dynamic extension": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			d, types := dynamicOrders(t, withOption)
			if withOption { // readable without our code
				ext, err := types.FindExtensionByName("onelane.v1.lock")
				if err != nil {
					t.Fatal(err)
				}
				o := d.Methods().ByName("Pay").Options().(*descriptorpb.MethodOptions)
				lock := proto.GetExtension(o, ext).(*dynamicpb.Message)
				if key := lock.Get(lock.Descriptor().Fields().ByName("key")).String(); key != "order:{order_id}" {
					t.Errorf("key %q", key)
				}
			}
			l := testutil.Locker(t)
			i := func() grpc.ServerOption { return grpc.UnaryInterceptor(grpclock.ByProto(idempotency.WithLocker(l))) }
			dynamic := serveDynamic(t, d, &runs, i())
			generated := serve(t, &orders{handle: counter(&runs)}, i())
			pay := func(s *server, id string) answer {
				return ask(t.Context(), s.Pay, &request{OrderId: id, Tags: []string{"a"}})
			}
			pay(dynamic, "1").want(t, 1, false)
			pay(dynamic, "1").want(t, 1, true)
			pay(generated, "1").want(t, 1, true)
			pay(generated, "2").want(t, 2, false)
			pay(serveDynamic(t, d, &runs, i()), "2").want(t, 2, true) // a process that never answered itself
			ask(t.Context(), dynamic.Refund, &request{}).wantRefusal(t, codes.InvalidArgument, reasonKeyMissing)
			ask(t.Context(), dynamic.Get, &request{}).want(t, 3, false)
		})
	}
}

// A message whose service is nowhere to be found has options that nobody can read.
func TestByProto_NoDescriptor(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	desc := testpb.Orders_ServiceDesc
	desc.ServiceName = "unheard.of.Service"
	desc.Methods = []grpc.MethodDesc{{MethodName: "Create", Handler: func(srv any, ctx context.Context, dec func(any) error, i grpc.UnaryServerInterceptor) (any, error) {
		req := &request{}
		if err := dec(req); err != nil {
			return nil, err
		}
		return i(ctx, req, &grpc.UnaryServerInfo{FullMethod: "/unheard.of.Service/Create"}, func(ctx context.Context, req any) (any, error) {
			return counter(&runs)(ctx, req.(*request))
		})
	}}}
	create := func(s *server) answer {
		return ask(t.Context(), func(ctx context.Context, r *request, opts ...grpc.CallOption) (*order, error) {
			o := &order{}
			return o, s.dial().Invoke(ctx, "/unheard.of.Service/Create", r, o, opts...)
		}, &request{}, idempotencyKey, "k")
	}
	l := testutil.Locker(t)
	for run, i := range []grpc.UnaryServerInterceptor{grpclock.ByProto(idempotency.WithLocker(l)), grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(l))} {
		s := serveWith(t, func(r grpc.ServiceRegistrar) { r.RegisterService(&desc, &orders{}) }, grpc.UnaryInterceptor(i))
		if run == 0 {
			create(s).wantRefusal(t, codes.Internal, reasonMisconfigured)
			continue
		}
		create(s).want(t, 1, false) // a key needs no descriptor
		create(s).want(t, 1, true)
		fresh := serveWith(t, func(r grpc.ServiceRegistrar) { r.RegisterService(&desc, &orders{}) }, grpc.UnaryInterceptor(grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(l))))
		create(fresh).want(t, 1, true)
	}
}

// Numbers and names that are published do not change.
func TestOptionIsPublished(t *testing.T) {
	t.Parallel()
	if f := lockpb.E_Lock.TypeDescriptor(); f.Number() != 57155 || f.FullName() != "onelane.v1.lock" || lockpb.File_onelane_v1_lock_proto.Path() != "onelane/v1/lock.proto" {
		t.Errorf("%d %s %s", f.Number(), f.FullName(), lockpb.File_onelane_v1_lock_proto.Path())
	}
	for name, number := range map[protoreflect.Name]protoreflect.FieldNumber{"key": 1, "mode": 2, "retain": 3, "wait": 4, "require": 5} {
		if f := (&lockpb.Lock{}).ProtoReflect().Descriptor().Fields().ByName(name); f == nil || f.Number() != number {
			t.Errorf("%s: %v", name, f)
		}
	}
}

// claimOf returns the Redis key of the one claim on a node, and what it holds.
func claimOf(t testing.TB, n *testutil.Node) (key, value string) {
	t.Helper()
	client, ctx := n.Client(), context.Background()
	keys, err := client.Keys(ctx, "*claim:*}").Result()
	if err != nil || len(keys) != 1 {
		t.Fatalf("keys %q, %v; want one", keys, err)
	}
	return keys[0], client.Get(ctx, keys[0]).Val()
}

// A service whose descriptor is not linked in, such as one of gogo/protobuf, or one that was
// written by hand. Its calls have fields, so Check has nothing to report.
func TestCheck_NoDescriptor(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	desc := testpb.Orders_ServiceDesc
	desc.ServiceName = "unlinked.v1.Orders"
	desc.Streams = nil
	desc.Methods = []grpc.MethodDesc{{MethodName: "Create", Handler: func(srv any, ctx context.Context, dec func(any) error, i grpc.UnaryServerInterceptor) (any, error) {
		req := &request{}
		if err := dec(req); err != nil {
			return nil, err
		}
		return i(ctx, req, &grpc.UnaryServerInfo{FullMethod: "/unlinked.v1.Orders/Create"}, func(ctx context.Context, req any) (any, error) {
			return counter(&runs)(ctx, req.(*request))
		})
	}}}
	i := grpclock.ByField("order_id", idempotency.WithLocker(testutil.Locker(t)))
	s := serveWith(t, func(r grpc.ServiceRegistrar) {
		r.RegisterService(&desc, &orders{})
		if err := grpclock.Check(r.(*grpc.Server), i); err != nil {
			t.Error(err)
		}
	}, grpc.UnaryInterceptor(i))
	conn := s.dial()
	for _, replayed := range []bool{false, true} {
		ask(t.Context(), func(ctx context.Context, r *request, opts ...grpc.CallOption) (*order, error) {
			o := &order{}
			return o, conn.Invoke(ctx, "/unlinked.v1.Orders/Create", r, o, opts...)
		}, &request{OrderId: "7"}).want(t, 1, replayed)
	}
}
