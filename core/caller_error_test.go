package core_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// lateTimer is a context whose own timer is a while late, as it is on a busy machine: a connection
// notices the deadline before it.
type lateTimer struct {
	context.Context
	end time.Time
}

func (c lateTimer) Deadline() (time.Time, bool) { return c.end, true }

func withLateTimer(d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), d+100*time.Millisecond)
	return lateTimer{ctx, time.Now().Add(d)}, cancel
}

// verbs are all calls of a Locker and a Lock that ask the backend. held makes a lock.
func verbs(l *core.Locker, held func() *core.Lock) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"Acquire": func(ctx context.Context) error { _, err := l.Acquire(ctx, "free"); return err },
		"Acquire with wait": func(ctx context.Context) error {
			_, err := l.Acquire(ctx, "free", core.WithWait(time.Minute))
			return err
		},
		"TryAcquire":    func(ctx context.Context) error { _, err := l.TryAcquire(ctx, "free"); return err },
		"AcquireAll":    func(ctx context.Context) error { _, err := l.AcquireAll(ctx, []string{"free", "too"}); return err },
		"Do":            func(ctx context.Context) error { return l.Do(ctx, "free", func(context.Context) error { return nil }) },
		"Inspect":       func(ctx context.Context) error { _, err := l.Inspect(ctx, "free"); return err },
		"Unseal":        func(ctx context.Context) error { return l.Unseal(ctx, "free") },
		"Revoke":        func(ctx context.Context) error { return l.Revoke(ctx, "free", "somebody") },
		"Extend":        func(ctx context.Context) error { return held().Extend(ctx, time.Minute) },
		"Seal":          func(ctx context.Context) error { return held().Seal(ctx, []byte("v"), time.Minute) },
		"Release":       func(ctx context.Context) error { return held().Release(ctx) },
		"Locks.Release": func(ctx context.Context) error { return core.Locks{held(), held()}.Release(ctx) },
	}
}

// grants calls then after each grant.
type grants struct {
	core.Sealer
	then func()
}

func (b *grants) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	g, err := b.Sealer.Acquire(ctx, r)
	b.then()
	return g, err
}

func (b *grants) Open(core.Environment) (core.Backend, error) { return b, nil }

// The caller's context ends while the backend grants. Nobody else has the key, so the error does
// not say that it is taken.
func TestEnded_WhileTheBackendGrants(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // so that the 100 ms of a release are not over on a busy machine
		b := &grants{Sealer: backendtest.Memory()}
		l := locker(t, b)
		for _, verb := range []string{"Acquire", "Acquire with wait", "TryAcquire", "AcquireAll", "Do"} {
			ctx, cancel := context.WithCancel(context.Background())
			b.then = cancel
			err := verbs(l, nil)[verb](ctx)
			if want(t, verb, err, context.Canceled); errors.Is(err, core.ErrTaken) {
				t.Errorf("%s: %v", verb, err)
			}
		}
	})
}

// A waiter in line gets the answer to the request of the caller before it. If the waiter's own
// context ended at the same moment, the error is the context's.
func TestEnded_InLineIsNeverUnavailable(t *testing.T) {
	t.Parallel()
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			s := memorySpy()
			l := locker(t, s)
			s.on("acquire", func(context.Context) error { time.Sleep(time.Second); return unavailable("k") })
			first, second := make(chan error), make(chan error)
			go func() { _, err := l.Acquire(context.Background(), "k"); first <- err }()
			synctest.Wait()
			go func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second) // both happen at the same instant
				defer cancel()
				_, err := l.Acquire(ctx, "k")
				second <- err
			}()
			want(t, "the first", <-first, core.ErrUnavailable)
			err := <-second
			if want(t, "the second", err, context.DeadlineExceeded); errors.Is(err, core.ErrUnavailable) {
				t.Errorf("the second: %v", err)
			}
		})
	}
}

// The cause of a context's end may be an error about another key: an errgroup cancels the others
// with the first one's error.
func TestEnded_AnothersErrorIsNotThisOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // so that the 100 ms of a release are not over on a busy machine
		mine := errors.New("mine")
		for _, cause := range []error{
			mine, fmt.Errorf("job: %w", &core.SealedError{Key: "other", Value: []byte("another's")}), &core.TakenError{Key: "other"},
			unavailable("other"), core.ErrInvalidKey, core.ErrReleased,
		} {
			l := locker(t, backendtest.Memory())
			k := acquire(t, l, "k")
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(cause)
			for what, call := range verbs(l, func() *core.Lock { return k }) {
				if what == "Release" || what == "Locks.Release" || what == "Seal" { // they outlive ctx
					continue
				}
				wantEnded(t, what, call(ctx), context.Canceled)
			}
			_, err := l.Acquire(ctx, "k")
			var sealed *core.SealedError
			if errors.Is(err, mine) != (cause == mine) || errors.As(err, &sealed) || errors.Is(err, core.ErrTaken) || errors.Is(err, core.ErrInvalidKey) {
				t.Errorf("cancelled by %v: %v", cause, err)
			}
			if k.Err() != nil {
				t.Errorf("the lock ended: %v", k.Err())
			}
			ok(t, "Release", k.Release(ctx))
		}
	})
}

// serverReply is an error with its own type.
type serverReply string

func (e serverReply) Error() string { return string(e) }

// The error still matches whatever else the backend said.
func TestUnavailable_KeepsItsCauses(t *testing.T) {
	t.Parallel()
	mine, reply := errors.New("mine"), serverReply("ERR no")
	s := memorySpy()
	l := locker(t, s, core.WithOutageWait(0))
	answered := &core.UnavailableError{Nodes: []error{fmt.Errorf("%w: %w: %w", context.DeadlineExceeded, mine, reply), io.EOF}}
	s.on("acquire", func(context.Context) error { return answered })
	_, err := l.Acquire(t.Context(), "k")
	var said serverReply
	if !errors.Is(err, core.ErrUnavailable) || !errors.Is(err, mine) || !errors.Is(err, io.EOF) || !errors.As(err, &said) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
	if !errors.Is(answered, context.DeadlineExceeded) {
		t.Error("the backend's own error was changed: others may be told of it too")
	}
}

// Metrics and spans call it canceled, not a failure.
func TestEnded_IsMeasuredAsCancelled(t *testing.T) {
	t.Parallel()
	// So that the 100 ms of answerDue are not over on a busy machine.
	synctest.Test(t, endedIsMeasuredAsCancelled)
}

func endedIsMeasuredAsCancelled(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	p := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	t.Cleanup(func() { _ = p.Shutdown(context.Background()) })
	s := memorySpy()
	l := locker(t, s, core.WithTelemetry(nil, p))
	k := acquire(t, l, "held")
	for _, verb := range []string{"acquire", "seal"} {
		s.on(verb, func(ctx context.Context) error {
			end, _ := ctx.Deadline()
			time.Sleep(time.Until(end))
			return unavailable("k")
		})
	}
	ctx, cancel := withLateTimer(10 * time.Millisecond)
	defer cancel()
	_, err := l.Acquire(ctx, "k")
	wantEnded(t, "Acquire", err, context.DeadlineExceeded)
	wantEnded(t, "Seal", k.Seal(ctx, []byte("v"), time.Minute), context.DeadlineExceeded)
	for i, span := range spans.Ended()[1:] {
		set := attribute.NewSet(span.Attributes()...)
		if outcome, _ := set.Value("onelane.outcome"); outcome.AsString() != "cancelled" || span.Status().Code == codes.Error {
			t.Errorf("span %d is %s: %s, %v", i, span.Name(), outcome.AsString(), span.Status())
		}
	}
}
