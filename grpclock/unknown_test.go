package grpclock_test

import (
	"context"
	"crypto/rand"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/grpclock/internal/testpb"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

type clientKey struct{}

// watchClient is an interceptor outside that lets the handler see the end of the client's context.
func watchClient(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	return handler(context.WithValue(ctx, clientKey{}, ctx.Done()), req)
}

// clientGone is closed when the client has hung up or is out of time.
func clientGone(ctx context.Context) <-chan struct{} { return ctx.Value(clientKey{}).(<-chan struct{}) }

// unknownAfter is the TTL of claims in tests that wait for an unknown outcome. It is longer than a busy
// machine stands still.
const unknownAfter = 2 * time.Second

// briefly is a server whose leases end soon.
func briefly(t testing.TB, h handler, opts ...grpclock.Option) *server {
	t.Helper()
	return leasing(t, unknownAfter, h, opts...)
}

// leasing is a server whose leases last for ttl. Its handlers see the end of the client's context.
func leasing(t testing.TB, ttl time.Duration, h handler, opts ...grpclock.Option) *server {
	t.Helper()
	l, err := core.New(backendtest.Memory(), core.WithTTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	opts = append(opts, idempotency.WithLocker(l))
	return serve(t, &orders{handle: h}, grpc.ChainUnaryInterceptor(watchClient, grpclock.ByMetadata(idempotencyKey, opts...)))
}

func (s *server) untilUnknown(t testing.TB) {
	t.Helper()
	a := until(t, func() answer { return s.create("k", &request{}) }, func(a answer) bool { return a.reason() != reasonInFlight })
	a.wantRefusal(t, codes.FailedPrecondition, reasonOutcomeUnknown)
	if a.retryDelay() != 0 || len(a.trailer.Get("grpc-retry-pushback-ms")) > 0 {
		t.Errorf("%v, %v asks for a retry", a.err, a.trailer)
	}
}

// hangUp calls Create and ends before the answer. It ends by a deadline, or by canceling when the
// handler is at the gate.
func (s *server) hangUp(t testing.TB, g *gate, deadline bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	call := func(ctx context.Context) <-chan answer {
		return later(func() answer { return ask(ctx, s.Create, &request{}, idempotencyKey, "k") })
	}
	var answers <-chan answer
	if deadline {
		within := 1500 * time.Millisecond
		for arrived := false; !arrived; within *= 2 { // a busy machine may end the call before the handler runs
			if within > time.Minute {
				t.Fatal("no call came to the gate")
			}
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			answers = call(ctx)
			select {
			case <-g.entered:
				arrived = true
			case <-ctx.Done():
				select {
				case <-g.entered:
					arrived = true
				case <-time.After(within):
				}
			}
		}
	} else {
		answers = call(ctx)
		g.wait(t)
		cancel()
	}
	if a := <-answers; status.Code(a.err) != codes.Canceled && status.Code(a.err) != codes.DeadlineExceeded {
		t.Errorf("%v, %v", a.order, a.err)
	}
}

func TestMaxRun_ClientGone(t *testing.T) {
	t.Parallel()
	for name, deadline := range map[string]bool{"cancelled": false, "deadline": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			g := newGate(t)
			s := leasing(t, time.Minute, func(ctx context.Context, r *request) (*order, error) {
				g.entered <- struct{}{}
				<-clientGone(ctx)
				g.stand()
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				return counter(&runs)(ctx, r)
			})
			s.hangUp(t, g, deadline)
			g.wait(t)
			s.create("k", &request{}).wantRefusal(t, codes.Aborted, reasonInFlight)
			close(g.open)
			until(t, func() answer { return s.create("k", &request{}) }, func(a answer) bool { return a.err == nil }).want(t, 1, true)
		})
	}
}

func TestMaxRun_ServerDeadline(t *testing.T) {
	t.Parallel()
	var d atomic.Int64
	limit := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Duration(d.Add(int64(50*time.Millisecond)))) // until it is enough for a lock
		defer cancel()
		return handler(ctx, req)
	}
	for name, chain := range map[string][]grpc.UnaryServerInterceptor{"interceptor": {limit}, "MaxRun": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := []grpclock.Option{idempotency.WithLocker(testutil.Locker(t)), grpclock.Metadata("x")}
			if chain == nil {
				opts = append(opts, idempotency.MaxRun(50*time.Millisecond))
			}
			s := serve(t, &orders{handle: func(ctx context.Context, _ *request) (*order, error) {
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
					t.Errorf("the cause is %v", context.Cause(ctx))
				}
				return &order{Run: 1}, nil
			}}, grpc.ChainUnaryInterceptor(append(chain, grpclock.ByMetadata(idempotencyKey, opts...))...))
			until(t, func() answer { return s.create("k", &request{}) }, func(a answer) bool { return a.err == nil }).want(t, 1, false)
			until(t, func() answer { return s.create("k", &request{}) }, func(a answer) bool { return a.err == nil }).want(t, 1, true)
		})
	}
}

