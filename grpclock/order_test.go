package grpclock_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// A panic goes on to whoever recovers from it. With a lock or RunAgain the key is free. Otherwise the outcome is unknown,
// unless an interceptor inside makes it an answer.
func TestByMetadata_Panics(t *testing.T) {
	t.Parallel()
	l, err := core.New(backendtest.Memory(), core.WithTTL(unknownAfter))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	use, recoverer := idempotency.WithLocker(l), recovery.UnaryServerInterceptor()
	byKey := grpclock.ByMetadata(idempotencyKey, use)
	for _, tc := range []struct {
		name  string
		chain []grpc.UnaryServerInterceptor
		retry func(a answer) bool
	}{
		{"outside", []grpc.UnaryServerInterceptor{recoverer, byKey}, func(a answer) bool { return a.reason() == reasonOutcomeUnknown }},
		{"inside", []grpc.UnaryServerInterceptor{byKey, recoverer}, answer.replayed},
		{"run again", []grpc.UnaryServerInterceptor{recoverer, grpclock.ByMetadata(idempotencyKey, use, idempotency.RunAgain())}, func(a answer) bool { return a.err == nil && a.order.Run == 2 }},
		{"locked", []grpc.UnaryServerInterceptor{recoverer, grpclock.LockByKey("{metadata.idempotency-key}", use)}, func(a answer) bool { return a.err == nil && a.order.Run == 2 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			s := serve(t, &orders{handle: func(ctx context.Context, r *request) (*order, error) {
				if runs.Add(1) == 1 {
					panic("oops")
				}
				return &order{Run: runs.Load()}, nil
			}}, grpc.ChainUnaryInterceptor(tc.chain...))
			if a := s.create(tc.name, &request{}); status.Code(a.err) != codes.Unknown && status.Code(a.err) != codes.Internal {
				t.Errorf("a panic is %v", a.err)
			}
			until(t, func() answer { return s.create(tc.name, &request{}) }, tc.retry)
		})
	}
}

// selected is go-grpc-middleware's way to leave methods out.
func selected(i grpc.UnaryServerInterceptor, names ...string) grpc.UnaryServerInterceptor {
	return selector.UnaryServerInterceptor(i, selector.MatchFunc(func(_ context.Context, c interceptors.CallMeta) bool {
		for _, name := range names {
			if c.Method == name {
				return true
			}
		}
		return false
	}))
}

func TestSelector(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	i := grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(testutil.Locker(t)))
	s := serve(t, &orders{handle: counter(&runs)}, grpc.UnaryInterceptor(selected(i, "Create")))
	s.create("k", &request{}).want(t, 1, false)
	s.create("k", &request{}).want(t, 1, true)
	ask(t.Context(), s.Refund, &request{}, idempotencyKey, "k").want(t, 2, false)
	ask(t.Context(), s.Refund, &request{}, idempotencyKey, "k").want(t, 3, false)
}

// Methods without side effects have nothing that could happen twice.
func TestByMetadata_NoSideEffects(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := once(t, counter(&runs), idempotency.Require())
	ask(t.Context(), s.Get, &request{}, idempotencyKey, "k").want(t, 1, false)
	ask(t.Context(), s.Get, &request{}, idempotencyKey, "k").want(t, 2, false)
	ask(t.Context(), s.Get, &request{}).want(t, 3, false)
}

// A refusal of an inner interceptor is not the handler's answer, and is not recorded.
func TestRefusal_OfInnerInterceptor(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	byKey := grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(l))
	lock := grpclock.LockByKey("order:{req.order_id}", idempotency.WithLocker(l))
	inner := grpclock.ByMetadata("inner-key", idempotency.Require(), idempotency.WithLocker(l))
	s := serve(t, &orders{handle: counter(&runs)}, grpc.ChainUnaryInterceptor(byKey, lock, inner))
	r := &request{OrderId: "7"}
	s.create("k", r).wantRefusal(t, codes.InvalidArgument, reasonKeyMissing) // by the inner one
	k, err := l.Acquire(t.Context(), "order:7")
	if err != nil {
		t.Fatal(err)
	}
	s.create("k", r, "inner-key", "i").wantRefusal(t, codes.Aborted, reasonLockBusy)
	if err := k.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.create("k", r, "inner-key", "i").want(t, 1, false)
	s.create("k", r, "inner-key", "i").want(t, 1, true)
	s.create("k2", r, "inner-key", "i").want(t, 1, true)  // the inner one's replay, under a new key of the outer one
	s.create("k2", r, "inner-key", "i2").want(t, 1, true) // which has it now
}

