package grpclock_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/grpclock/internal/testpb"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

// chat opens a stream of a client that is locked on a room.
func (s *server) chat(t testing.TB, room string) grpc.BidiStreamingClient[request, order] {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	c, err := s.Chat(metadata.AppendToOutgoingContext(ctx, "room", room))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// echo answers each message with the stream's token, 0 if the stream is not locked.
func echo(s grpc.BidiStreamingServer[request, order]) error {
	for {
		if _, err := s.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		token, _ := idempotency.Token(s.Context())
		if err := s.Send(&order{Run: int64(token)}); err != nil {
			return err
		}
	}
}

func say(c grpc.BidiStreamingClient[request, order]) (o *order, err error) {
	if err := c.Send(&request{}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return c.Recv()
}

func TestStreamLockByKey_Lifetime(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	s := serve(t, &orders{chat: echo}, grpc.StreamInterceptor(grpclock.StreamLockByKey("room:{metadata.room}", idempotency.WithLocker(l))))
	first := s.chat(t, "1")
	var token int64
	for range 3 {
		o, err := say(first)
		if err != nil || o.Run == 0 || token != 0 && o.Run != token {
			t.Fatalf("%v, %v", o, err)
		}
		token = o.Run
	}
	if _, err := s.chat(t, "1").Recv(); (answer{err: err}).reason() != reasonLockBusy {
		t.Errorf("a second stream: %v", err)
	}
	if o, err := say(s.chat(t, "2")); err != nil || o.Run == 0 {
		t.Errorf("another room: %v, %v", o, err)
	}
	if _, err := l.TryAcquire(t.Context(), "room:1"); !errors.Is(err, core.ErrTaken) {
		t.Errorf("room:1 is not held: %v", err)
	}
	if err := first.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Recv(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if o, err := say(s.chat(t, "1")); err != nil || o.Run <= token {
		t.Errorf("after the first: %v, %v, the token was %d", o, err, token)
	}
}

var errOwn = status.Error(codes.DataLoss, "half of it is done")

func TestStreamLockByKey_Lost(t *testing.T) {
	t.Parallel()
	for name, handle := range map[string]func(s grpc.BidiStreamingServer[request, order]) error{
		"in Recv": echo,
		"waits for the context": func(s grpc.BidiStreamingServer[request, order]) error {
			<-s.Context().Done()
			if !errors.Is(context.Cause(s.Context()), core.ErrLost) {
				t.Errorf("cause %v", context.Cause(s.Context()))
			}
			return s.Context().Err()
		},
		"sends": func(s grpc.BidiStreamingServer[request, order]) error {
			<-s.Context().Done()
			return s.Send(&order{})
		},
		"receives": func(s grpc.BidiStreamingServer[request, order]) error {
			<-s.Context().Done()
			_, err := s.Recv()
			if err == nil {
				t.Error("a message came after the lock was lost")
			}
			return err
		},
		"has an error of its own": func(s grpc.BidiStreamingServer[request, order]) error {
			<-s.Context().Done()
			return errOwn
		},
		"answers": func(s grpc.BidiStreamingServer[request, order]) error {
			<-s.Context().Done()
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := testutil.Redis(t)
			l := lockerOn(t, n, core.WithTTL(2*time.Second))
			lost := make(chan struct{})
			s := serve(t, &orders{chat: func(s grpc.BidiStreamingServer[request, order]) error {
				n.Client().Del(context.Background(), "onelane:{room:1}")
				context.AfterFunc(s.Context(), func() { close(lost) })
				return handle(s)
			}}, grpc.StreamInterceptor(grpclock.StreamLockByKey("room:{metadata.room}", idempotency.WithLocker(l))))
			c := s.chat(t, "1")
			select {
			case <-lost:
			case <-time.After(check.Patience):
				t.Fatal("the loss is not told")
			}
			if o, err := say(c); name == "has an error of its own" {
				(answer{err: err}).wantCode(t, codes.DataLoss, false)
			} else if (answer{err: err}).reason() != reasonLockLost {
				t.Errorf("%v, %v", o, err)
			}
		})
	}
}

// The end of what the client sends is where a handler commits.
func TestStreamLockByKey_LostBeforeTheEnd(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	l := lockerOn(t, n, core.WithTTL(4*time.Second))
	received := make(chan error, 1)
	s := serve(t, &orders{chat: func(s grpc.BidiStreamingServer[request, order]) error {
		n.Client().Del(context.Background(), "onelane:{room:1}")
		<-s.Context().Done()
		_, err := s.Recv()
		received <- err
		return err
	}}, grpc.StreamInterceptor(grpclock.StreamLockByKey("room:{metadata.room}", idempotency.WithLocker(l))))
	c := s.chat(t, "1")
	if err := c.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Recv(); (answer{err: err}).reason() != reasonLockLost {
		t.Fatalf("the client got %v", err)
	}
	if err := <-received; (answer{err: err}).reason() != reasonLockLost {
		t.Errorf("after the lock was lost Recv said %v", err)
	}
}

func TestStreamLockBy_ClientGone(t *testing.T) {
	t.Parallel()
	l := testutil.Locker(t)
	g := newGate(t)
	s := serve(t, &orders{chat: func(s grpc.BidiStreamingServer[request, order]) error {
		g.entered <- struct{}{}
		_, err := s.Recv()
		return err
	}}, grpc.StreamInterceptor(grpclock.StreamLockBy(func(ctx context.Context, req any) (string, error) {
		if m, _ := grpc.Method(ctx); req != nil || m != "/onelane.test.v1.Orders/Chat" {
			t.Errorf("request %v of %q", req, m)
		}
		return incoming(ctx, "room"), nil
	}, idempotency.WithLocker(l))))
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), "room", "1"))
	if _, err := s.Chat(ctx); err != nil {
		t.Fatal(err)
	}
	g.wait(t)
	if _, err := l.TryAcquire(t.Context(), "1"); !errors.Is(err, core.ErrTaken) {
		t.Errorf("the key is not held: %v", err)
	}
	cancel()
	k, err := l.Acquire(t.Context(), "1", core.WithWait(check.Patience))
	if err != nil {
		t.Fatalf("the key is not free: %v", err)
	}
	_ = k.Release(t.Context())
}

