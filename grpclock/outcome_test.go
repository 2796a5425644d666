package grpclock_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// retryDelay is that in the error's RetryInfo.
func (a answer) retryDelay() time.Duration {
	for _, d := range status.Convert(a.err).Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return info.RetryDelay.AsDuration()
		}
	}
	return 0
}

func TestRefusal_InFlight(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	g := newGate(t)
	s := once(t, g.behind(counter(&runs)))
	first := later(func() answer { return s.create("k", &request{}) })
	g.wait(t)
	a := s.create("k", &request{})
	a.wantRefusal(t, codes.Aborted, reasonInFlight)
	if a.retryDelay() <= 0 || len(a.trailer.Get("grpc-retry-pushback-ms")) != 1 {
		t.Errorf("%v %v does not say when to retry", a.err, a.trailer)
	}
	// A mismatch wins over in flight.
	s.create("k", &request{Quantity: 1}).wantRefusal(t, codes.FailedPrecondition, reasonKeyReused)
	s.create("k", &request{}, "authorization", "x").wantRefusal(t, codes.FailedPrecondition, reasonCredentialsChanged)
	close(g.open)
	(<-first).want(t, 1, false)
	s.create("k", &request{}).want(t, 1, true)
	s.create("k", &request{Quantity: 1}).wantRefusal(t, codes.FailedPrecondition, reasonKeyReused)
}

func TestWait_ForTheAnswer(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	g := newGate(t)
	s := once(t, g.behind(counter(&runs)), idempotency.Wait(10*time.Second))
	first := later(func() answer { return s.create("k", &request{}) })
	g.wait(t)
	second := later(func() answer { return s.create("k", &request{}) })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if a := ask(ctx, s.Create, &request{}, idempotencyKey, "k"); status.Code(a.err) != codes.DeadlineExceeded && a.reason() != reasonInFlight { // whose clock is first
		t.Errorf("a short deadline: %v", a.err)
	}
	close(g.open)
	(<-first).want(t, 1, false)
	(<-second).want(t, 1, true)
}

func TestByMetadata_OneEffect(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := once(t, func(ctx context.Context, r *request) (*order, error) {
		time.Sleep(5 * time.Millisecond)
		return counter(&runs)(ctx, r)
	})
	var wg sync.WaitGroup
	var refused atomic.Int64
	for range 50 {
		wg.Go(func() {
			switch a := s.create("k", &request{}); {
			case a.err == nil && a.order.Run == 1:
			case a.reason() == reasonInFlight:
				refused.Add(1)
			default:
				t.Errorf("%v, %v", a.order, a.err)
			}
		})
	}
	wg.Wait()
	if runs.Load() != 1 {
		t.Errorf("%d runs, %d refused", runs.Load(), refused.Load())
	}
}

func TestLockByKey_BusyAndSealed(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	g, l := newGate(t), testutil.Locker(t)
	s := serve(t, &orders{handle: g.behind(counter(&runs))}, grpc.UnaryInterceptor(grpclock.LockByKey("order:{req.order_id}", idempotency.WithLocker(l))))
	grab := func(id string) answer { return ask(t.Context(), s.Grab, &request{OrderId: id}) }
	first := later(func() answer { return grab("7") })
	g.wait(t)
	a := grab("7")
	a.wantRefusal(t, codes.Aborted, reasonLockBusy)
	if a.retryDelay() <= 0 {
		t.Errorf("%v does not say when to retry", a.err)
	}
	close(g.open)
	(<-first).want(t, 1, false)
	grab("7").want(t, 2, false)
	k, err := l.Acquire(t.Context(), "order:8")
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Seal(t.Context(), []byte("gone"), time.Minute); err != nil {
		t.Fatal(err)
	}
	grab("8").wantRefusal(t, codes.FailedPrecondition, reasonLockSealed)
}

func TestLockByKey_Wait(t *testing.T) {
	t.Parallel()
	var inside, runs atomic.Int64
	s := serve(t, &orders{handle: func(context.Context, *request) (*order, error) {
		if inside.Add(1) != 1 {
			t.Error("two are inside")
		}
		time.Sleep(2 * time.Millisecond)
		inside.Add(-1)
		return &order{Run: runs.Add(1)}, nil
	}}, grpc.UnaryInterceptor(grpclock.LockByKey("order:{req.order_id}", idempotency.Wait(10*time.Second), idempotency.WithLocker(testutil.Locker(t)))))
	var wg sync.WaitGroup
	for i := range 20 {
		m := s.Grab
		if i%2 == 0 {
			m = s.Get // another method of the service, and one without side effects: LockOnly is for all
		}
		wg.Go(func() {
			if a := ask(t.Context(), m, &request{OrderId: "7"}); a.err != nil {
				t.Error(a.err)
			}
		})
	}
	wg.Wait()
	ask(t.Context(), s.Grab, &request{}).wantRefusal(t, codes.InvalidArgument, reasonKeyMissing) // nothing is named
	if runs.Load() != 20 {
		t.Errorf("%d runs", runs.Load())
	}
}