// The options of the inner one would be ignored.
func TestByMetadata_Twice(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	byKey := grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(testutil.Locker(t)))
	s := serve(t, &orders{handle: counter(&runs)}, grpc.ChainUnaryInterceptor(byKey, byKey))
	for range 2 {
		s.create("k", &request{}).wantRefusal(t, codes.Internal, reasonMisconfigured)
	}
	if runs.Load() != 0 {
		t.Errorf("%d runs", runs.Load())
	}
}

// In another order than the documented one: the lock outside of the key makes duplicates wait or fail, and nothing runs
// twice.
func TestLockByKey_OutsideOfKey(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := testutil.Locker(t)
	g := newGate(t)
	s := serve(t, &orders{handle: g.behind(counter(&runs))}, grpc.ChainUnaryInterceptor(
		grpclock.LockByKey("order:{req.order_id}", idempotency.WithLocker(l)), grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(l))))
	r := &request{OrderId: "7"}
	first := later(func() answer { return s.create("k", r) })
	g.wait(t)
	s.create("k", r).wantRefusal(t, codes.Aborted, reasonLockBusy)
	close(g.open)
	(<-first).want(t, 1, false)
	s.create("k", r).want(t, 1, true)
}

// An interceptor between us and the handler may change the request; what counts is what the client sent.
func TestFingerprint_RequestChangedInside(t *testing.T) {
	t.Parallel()
	var runs, changes atomic.Int64
	change := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		req.(*request).Quantity = int32(changes.Add(1))
		return handler(ctx, req)
	}
	s := serve(t, &orders{handle: counter(&runs)}, grpc.ChainUnaryInterceptor(grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(testutil.Locker(t))), change))
	s.create("k", &request{}).want(t, 1, false)
	s.create("k", &request{}).want(t, 1, true)
}

// An interceptor between key and lock tries again what was Aborted, as one does for a database that could not serialize.
func TestRefusal_TriedAgainInside(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	busy, err := l.TryAcquire(t.Context(), "stock")
	if err != nil {
		t.Fatal(err)
	}
	again := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		for range 3 {
			resp, err := h(ctx, req)
			if status.Code(err) != codes.Aborted {
				return resp, err
			}
			if busy != nil {
				_ = busy.Release(ctx)
				busy = nil
			}
		}
		return nil, status.Error(codes.Aborted, "busy")
	}
	var charges atomic.Int64
	s := serve(t, &orders{handle: counter(&charges)}, grpc.ChainUnaryInterceptor(
		grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(l)), again, grpclock.LockByKey("stock", idempotency.WithLocker(l))))
	s.create("k", &request{}).want(t, 1, false)
	a := s.create("k", &request{})
	if charges.Load() != 1 || !a.replayed() {
		t.Errorf("%d charges under one key, replayed %v", charges.Load(), a.replayed())
	}
}

// A handler charges, then calls another service of its process, which is refused, and answers all the
// same.
func TestRefusal_InnerAfterAnEffect(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"ok", "internal", "panic", "wrapped"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			l := testutil.Locker(t)
			if k, err := l.TryAcquire(t.Context(), "notify"); err != nil || k.Seal(t.Context(), nil, time.Minute) != nil {
				t.Fatal(err)
			}
			notify := grpclock.LockByKey("notify", idempotency.WithLocker(l))
			var charges atomic.Int64
			recovery := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (resp any, err error) {
				defer func() {
					if p := recover(); p != nil {
						err = status.Error(codes.Internal, "panic")
					}
				}()
				return h(ctx, req)
			}
			s := serve(t, &orders{handle: func(ctx context.Context, r *request) (*order, error) {
				n := charges.Add(1)
				_, err := notify(ctx, r, &grpc.UnaryServerInfo{FullMethod: "/shop.Mail/Notify"}, func(context.Context, any) (any, error) { return r, nil })
				switch end {
				case "internal":
					return nil, status.Error(codes.Internal, "the mail was not sent")
				case "panic":
					panic("boom")
				case "wrapped":
					return nil, fmt.Errorf("the mail: %w", err)
				}
				return &order{Run: n}, nil
			}}, grpc.ChainUnaryInterceptor(recovery, grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(l))))
			s.create("k", &request{})
			s.create("k", &request{})
			if charges.Load() != 1 {
				t.Errorf("%d charges under one key", charges.Load())
			}
		})
	}
}

