package grpclock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/grpclock/internal/testpb"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

func TestByMetadata_Key(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := once(t, counter(&runs))
	for name, values := range map[string][]string{
		"empty": {""}, "empty string": {`""`}, "unterminated": {`"k`}, "list": {"a, b"}, "twice": {"k", "k"},
		"256 bytes": {strings.Repeat("k", 256)}, "after the quote": {`"k" x`},
	} {
		t.Run(name, func(t *testing.T) {
			var md []string
			for _, v := range values {
				md = append(md, idempotencyKey, v)
			}
			ask(t.Context(), s.Create, &request{}, md...).wantRefusal(t, codes.InvalidArgument, reasonKeyInvalid)
		})
	}
	if n := runs.Load(); n != 0 {
		t.Fatalf("a bad key ran %d times", n)
	}
	s.create(`"k"`, &request{}).want(t, 1, false)
	s.create(`k`, &request{}).want(t, 1, true) // the raw form names the same key
	s.create(strings.Repeat("k", 255), &request{}).want(t, 2, false)
	ask(t.Context(), s.Create, &request{}).want(t, 3, false) // no key: not protected
	ask(t.Context(), s.Create, &request{}).want(t, 4, false)
}

func TestByMetadata_Require(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := once(t, counter(&runs), idempotency.Require())
	a := ask(t.Context(), s.Create, &request{})
	a.wantRefusal(t, codes.InvalidArgument, reasonKeyMissing)
	if !strings.Contains(a.err.Error(), "metadata idempotency-key") {
		t.Errorf("%v does not say where the key belongs", a.err)
	}
	s.create("k", &request{}).want(t, 1, false)
}

func TestByField_Key(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	s := serve(t, &orders{handle: counter(&runs)}, grpc.UnaryInterceptor(grpclock.ByField("request_id", idempotency.WithLocker(l))))
	create := func(id string) answer { return ask(t.Context(), s.Create, &request{RequestId: id}) }
	create("a").want(t, 1, false)
	create("a").want(t, 1, true)
	create("A").want(t, 2, false)
	create("").want(t, 3, false) // AIP-155: it may be left out
	for _, bad := range []string{strings.Repeat("k", 256), "a\nb"} {
		a := create(bad)
		a.wantRefusal(t, codes.InvalidArgument, reasonKeyInvalid)
		if !strings.Contains(a.err.Error(), "request_id") {
			t.Errorf("%v does not say what to send", a.err)
		}
	}
	if n := runs.Load(); n != 3 {
		t.Errorf("%d runs", n)
	}
}

func TestByField_NestedKey(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	for path, make := range map[string]func(v int) *request{
		"customer.id": func(v int) *request {
			return &request{Customer: &testpb.Customer{Id: strings.Repeat("x", v)}}
		},
		"customer.parent.number": func(v int) *request {
			return &request{Customer: &testpb.Customer{Parent: &testpb.Customer{Number: uint64(v)}}}
		},
		"quantity": func(v int) *request { return &request{Quantity: int32(-v)} },
		"card":     func(v int) *request { return &request{Payment: &testpb.Request_Card{Card: strings.Repeat("1", v)}} },
		"blob":     func(v int) *request { return &request{Blob: []byte(strings.Repeat("\xff", v))} },
		"price":    func(v int) *request { p := int64(v - 1); return &request{Price: &p} }, // 0 counts: it is optional
	} {
		t.Run(path, func(t *testing.T) {
			var runs atomic.Int64
			s := serve(t, &orders{handle: counter(&runs)}, grpc.UnaryInterceptor(grpclock.ByField(path, idempotency.WithLocker(l), idempotency.Require())))
			ask(t.Context(), s.Create, make(1)).want(t, 1, false)
			ask(t.Context(), s.Create, make(1)).want(t, 1, true)
			ask(t.Context(), s.Create, make(2)).want(t, 2, false)
			ask(t.Context(), s.Create, &request{Tags: []string{"x"}}).wantRefusal(t, codes.InvalidArgument, reasonKeyMissing)
		})
	}
}