func TestLockByKey_Lost(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	l := lockerOn(t, n, core.WithTTL(2*time.Second))
	answers := map[string]handler{
		"answers": func(ctx context.Context, _ *request) (*order, error) { <-ctx.Done(); return &order{}, nil },
		"gives up": func(ctx context.Context, _ *request) (*order, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
		"says why": func(ctx context.Context, _ *request) (*order, error) {
			<-ctx.Done()
			return nil, fmt.Errorf("gave up: %w", context.Cause(ctx))
		},
	}
	s := serve(t, &orders{handle: func(ctx context.Context, r *request) (*order, error) {
		n.Client().Del(context.Background(), "onelane:{order:"+r.OrderId+"}")
		return answers[r.OrderId](ctx, r)
	}}, grpc.UnaryInterceptor(grpclock.LockByKey("order:{req.order_id}", idempotency.WithLocker(l))))
	for id := range answers {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			ask(t.Context(), s.Grab, &request{OrderId: id}).wantRefusal(t, codes.Aborted, reasonLockLost)
		})
	}
}

func TestRefusal_StoreDown(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	n := testutil.Redis(t)
	l := lockerOn(t, n)
	handle := &orders{handle: counter(&runs)}
	closed := serve(t, handle, grpc.UnaryInterceptor(grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(l))))
	locked := serve(t, handle, grpc.UnaryInterceptor(grpclock.LockByKey("{metadata.idempotency-key}", idempotency.WithLocker(l))))
	open := serve(t, handle, grpc.UnaryInterceptor(grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(l), idempotency.FailOpen())))
	openLocked := serve(t, handle, grpc.UnaryInterceptor(grpclock.LockByKey("{metadata.idempotency-key}", idempotency.WithLocker(l), idempotency.FailOpen())))
	n.Kill()
	for _, s := range []*server{closed, locked} {
		a := s.create("k", &request{})
		a.wantRefusal(t, codes.Unavailable, reasonLockUnavailable)
		if a.retryDelay() <= 0 {
			t.Errorf("%v does not say when to retry", a.err)
		}
	}
	if n := runs.Load(); n != 0 {
		t.Fatalf("%d runs", n)
	}
	open.create("k", &request{}).want(t, 1, false)
	openLocked.create("k", &request{}).want(t, 2, false)
	ask(t.Context(), closed.Create, &request{}).want(t, 3, false) // without a key there is nothing to ask
}

// After the handler: the answer goes out, nothing else may run, and it is recorded once Redis answers again.
func TestByMetadata_StoreDownAfterHandler(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	n := testutil.Redis(t)
	l := lockerWithin(t, n, time.Second, core.WithTTL(time.Minute))
	s := serve(t, &orders{handle: func(ctx context.Context, r *request) (*order, error) {
		n.Stop()
		return counter(&runs)(ctx, r)
	}}, grpc.UnaryInterceptor(grpclock.ByMetadata(idempotencyKey, idempotency.WithLocker(l))))
	made := func(a answer) bool { return a.err == nil } // a busy machine may give no answer in a second
	until(t, func() answer { return s.create("k", &request{}) }, made).want(t, 1, false)
	s.create("k", &request{}).wantRefusal(t, codes.Aborted, reasonInFlight) // this process has the claim still
	n.Cont()
	until(t, func() answer { return s.create("k", &request{}) }, made).want(t, 1, true)
}

func TestDefaultFate_EachCode(t *testing.T) {
	t.Parallel()
	const replayed, again, unknown = "replayed", "again", "unknown"
	fates := map[codes.Code]string{codes.InvalidArgument: again, codes.Unauthenticated: again,
		codes.PermissionDenied: again, codes.Aborted: again, codes.Unimplemented: again, codes.ResourceExhausted: unknown,
		codes.Canceled: unknown, codes.DeadlineExceeded: unknown, codes.Unavailable: unknown}
	always := func(f idempotency.Fate) grpclock.Option {
		return grpclock.Decide(func(codes.Code) idempotency.Fate { return f })
	}
	for _, tc := range []struct {
		name string
		opts []grpclock.Option
		want func(c codes.Code) string
	}{
		{"default", nil, func(c codes.Code) string { return cmp.Or(fates[c], replayed) }},
		{"Decide keeps", []grpclock.Option{always(idempotency.KeepAnswer)}, func(c codes.Code) string {
			if c == codes.Unauthenticated {
				return again
			}
			return replayed
		}},
		{"Decide frees", []grpclock.Option{always(idempotency.FreeKey)}, func(codes.Code) string { return again }},
		{"RunAgain", []grpclock.Option{idempotency.RunAgain()}, func(c codes.Code) string {
			switch c {
			case codes.Internal, codes.Unknown, codes.DataLoss, codes.Canceled, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Unavailable:
				return again
			}
			return cmp.Or(fates[c], replayed)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			s := once(t, func(_ context.Context, r *request) (*order, error) {
				runs.Add(1)
				return &order{}, status.Error(codes.Code(r.Quantity), "as asked")
			}, tc.opts...)
			for code := codes.OK; code <= 18; code++ { // 17 and 18 are no codes of gRPC
				key, r := fmt.Sprint("k", code), &request{Quantity: int32(code)}
				if code != codes.OK {
					s.create(key, r).wantCode(t, code, false)
				} else {
					s.create(key, r).want(t, 0, false)
				}
				before, a := runs.Load(), s.create(key, r)
				if tc.want(code) == unknown { // and until the lease ends it is in flight
					if a.reason() != reasonInFlight && a.reason() != reasonOutcomeUnknown || runs.Load() != before {
						t.Errorf("%v: %v", code, a.err)
					}
					continue
				}
				if ran := runs.Load() > before; status.Code(a.err) != code || a.replayed() == ran || ran != (tc.want(code) == again) {
					t.Errorf("%v: %v, replayed %v, want it %s", code, a.err, a.replayed(), tc.want(code))
				}
			}
		})
	}
}