func TestStreamLockByKey_Refused(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	l := lockerOn(t, n)
	s := serve(t, &orders{chat: func(grpc.BidiStreamingServer[request, order]) error { panic("oops") }},
		grpc.ChainStreamInterceptor(recovery.StreamServerInterceptor(), grpclock.StreamLockByKey("room:{metadata.room}", idempotency.WithLocker(l))))
	_, err := s.chat(t, "1").Recv()
	answer{err: err}.wantCode(t, codes.Unknown, false)
	if k, err := l.TryAcquire(t.Context(), "room:1"); err != nil {
		t.Errorf("the key is not free: %v", err)
	} else {
		_ = k.Release(t.Context())
	}
	_, err = s.chat(t, "").Recv()
	answer{err: err}.wantRefusal(t, codes.InvalidArgument, reasonKeyInvalid)
	open := serve(t, &orders{chat: echo}, grpc.StreamInterceptor(grpclock.StreamLockByKey("room:{metadata.room}", idempotency.WithLocker(l), idempotency.FailOpen())))
	n.Kill()
	_, err = s.chat(t, "2").Recv()
	answer{err: err}.wantRefusal(t, codes.Unavailable, reasonLockUnavailable)
	if _, err := say(open.chat(t, "2")); err != nil {
		t.Errorf("FailOpen: %v", err)
	}
}