func TestUnknown_Codes(t *testing.T) {
	t.Parallel()
	for _, code := range []codes.Code{codes.Canceled, codes.DeadlineExceeded} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			s := briefly(t, func(context.Context, *request) (*order, error) {
				runs.Add(1)
				return nil, status.Error(code, "too late")
			})
			s.create("k", &request{}).wantCode(t, code, false)
			s.untilUnknown(t)
			s.create("k", &request{Quantity: 1}).wantRefusal(t, codes.FailedPrecondition, reasonKeyReused)
			if runs.Load() != 1 {
				t.Errorf("%d runs", runs.Load())
			}
		})
	}
}

func TestNothingDone(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := once(t, func(ctx context.Context, r *request) (*order, error) {
		if runs.Add(1) == 1 {
			idempotency.NothingDone(ctx)
			return nil, status.Error(codes.DeadlineExceeded, "the database did not answer")
		}
		return &order{Run: runs.Load()}, nil
	})
	s.create("k", &request{}).wantCode(t, codes.DeadlineExceeded, false)
	s.create("k", &request{}).want(t, 2, false)
	s.create("k", &request{}).want(t, 2, true)
}

func TestRecover(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name     string
		decision idempotency.Recovery
		err      error
		check    func(t *testing.T, s *server, retry answer)
	}{
		{"answered", idempotency.Answered, nil, func(t *testing.T, s *server, retry answer) {
			retry.want(t, 7, false)
			s.create("k", &request{}).want(t, 7, true)
		}},
		{"answered with an error", idempotency.Answered, status.Error(codes.NotFound, "declined"), func(t *testing.T, s *server, retry answer) {
			retry.wantCode(t, codes.NotFound, false)
			s.create("k", &request{}).wantCode(t, codes.NotFound, true)
		}},
		{"run", idempotency.RunHandler, nil, func(t *testing.T, s *server, retry answer) {
			retry.want(t, 2, false)
			s.create("k", &request{}).want(t, 2, true)
		}},
		{"unknown", idempotency.StillUnknown, nil, func(t *testing.T, s *server, retry answer) {
			retry.wantRefusal(t, codes.FailedPrecondition, reasonOutcomeUnknown)
			s.untilUnknown(t)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			s := briefly(t, func(_ context.Context, _ *request) (*order, error) {
				if runs.Add(1) == 1 {
					return nil, status.Error(codes.DeadlineExceeded, "the provider did not answer")
				}
				return &order{Run: runs.Load()}, nil
			}, grpclock.Recover(func(ctx context.Context, req any, earlier idempotency.Run) (any, idempotency.Recovery, error) {
				if _, err := idempotency.DeriveKey(ctx, "charge"); err != nil || earlier.RequestID != "r1" || earlier.Begun.IsZero() {
					t.Errorf("%v, %+v", err, earlier)
				}
				if _, ok := req.(*request); !ok {
					t.Errorf("the request is a %T", req)
				}
				return &order{Run: 7}, tc.decision, tc.err
			}))
			s.create("k", &request{}, "x-request-id", "r1").wantCode(t, codes.DeadlineExceeded, false)
			retry := until(t, func() answer { return s.create("k", &request{}, "x-request-id", "r1") }, func(a answer) bool { return a.reason() != reasonInFlight })
			tc.check(t, s, retry)
		})
	}
}

func TestStep_TwoRuns(t *testing.T) {
	t.Parallel()
	var runs, charges atomic.Int64
	s := briefly(t, func(ctx context.Context, _ *request) (*order, error) {
		run := runs.Add(1)
		charge, err := idempotency.Step(ctx, "charge", func(context.Context) (int64, error) { return charges.Add(1), nil })
		if err != nil {
			return nil, err
		}
		if run == 1 {
			return nil, status.Error(codes.Internal, "after the charge")
		}
		return &order{Run: charge}, nil
	}, idempotency.RunAgain())
	s.create("k", &request{}).wantCode(t, codes.Internal, false)
	s.create("k", &request{}).want(t, 1, false)
	if runs.Load() != 2 || charges.Load() != 1 {
		t.Errorf("%d runs, %d charges", runs.Load(), charges.Load())
	}
}

// A handler may leave goroutines behind that set metadata while the answer is recorded.
func TestMetadata_SetConcurrently(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]grpclock.Option{"recorded": {grpclock.Metadata("x")}, "not recorded": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var wg sync.WaitGroup
			s := once(t, func(ctx context.Context, _ *request) (*order, error) {
				started := make(chan struct{})
				for i := range 4 {
					wg.Go(func() {
						for n := range 100 {
							_ = grpc.SetHeader(ctx, metadata.Pairs("x", "1"))
							_ = grpc.SetTrailer(ctx, metadata.Pairs("x", "1"))
							if i == 0 && n == 10 {
								close(started)
							}
						}
					})
				}
				<-started
				return &order{Run: 1}, nil
			}, opts...)
			s.create("k", &request{}).want(t, 1, false)
			wg.Wait()
			s.create("k", &request{}).want(t, 1, true)
		})
	}
}