// An error without a status, and one around a status, are what the server makes of them.
func TestRecord_PlainErrors(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"plain": errors.New("oops"), "wrapped": fmt.Errorf("wrapped: %w", status.Error(codes.NotFound, "gone")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := once(t, func(context.Context, *request) (*order, error) { return nil, err })
			a, b := s.create("k", &request{}), s.create("k", &request{})
			if b.wantCode(t, status.Code(a.err), true); a.replayed() || a.err.Error() != b.err.Error() {
				t.Errorf("%v is replayed as %v", a.err, b.err)
			}
		})
	}
}

func TestRecord_Retention(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := once(t, counter(&runs), idempotency.Retain(50*time.Millisecond))
	s.create("k", &request{}).want(t, 1, false)
	until(t, func() answer { return s.create("k", &request{}) }, func(a answer) bool { return !a.replayed() }).want(t, 2, false)
}

// A call whose deadline passes during a call to Redis, or whose client hangs up, does not run,
// FailOpen or not. It would run for nobody, and maybe beside the call that has the key. The call
// may give up Redis a moment before the context's own timer fires, which must not matter.
func TestFailOpen_ClientGone(t *testing.T) {
	t.Parallel()
	backend := &check.Hanging{Sealer: backendtest.Memory()}
	l, err := core.New(backend)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	var runs atomic.Int64
	over := make(chan codes.Code, 1)
	var hangUp atomic.Pointer[context.CancelFunc]
	var ends atomic.Bool
	const soon = 20 * time.Millisecond // after the call has arrived
	outside := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if h := hangUp.Swap(nil); h != nil {
			time.AfterFunc(soon, *h)
		} else if ends.Load() {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, soon)
			defer cancel()
		}
		resp, err := handler(ctx, req)
		over <- status.Code(err)
		return resp, err
	}
	handle := &orders{handle: counter(&runs)}
	servers := map[string]*server{}
	use := idempotency.WithLocker(l)
	for name, by := range map[string]grpc.UnaryServerInterceptor{
		"once":           grpclock.ByMetadata(idempotencyKey, use, idempotency.FailOpen()),
		"locked":         grpclock.LockByKey("{metadata.idempotency-key}", use, idempotency.FailOpen()),
		"closed":         grpclock.ByMetadata(idempotencyKey, use),
		"closed, locked": grpclock.LockByKey("{metadata.idempotency-key}", use),
	} {
		servers[name] = serve(t, handle, grpc.ChainUnaryInterceptor(outside, by))
		servers[name].create("warm", &request{}) // connected
		<-over
	}
	runs.Store(0)
	backend.Hangs.Store(true)
	ends.Store(true)
	for name, s := range servers {
		for try := range 10 {
			ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), idempotencyKey, "k"))
			if try == 0 {
				hangUp.Store(&cancel)
			}
			_, _ = s.Create(ctx, &request{})
			cancel()
			select {
			case code := <-over:
				if want := map[bool]codes.Code{true: codes.Canceled, false: codes.DeadlineExceeded}[try == 0]; code != want {
					t.Errorf("%s: try %d ended with %v, not %v", name, try, code, want)
				}
			case <-time.After(check.Patience):
				t.Fatal("the call is not over")
			}
		}
		if n := runs.Swap(0); n != 0 {
			t.Errorf("%s: %d of 10 ran unprotected after their end", name, n)
		}
	}
}

// The error of the handler's own call says that nobody knows what the other service did.
func TestDefaultFate_PassesOnRefusal(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{reasonInFlight, reasonLockLost} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			st, err := status.New(codes.Aborted, "refused").WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: grpclock.Domain})
			if err != nil {
				t.Fatal(err)
			}
			var charges atomic.Int64
			s := once(t, func(context.Context, *request) (*order, error) {
				charges.Add(1)
				return nil, fmt.Errorf("charge: %w", st.Err())
			})
			s.create("k", &request{})
			if s.create("k", &request{}); charges.Load() != 1 {
				t.Errorf("%d charges under one key", charges.Load())
			}
		})
	}
}