// Nobody knew the services when the interceptor was made.
func TestByField_UnknownField(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	for name, i := range map[string]grpc.UnaryServerInterceptor{
		"field":      grpclock.ByField("no_such_field", idempotency.WithLocker(l)),
		"inner":      grpclock.ByField("customer.no_such_field", idempotency.WithLocker(l)),
		"no message": grpclock.ByField("order_id.x", idempotency.WithLocker(l)),
		"message":    grpclock.ByField("customer", idempotency.WithLocker(l)),
		"repeated":   grpclock.ByField("tags", idempotency.WithLocker(l)),
		"map":        grpclock.ByField("attributes", idempotency.WithLocker(l)),
		"template":   grpclock.LockByKey("order:{req.no_such_field}", idempotency.WithLocker(l)),
	} {
		t.Run(name, func(t *testing.T) {
			var runs atomic.Int64
			s := serve(t, &orders{handle: counter(&runs)}, grpc.UnaryInterceptor(i))
			for range 2 {
				ask(t.Context(), s.Create, &request{}).wantRefusal(t, codes.Internal, reasonMisconfigured)
			}
			if n := runs.Load(); n != 0 {
				t.Errorf("%d runs", n)
			}
		})
	}
}

func TestByKey_Key(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := serve(t, &orders{handle: counter(&runs)}, grpc.UnaryInterceptor(grpclock.ByKey("order:{req.order_id}:{metadata.X-Tenant}:{principal}",
		idempotency.WithLocker(testutil.Locker(t)), grpclock.Principal(byUser))))
	create := func(id string, md ...string) answer { return ask(t.Context(), s.Create, &request{OrderId: id}, md...) }
	create("1", "x-tenant", "t", "user", "ann").want(t, 1, false)
	create("1", "x-tenant", "t", "user", "ann").want(t, 1, true)
	create("2", "x-tenant", "t", "user", "ann").want(t, 2, false)
	create("1", "x-tenant", "u", "user", "ann").want(t, 3, false)
	create("1", "x-tenant", "t", "user", "bob").want(t, 4, false)
	create("1:t", "x-tenant", "", "user", "ann").wantRefusal(t, codes.InvalidArgument, reasonKeyInvalid)
	create("1", "x-tenant", `"t"`, "user", "ann").want(t, 1, true) // the quoted form names the same key
	create("1", "x-tenant", `"t`, "user", "ann").wantRefusal(t, codes.InvalidArgument, reasonKeyInvalid)
	create("", "x-tenant", "t", "user", "ann").wantRefusal(t, codes.InvalidArgument, reasonKeyMissing)
	create("1", "user", "ann").wantRefusal(t, codes.InvalidArgument, reasonKeyMissing)
	create("1", "x-tenant", "t", "x-tenant", "t", "user", "ann").wantRefusal(t, codes.InvalidArgument, reasonKeyInvalid)
	create("1", "x-tenant", "t").wantRefusal(t, codes.Unauthenticated, reasonPrincipalMissing)
	create("a\x00b", "x-tenant", "t", "user", "ann").wantRefusal(t, codes.InvalidArgument, reasonKeyInvalid)
}

func TestBy_Key(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	key := func(ctx context.Context, req any) (string, error) {
		switch id := req.(*request).OrderId; id {
		case "denied":
			return "", status.Error(codes.PermissionDenied, "not yours")
		case "bad":
			return "", errors.New("pq: password wrong")
		default:
			return id, nil
		}
	}
	s := serve(t, &orders{handle: counter(&runs)}, grpc.UnaryInterceptor(grpclock.By(key, idempotency.WithLocker(testutil.Locker(t)))))
	create := func(id string) answer { return ask(t.Context(), s.Create, &request{OrderId: id}) }
	create("1").want(t, 1, false)
	create("1").want(t, 1, true)
	create("").want(t, 2, false)
	create("denied").wantCode(t, codes.PermissionDenied, false)
	a := create("bad")
	a.wantRefusal(t, codes.InvalidArgument, reasonKeyInvalid)
	if strings.Contains(a.err.Error(), "password") {
		t.Errorf("%v tells too much", a.err)
	}
}