// A lock is lost under a key, and an interceptor between the two makes another error of the refusal.
func TestLockByKey_LostUnderAKey(t *testing.T) {
	t.Parallel()
	for name, say := range map[string]func(error) error{
		"rebuilt": func(err error) error { return status.Convert(err).Err() },
		"wrapped": func(err error) error { return fmt.Errorf("grab: %w", err) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := testutil.Redis(t)
			l := lockerOn(t, n, core.WithTTL(2*time.Second))
			statuses := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
				resp, err := h(ctx, req)
				if err != nil {
					return nil, say(err)
				}
				return resp, nil
			}
			var charges atomic.Int64
			s := serve(t, &orders{handle: func(ctx context.Context, _ *request) (*order, error) {
				run := charges.Add(1)
				if run == 1 {
					n.Client().Del(context.Background(), "onelane:{order:7}")
					<-ctx.Done()
				}
				return &order{Run: run}, nil
			}}, grpc.ChainUnaryInterceptor(
				grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(l)), statuses,
				grpclock.LockByKey("order:{req.order_id}", idempotency.WithLocker(l))))
			r := &request{OrderId: "7"}
			if a := s.create("k", r); status.Code(a.err) != codes.Aborted {
				t.Fatalf("%v, %v", a.order, a.err)
			}
			a := until(t, func() answer { return s.create("k", r) }, func(a answer) bool { return a.reason() != reasonInFlight })
			if charges.Load() != 1 {
				t.Fatalf("%d charges under one key", charges.Load())
			}
			a.wantRefusal(t, codes.FailedPrecondition, reasonOutcomeUnknown)
		})
	}
}

// A lock around the key is lost, and the handler gives up with the cause, as net/http's client returns it: an error
// without a status. Nobody knows what the handler did.
func TestByMetadata_GivesUpWithTheCause(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	l := lockerOn(t, n, core.WithTTL(4*time.Second))
	var charges atomic.Int64
	s := serve(t, &orders{handle: func(ctx context.Context, _ *request) (*order, error) {
		charges.Add(1)
		n.Client().Del(context.Background(), "onelane:{order:7}")
		<-ctx.Done()
		return nil, fmt.Errorf("charge: %w", context.Cause(ctx))
	}}, grpc.ChainUnaryInterceptor(
		grpclock.LockByKey("order:{req.order_id}", idempotency.WithLocker(l)),
		grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(l))))
	r := &request{OrderId: "7"}
	s.create("k", r).wantRefusal(t, codes.Aborted, reasonLockLost)
	retry := until(t, func() answer { return s.create("k", r) }, func(a answer) bool { return a.reason() != reasonInFlight })
	retry.wantRefusal(t, codes.FailedPrecondition, reasonOutcomeUnknown)
	if charges.Load() != 1 {
		t.Errorf("%d charges under one key", charges.Load())
	}
}

// The Locker closes during a charge, and the handler gives up with the cause.
func TestByMetadata_GivesUpWhenTheLockerCloses(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	old, next := lockerOn(t, n, core.WithTTL(4*time.Second)), lockerOn(t, n)
	charge := func(ctx context.Context, _ *request) (*order, error) {
		_ = old.Close()
		<-ctx.Done()
		return nil, fmt.Errorf("charge: %w", context.Cause(ctx))
	}
	on := func(l *core.Locker) *server {
		return serve(t, &orders{handle: charge}, grpc.UnaryInterceptor(grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(l))))
	}
	on(old).create("k", &request{})
	after := on(next)
	retry := until(t, func() answer { return after.create("k", &request{}) }, func(a answer) bool { return a.reason() != reasonInFlight })
	retry.wantRefusal(t, codes.FailedPrecondition, reasonOutcomeUnknown)
}

// The Locker closes during a charge, and the handler gives up with the error of its context. Decide
// frees the key of such a call, but the handler did not choose to stop.
func TestDecide_GivesUpWhenTheLockerCloses(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	old, next := lockerOn(t, n, core.WithTTL(4*time.Second)), lockerOn(t, n)
	var charges atomic.Int64
	charge := func(ctx context.Context, _ *request) (*order, error) {
		if run := charges.Add(1); run > 1 {
			return &order{Run: run}, nil
		}
		_ = old.Close()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	frees := grpclock.Decide(func(code codes.Code) idempotency.Fate {
		if code == codes.Canceled {
			return idempotency.FreeKey
		}
		return grpclock.DefaultFate(code)
	})
	on := func(l *core.Locker) *server {
		return serve(t, &orders{handle: charge}, grpc.UnaryInterceptor(grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(l), frees)))
	}
	on(old).create("k", &request{}).wantCode(t, codes.Canceled, false)
	after := on(next)
	retry := until(t, func() answer { return after.create("k", &request{}) }, func(a answer) bool { return a.reason() != reasonInFlight })
	if charges.Load() != 1 {
		t.Fatalf("%d charges under one key", charges.Load())
	}
	retry.wantRefusal(t, codes.FailedPrecondition, reasonOutcomeUnknown)
}
