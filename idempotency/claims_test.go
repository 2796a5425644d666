package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	// go-redis dials a dead server until up to a second after its client was closed.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

func fp(payload string) idempotency.Fingerprint {
	return idempotency.Fingerprint{Payload: idempotency.Digest([]byte(payload))}
}

func fpBy(payload, who string) idempotency.Fingerprint {
	f := fp(payload)
	f.Credentials = idempotency.Digest([]byte(who))
	return f
}

func memoryLocker(t testing.TB, opts ...core.Option) *core.Locker {
	t.Helper()
	l, err := core.New(testutil.Memory(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func begin(t testing.TB, c *idempotency.Claims, key string, f idempotency.Fingerprint) *idempotency.Claim {
	t.Helper()
	out, err := c.Begin(t.Context(), key, f)
	if err != nil || out.Claim == nil || out.Replay != nil {
		t.Fatalf("%+v, %v; want a claim", out, err)
	}
	return out.Claim
}

func token(t testing.TB, claim *idempotency.Claim) uint64 {
	t.Helper()
	token, err := claim.Token(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func replay(t testing.TB, c *idempotency.Claims, key string, f idempotency.Fingerprint, body string) {
	t.Helper()
	out, err := c.Begin(t.Context(), key, f)
	if err != nil || out.Claim != nil || out.Replay == nil || string(out.Replay.Body) != body {
		t.Fatalf("%+v, %v; want the replay of %q", out, err, body)
	}
}

func record(body string) *idempotency.Record {
	return &idempotency.Record{Status: 200, Body: []byte(body)}
}

func TestBegin(t *testing.T) {
	t.Parallel()
	c := idempotency.New(testutil.Locker(t))
	ctx := t.Context()
	claim := begin(t, c, "k", fpBy("a", "ann"))
	if claim.Key() != "k" || token(t, claim) == 0 {
		t.Errorf("key %q, token %d", claim.Key(), token(t, claim))
	}
	var inFlight *idempotency.InFlightError
	if _, err := c.Begin(ctx, "k", fpBy("a", "ann")); !errors.As(err, &inFlight) || inFlight.RetryAfter <= 0 || inFlight.Key != "k" ||
		!errors.Is(err, idempotency.ErrInFlight) || !errors.Is(err, core.ErrTaken) || strings.Contains(err.Error(), "claim:") {
		t.Errorf("a repeat while it runs: %v", err)
	}
	mismatch := func() {
		t.Helper()
		for _, tc := range []struct {
			f           idempotency.Fingerprint
			credentials bool
		}{{fpBy("b", "ann"), false}, {fpBy("a", "bob"), true}, {fpBy("b", "bob"), true}, {fp("a"), true}} {
			var e *idempotency.MismatchError
			if _, err := c.Begin(ctx, "k", tc.f); !errors.As(err, &e) || e.Credentials != tc.credentials || !errors.Is(err, idempotency.ErrMismatch) ||
				!strings.Contains(err.Error(), `"k"`) {
				t.Errorf("another request: %v, want credentials %v", err, tc.credentials)
			}
		}
	}
	mismatch()
	if err := claim.Complete(ctx, record("done")); err != nil {
		t.Fatal(err)
	}
	mismatch()
	replay(t, c, "k", fpBy("a", "ann"), "done")
	if err := claim.Complete(ctx, record("again")); !errors.Is(err, idempotency.ErrCompleted) {
		t.Errorf("the second Complete: %v", err)
	}
	if err := claim.Abandon(ctx); err != nil {
		t.Errorf("Abandon after Complete: %v", err)
	}
	replay(t, c, "k", fpBy("a", "ann"), "done")
}

func TestAbandon(t *testing.T) {
	t.Parallel()
	c := idempotency.New(testutil.Locker(t))
	claim := begin(t, c, "k", fp("a"))
	first := token(t, claim)
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if err := claim.Abandon(done); err != nil { // works on a context of its own
		t.Fatal(err)
	}
	if claim.Context().Err() == nil {
		t.Error("the claim's context goes on")
	}
	if err := claim.Complete(t.Context(), record("late")); !errors.Is(err, idempotency.ErrCompleted) {
		t.Errorf("Complete after Abandon: %v", err)
	}
	next := begin(t, c, "k", fp("b")) // another request may have the key now
	if second := token(t, next); second <= first {
		t.Errorf("token %d after %d", second, first)
	}
	if err := next.Abandon(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestCompleteIgnoresACancelledContext(t *testing.T) {
	t.Parallel()
	c := idempotency.New(testutil.Locker(t))
	ctx, cancel := context.WithCancel(t.Context())
	out, err := c.Begin(ctx, "k", fp("a"))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := out.Claim.Complete(ctx, record("done")); err != nil {
		t.Fatal(err)
	}
	replay(t, c, "k", fp("a"), "done")
}

func TestRetention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := memoryLocker(t)
		for _, tc := range []struct {
			opts []idempotency.Option
			want time.Duration
		}{{nil, 24 * time.Hour}, {[]idempotency.Option{idempotency.WithRetention(time.Hour), nil}, time.Hour}} {
			c := idempotency.New(l, tc.opts...)
			key := fmt.Sprint("kept ", tc.want)
			if err := begin(t, c, key, fp("a")).Complete(t.Context(), record("done")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(tc.want - time.Second)
			replay(t, c, key, fp("a"), "done")
			time.Sleep(2 * time.Second)
			_ = begin(t, c, key, fp("b")).Abandon(t.Context())
		}
		_ = l.Close()
	})
}

// A claim is renewed while its holder works, and one that is lost says so and cannot complete.
func TestLostClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := testutil.Memory()
		l, err := core.New(b, core.WithMaxHold(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		c := idempotency.New(l)
		claim := begin(t, c, "k", fp("a"))
		time.Sleep(50 * time.Second)
		if err := claim.Context().Err(); err != nil {
			t.Fatalf("after 50 s: %v", err)
		}
		time.Sleep(time.Minute)
		if err := context.Cause(claim.Context()); !errors.Is(err, core.ErrLost) {
			t.Fatalf("after the longest hold: %v", err)
		}
		next := begin(t, c, "k", fp("a"))
		if err := claim.Complete(t.Context(), record("lost")); !errors.Is(err, core.ErrLost) {
			t.Errorf("a lost claim was completed: %v", err)
		}
		if err := claim.Abandon(t.Context()); err != nil {
			t.Errorf("Abandon after Complete: %v", err)
		}
		if err := next.Complete(t.Context(), record("next")); err != nil {
			t.Fatal(err)
		}
		replay(t, c, "k", fp("a"), "next")
		_ = l.Close()
	})
}

func TestTombstone(t *testing.T) {
	t.Parallel()
	c := idempotency.New(memoryLocker(t))
	claim := begin(t, c, "k", fp("a"))
	if err := claim.Complete(t.Context(), idempotency.Tombstone()); err != nil {
		t.Fatal(err)
	}
	if err := claim.Context().Err(); err != nil {
		t.Errorf("the work cannot go on: %v", err)
	}
	out, err := c.Begin(t.Context(), "k", fp("a"))
	if err != nil || out.Replay == nil || !out.Replay.NotKept {
		t.Errorf("%+v, %v", out, err)
	}
	if _, err := c.Begin(t.Context(), "k", fp("b")); !errors.Is(err, idempotency.ErrMismatch) {
		t.Errorf("another request: %v", err)
	}
	_ = claim.Abandon(t.Context())
}

func TestRefusedRecordLeavesTheClaim(t *testing.T) {
	t.Parallel()
	c := idempotency.New(memoryLocker(t))
	claim := begin(t, c, "k", fp("a"))
	for _, r := range []*idempotency.Record{nil, {Status: -1}, {Body: make([]byte, 17<<20)}} {
		if err := claim.Complete(t.Context(), r); err == nil || errors.Is(err, idempotency.ErrCompleted) {
			t.Errorf("a bad record: %v", err)
		}
	}
	if err := claim.Complete(t.Context(), idempotency.Tombstone()); err != nil {
		t.Fatal(err)
	}
}

func TestContext(t *testing.T) {
	t.Parallel()
	l := memoryLocker(t)
	c := idempotency.New(l)
	if _, ok := idempotency.FromContext(t.Context()); ok {
		t.Error("a bare context carries a claim")
	}
	outer := begin(t, c, "outer", fp("a"))
	out, err := c.Begin(outer.Context(), "inner", fp("a"))
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := idempotency.FromContext(out.Claim.Context()); !ok || got != out.Claim {
		t.Error("the context carries another claim")
	}
	for _, key := range []string{"inner", "outer"} { // never two claims, although the lock would be entered again
		if _, err := c.Begin(out.Claim.Context(), key, fp("a")); !errors.Is(err, idempotency.ErrInFlight) {
			t.Errorf("%s again: %v", key, err)
		}
	}
	_ = out.Claim.Abandon(t.Context())
	over := context.WithoutCancel(out.Claim.Context()) // of work that outlives its request
	if out, err = c.Begin(over, "inner", fp("a")); err != nil || out.Claim == nil {
		t.Fatalf("%+v, %v: the claim that the context carries is over", out, err)
	}
	_ = out.Claim.Abandon(over)
	_ = l.Close()
	select {
	case <-outer.Context().Done():
	case <-time.After(10 * time.Second):
	}
	if err := context.Cause(outer.Context()); !errors.Is(err, core.ErrClosed) {
		t.Errorf("the Locker was closed, and the claim's context says %v", err)
	}
	_ = outer.Abandon(t.Context())
}

func TestForeignValue(t *testing.T) {
	t.Parallel()
	l := memoryLocker(t)
	k, err := l.Acquire(t.Context(), "claim:k")
	if err != nil {
		t.Fatal(err)
	}
	c := idempotency.New(l)
	if _, err := c.Begin(t.Context(), "k", fp("a")); !errors.Is(err, idempotency.ErrInFlight) {
		t.Errorf("held without a fingerprint: %v", err)
	}
	if err := k.Seal(t.Context(), []byte("sold out"), time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Begin(t.Context(), "k", fp("a")); !errors.Is(err, idempotency.ErrRecord) || !strings.Contains(err.Error(), `"k"`) {
		t.Errorf("sealed with something else: %v", err)
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"onelane:", ""} {
		c := idempotency.New(memoryLocker(t, core.WithPrefix(prefix)))
		for i, key := range []string{"k", strings.Repeat("x", 10_000), strings.Repeat("x", 10_001), "a{b}", "a\nb", "\xff", "sha256:1", strings.Repeat("é", 250)} {
			if err := begin(t, c, key, fp(fmt.Sprint(i))).Complete(t.Context(), record(fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
			replay(t, c, key, fp(fmt.Sprint(i)), fmt.Sprint(i))
		}
		if _, err := c.Begin(t.Context(), "", fp("a")); !errors.Is(err, core.ErrInvalidKey) {
			t.Errorf("an empty key: %v", err)
		}
	}
}

// One at a time, and none after one was completed, whoever comes when.
func TestOneClaim(t *testing.T) {
	t.Parallel()
	n := testutil.Redis(t)
	var all sync.WaitGroup
	var running, completed atomic.Int64
	for i := range 3 {
		l, err := core.New(redisbackend.New(n.Client()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		c := idempotency.New(l, idempotency.WithWait(time.Minute))
		for j := range 20 {
			all.Go(func() {
				out, err := c.Begin(t.Context(), "k", fp("a"))
				if err != nil {
					t.Error(err)
					return
				}
				if out.Claim == nil {
					return
				}
				if running.Add(1) != 1 || completed.Load() > 0 {
					t.Error("two claims")
				}
				running.Add(-1)
				if i == 2 && j > 15 {
					completed.Add(1)
					err = out.Claim.Complete(t.Context(), record("done"))
				} else {
					err = out.Claim.Abandon(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
}