// A key of another method is another key, and so is one from another place.
func TestKeys_AreApart(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	o := &orders{handle: counter(&runs), cancel: func(context.Context, *request) (*testpb.Receipt, error) {
		return &testpb.Receipt{Run: runs.Add(1)}, nil
	}}
	s := serve(t, o, grpc.ChainUnaryInterceptor(grpclock.ByMetadata("idempotency-key", idempotency.WithLocker(l)), grpclock.ByMetadata("request-id", idempotency.WithLocker(l))))
	s.create("k", &request{}).want(t, 1, false)
	if a := ask(t.Context(), s.Refund, &request{}, idempotencyKey, "k"); a.reason() != "IDEMPOTENCY_KEY_REUSED" || !strings.Contains(a.err.Error(), "The method of this call differs") {
		t.Errorf("%v", a.err)
	}
	ask(t.Context(), s.Refund, &request{}, idempotencyKey, "refund").want(t, 2, false)
	ask(t.Context(), s.Create, &request{}, "request-id", "k").want(t, 3, false)
	ask(t.Context(), func(ctx context.Context, r *request, opts ...grpc.CallOption) (*order, error) {
		receipt, err := s.Cancel(ctx, r, opts...)
		return &order{Run: receipt.GetRun()}, err
	}, &request{}, idempotencyKey, "cancel").want(t, 4, false)
	s.create("k", &request{}).want(t, 1, true)
}

// byUser stands for a login: the user is in the metadata.
func byUser(ctx context.Context) string { return incoming(ctx, "user") }

func TestLockKeys(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	use := idempotency.WithLocker(l)
	for want, i := range map[string]grpc.UnaryServerInterceptor{
		"a%3Ab":         grpclock.LockByKey("{metadata.X-Order}", use),
		"order:7":       grpclock.LockByKey("order:{req.order_id}", use),
		"orders:7":      grpclock.LockByKey("orders:{req.order_id}", use, grpclock.Principal(byUser)),
		"ann:7":         grpclock.LockByKey("{principal}:{req.order_id}", use, grpclock.Principal(byUser)),
		"all":           grpclock.LockByKey("all", use),
		"as it is: {x}": grpclock.LockBy(func(context.Context, any) (string, error) { return "as it is: {x}", nil }, use),
		"customer:c1":   grpclock.LockByKey("customer:{req.customer.id}", use),
	} {
		t.Run(want, func(t *testing.T) {
			s := serve(t, &orders{handle: func(ctx context.Context, r *request) (*order, error) {
				st, err := l.Inspect(context.Background(), want)
				if err != nil || st.Owner == "" {
					t.Errorf("%q is not held: %+v, %v", want, st, err)
				}
				if token, err := idempotency.Token(ctx); err != nil || token == 0 {
					t.Errorf("token %d, %v", token, err)
				}
				k, err := l.TryAcquire(ctx, want) // the context carries the lock
				if err != nil {
					return nil, err
				}
				return &order{}, k.Release(ctx)
			}}, grpc.UnaryInterceptor(i))
			a := ask(t.Context(), s.Create, &request{OrderId: "7", Customer: &testpb.Customer{Id: "c1"}}, "x-order", "a:b", "user", "ann")
			a.want(t, 0, false)
			if st, err := l.Inspect(context.Background(), want); err != nil || st.Owner != "" {
				t.Errorf("%q is held after the call: %+v, %v", want, st, err)
			}
		})
	}
}