// Probes and reflection have no key.
func TestRequire_PassesHealth(t *testing.T) {
	t.Parallel()
	use := idempotency.WithLocker(testutil.Locker(t))
	for name, i := range map[string]grpc.UnaryServerInterceptor{
		"ByMetadata": grpclock.ByMetadata(idempotencyKey, use, idempotency.Require()),
		"ByField":    grpclock.ByField("request_id", use, idempotency.Require()),
		"LockByKey":  grpclock.LockByKey("order:{req.order_id}", use),
	} {
		s := serveWith(t, func(r grpc.ServiceRegistrar) {
			grpc_health_v1.RegisterHealthServer(r, health.NewServer())
			testpb.RegisterOrdersServer(r, &orders{})
			if err := grpclock.Check(r.(*grpc.Server), i); err != nil {
				t.Error(err)
			}
		}, grpc.UnaryInterceptor(i), grpc.StreamInterceptor(grpclock.StreamLockByKey("room:{metadata.room}", use)))
		client := grpc_health_v1.NewHealthClient(s.dial())
		for range 2 {
			if _, err := client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		watch, err := client.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
		if err == nil {
			_, err = watch.Recv()
		}
		if err != nil {
			t.Errorf("%s: Watch: %v", name, err)
		}
		cancel()
	}
}

func TestService_KeysAreApart(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	l := idempotency.WithLocker(testutil.Locker(t))
	a, b := once(t, counter(&runs), l, idempotency.Service("a")), once(t, counter(&runs), l, idempotency.Service("b"))
	a.create("k", &request{}).want(t, 1, false)
	b.create("k", &request{}).want(t, 2, false)
	a.create("k", &request{}).want(t, 1, true)
}

// The first run charged, and Recover cannot ask the provider. Its code is about the retry, so the outcome
// stays unknown.
func TestRecover_AnswersNotNow(t *testing.T) {
	t.Parallel()
	for _, code := range []codes.Code{codes.Unavailable, codes.ResourceExhausted, codes.PermissionDenied, codes.Unauthenticated} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			var charges atomic.Int64
			s := briefly(t, func(_ context.Context, _ *request) (*order, error) {
				charges.Add(1)
				return nil, status.Error(codes.DeadlineExceeded, "charged, but the provider did not answer")
			}, grpclock.Recover(func(context.Context, any, idempotency.Run) (any, idempotency.Recovery, error) {
				return nil, idempotency.Answered, status.Error(code, "the provider cannot be asked now")
			}))
			s.create("k", &request{})
			until(t, func() answer { return s.create("k", &request{}) }, func(a answer) bool { return status.Code(a.err) == code })
			// the next retry
			a := until(t, func() answer { return s.create("k", &request{}) }, func(a answer) bool { return a.reason() != reasonInFlight })
			if charges.Load() != 1 {
				t.Errorf("%d charges under one key; the retry got %v", charges.Load(), a.err)
			}
		})
	}
}

// The outer interceptor's MaxRun ends the handler, although the client waited less.
func TestMaxRun_OfAnOuterInterceptor(t *testing.T) {
	t.Parallel()
	l := idempotency.WithLocker(testutil.Locker(t))
	var runs atomic.Int64
	ended := make(chan error, 10)
	s := serve(t, &orders{handle: func(ctx context.Context, _ *request) (*order, error) {
		runs.Add(1)
		select {
		case <-ctx.Done():
			ended <- context.Cause(ctx)
		case <-time.After(20 * time.Second):
			ended <- errors.New("runs on 20 s later")
		}
		return &order{Run: 1}, nil
	}}, grpc.ChainUnaryInterceptor(
		grpclock.ByMetadata(idempotencyKey, l, idempotency.MaxRun(time.Second)),
		grpclock.By(func(context.Context, any) (string, error) { return rand.Text(), nil }, l)))
	for i := 0; i < 10 && runs.Load() == 0; i++ { // a busy machine may not run it in time
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		defer cancel()
		_ = ask(ctx, s.Create, &request{}, idempotencyKey, strconv.Itoa(i))
	}
	if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// NothingDone in Recover is about the earlier run, and RunHandler lets the handler run.
func TestRecover_NothingDone(t *testing.T) {
	t.Parallel()
	var charges, runs atomic.Int64
	s := briefly(t, func(_ context.Context, _ *request) (*order, error) {
		if runs.Add(1) == 1 {
			return nil, status.Error(codes.DeadlineExceeded, "late")
		}
		return &order{Run: charges.Add(1)}, nil
	}, grpclock.Recover(func(ctx context.Context, _ any, _ idempotency.Run) (any, idempotency.Recovery, error) {
		idempotency.NothingDone(ctx)
		return nil, idempotency.RunHandler, nil
	}))
	s.create("k", &request{})
	until(t, func() answer { return s.create("k", &request{}) }, func(a answer) bool { return a.err == nil })
	a := until(t, func() answer { return s.create("k", &request{}) }, func(a answer) bool { return a.err == nil })
	if charges.Load() != 1 || !a.replayed() {
		t.Errorf("%d charges, replayed %v", charges.Load(), a.replayed())
	}
}