func TestStreamLockBy_NoKey(t *testing.T) {
	t.Parallel()
	none := func(context.Context, any) (string, error) { return "", nil }
	l := testutil.Locker(t)
	s := serve(t, &orders{chat: echo}, grpc.StreamInterceptor(grpclock.StreamLockBy(none, idempotency.WithLocker(l))))
	if o, err := say(s.chat(t, "")); err != nil || o.Run != 0 {
		t.Errorf("%v, %v", o, err)
	}
	required := serve(t, &orders{chat: echo}, grpc.StreamInterceptor(grpclock.StreamLockBy(none, idempotency.WithLocker(l), idempotency.Require())))
	_, err := required.chat(t, "").Recv()
	answer{err: err}.wantRefusal(t, codes.InvalidArgument, reasonKeyMissing)
}

// The Locker closes under a stream. Nothing renews its lock, and another gets it.
func TestStreamLockByKey_LockerCloses(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	old, next := lockerOn(t, n, core.WithTTL(2*time.Second)), lockerOn(t, n)
	results := make(chan error, 2)
	s := serve(t, &orders{chat: func(s grpc.BidiStreamingServer[request, order]) error {
		_ = old.Close()
		k, err := next.Acquire(t.Context(), "room:1", core.WithWait(check.Patience))
		if err != nil {
			t.Error(err)
		} else {
			defer func() { _ = k.Release(context.Background()) }()
		}
		_, err = s.Recv() // while the other has the lock
		results <- err
		results <- s.Send(&order{})
		return err
	}}, grpc.StreamInterceptor(grpclock.StreamLockByKey("room:{metadata.room}", idempotency.WithLocker(old))))
	c := s.chat(t, "1")
	if err := c.Send(&request{}); err != nil && !errors.Is(err, io.EOF) { // the stream may have ended
		t.Fatal(err)
	}
	for _, what := range []string{"Recv", "Send"} {
		select {
		case err := <-results:
			if (answer{err: err}).reason() != reasonLockLost {
				t.Errorf("another has the lock, and %s said %v", what, err)
			}
		case <-time.After(check.Patience):
			t.Fatal("the handler is not done")
		}
	}
}

// The Locker closes under a stream whose handler only waits for its context, and returns its error or,
// as a subscription does, nil. The stream ends with LOCK_LOST, as the comment of StreamLockByKey says.
func TestStreamLockByKey_LockerClosesDuringAWait(t *testing.T) {
	t.Parallel()
	for _, end := range []func(context.Context) error{context.Context.Err, func(context.Context) error { return nil }} {
		l := lockerOn(t, testutil.Redis(t))
		s := serve(t, &orders{chat: func(s grpc.BidiStreamingServer[request, order]) error {
			_ = l.Close()
			<-s.Context().Done()
			return end(s.Context())
		}}, grpc.StreamInterceptor(grpclock.StreamLockByKey("room:{metadata.room}", idempotency.WithLocker(l))))
		_, err := s.chat(t, "1").Recv()
		answer{err: err}.wantRefusal(t, codes.Aborted, reasonLockLost)
	}
}

// A handler that ignores the errors of Send gets LOCK_LOST many times. The client gets it once, and
// its limit of a header list is that of grpc-java, 8 KiB.
func TestStreamLockByKey_LostOnce(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	l := lockerOn(t, n, core.WithTTL(2*time.Second))
	s := serve(t, &orders{chat: func(s grpc.BidiStreamingServer[request, order]) error {
		n.Client().Del(context.Background(), "onelane:{room:1}")
		<-s.Context().Done()
		for range 300 {
			_ = s.Send(&order{})
		}
		return s.Send(&order{})
	}}, grpc.StreamInterceptor(grpclock.StreamLockByKey("room:{metadata.room}", idempotency.WithLocker(l))))
	client := testpb.NewOrdersClient(s.dial(grpc.WithMaxHeaderListSize(8 << 10)))
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "room", "1"), 20*time.Second)
	defer cancel()
	c, err := client.Chat(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Recv(); (answer{err: err}).reason() != reasonLockLost {
		t.Fatalf("the client got %v", err)
	}
	if pushback := c.Trailer().Get("grpc-retry-pushback-ms"); len(pushback) != 1 || pushback[0] != "-1" {
		t.Errorf("%d trailers, want one", len(pushback))
	}
}
