package claim_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/testutil"
)

func TestBegin(t *testing.T) {
	t.Parallel()
	onBackends(t, func(t *testing.T, locker func(...core.Option) *core.Locker) {
		c, ctx := newClaims(locker()), t.Context()
		k := begin(t, c, "k", fpBy("a", "ann"))
		token, err := k.Token(ctx)
		if err != nil || k.Key() != "k" || token == 0 || k.Adopted() != nil {
			t.Errorf("key %q, token %d, %v, adopted %v", k.Key(), token, err, k.Adopted())
		}
		if _, err := ask(ctx, c, "k", fpBy("a", "ann")); !errors.Is(err, claim.ErrInFlight) ||
			!strings.Contains(err.Error(), `"claim:k"`) { // the key that onelanectl takes
			t.Errorf("a repeat while it runs: %v", err)
		}
		mismatch := func() {
			t.Helper()
			for _, tc := range []struct {
				f           claim.Fingerprint
				credentials bool
			}{{fpBy("b", "ann"), false}, {fpBy("a", "bob"), true}, {fpBy("b", "bob"), true}, {fp("a"), true}} {
				if _, err := ask(ctx, c, "k", tc.f); errors.Is(err, claim.ErrCredentials) != tc.credentials ||
					!errors.Is(err, claim.ErrMismatch) || !strings.Contains(err.Error(), `"claim:k"`) {
					t.Errorf("another request: %v, want credentials %v", err, tc.credentials)
				}
			}
		}
		mismatch()
		ok(t, "Complete", k.Complete(record("done")))
		mismatch()
		replay(t, newClaims(locker()), "k", fpBy("a", "ann"), "done")
		want(t, "the second Complete", k.Complete(record("again")), claim.ErrOver)
		ok(t, "Free after Complete", k.Free())
		k.LeaveUnknown()
		replay(t, c, "k", fpBy("a", "ann"), "done")
	})
}

func TestFree(t *testing.T) {
	t.Parallel()
	onBackends(t, func(t *testing.T, locker func(...core.Option) *core.Locker) {
		c := newClaims(locker())
		done, cancel := context.WithCancel(t.Context())
		k := beginWith(t, done, c, "k", fp("a"))
		cancel()
		ok(t, "Free", k.Free()) // works on a context of its own
		k.Close()
		if k.Context().Err() == nil {
			t.Error("the claim's context goes on after Close")
		}
		want(t, "Complete after Free", k.Complete(record("late")), claim.ErrOver)
		free(t, begin(t, newClaims(locker()), "k", fp("b"))) // another request may have the key now
	})
}

func TestComplete_IgnoresCanceledContext(t *testing.T) {
	t.Parallel()
	c := newClaims(testutil.Locker(t))
	ctx, cancel := context.WithCancel(t.Context())
	k := beginWith(t, ctx, c, "k", fp("a"))
	cancel()
	ok(t, "Complete", k.Complete(record("done")))
	replay(t, c, "k", fp("a"), "done")
}

func TestRetention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := memoryLocker(t)
		for _, tc := range []struct {
			configured, request, want time.Duration
		}{
			{24 * time.Hour, 0, 24 * time.Hour}, {time.Hour, 0, time.Hour}, {time.Hour, 3 * time.Hour, 3 * time.Hour},
		} {
			c, key := newClaims(l, keep(tc.configured)), fmt.Sprint("kept ", tc)
			k := begin(t, c, key, fp("a"))
			if tc.request > 0 {
				k.KeepFor(tc.request)
			}
			complete(t, k, "done")
			time.Sleep(tc.want - time.Second)
			replay(t, c, key, fp("a"), "done")
			time.Sleep(2 * time.Second)
			free(t, begin(t, c, key, fp("b")))
		}
		for _, d := range []time.Duration{-1, 0, 1 << 62} { // not a retention, and recorded nevertheless
			k := begin(t, newClaims(l), fmt.Sprint(d), fp("a"))
			k.KeepFor(d)
			complete(t, k, "done")
		}
	})
}

func TestClaim_RenewedPastMaxRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newClaims(memoryLocker(t, core.WithMaxHold(time.Minute)), maxRun(time.Hour))
		k := begin(t, c, "k", fp("a"))
		time.Sleep(time.Hour - time.Second)
		ok(t, "the context before MaxRun", k.Context().Err())
		time.Sleep(2 * time.Second)
		want(t, "the context after MaxRun", context.Cause(k.Context()), claim.ErrMaxRun)
		want(t, "the context after MaxRun", k.Context().Err(), context.DeadlineExceeded)
		refused(t, c, "k", fp("a"), claim.ErrInFlight)
		complete(t, k, "late") // a handler that ignores its context
		replay(t, c, "k", fp("a"), "late")

		longest := begin(t, newClaims(memoryLocker(t), maxRun(1<<63-1)), "k", fp("a"))
		ok(t, "the longest MaxRun", longest.Context().Err())
		free(t, longest)
	})
}

func TestClaim_ServerDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		out, err := newClaims(memoryLocker(t)).Begin(t.Context(), claim.Request{Key: "k", Deadline: time.Now().Add(time.Second)})
		ok(t, "Begin", err)
		defer out.Claim.Close()
		time.Sleep(time.Second)
		synctest.Wait()
		want(t, "the context", context.Cause(out.Claim.Context()), context.DeadlineExceeded)
	})
}

// A client that hangs up does not end the handler's context; a lost claim does, even after that.
func TestClaim_ClientGoneThenLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := memoryLocker(t)
		c := newClaims(l)
		type value struct{}
		ctx, hangUp := context.WithCancel(context.WithValue(t.Context(), value{}, 1))
		k := beginWith(t, ctx, c, "k", fp("a"))
		hangUp()
		time.Sleep(time.Minute)
		ok(t, "the context after the client has gone", k.Context().Err())
		if k.Context().Value(value{}) != 1 {
			t.Error("the context has lost its values")
		}
		st, err := l.Inspect(t.Context(), "claim:k")
		ok(t, "Inspect", err)
		ok(t, "Revoke", l.Revoke(t.Context(), "claim:k", st.Owner))
		time.Sleep(time.Minute)
		want(t, "the context of a lost claim", context.Cause(k.Context()), core.ErrLost)
		want(t, "Complete", k.Complete(record("x")), core.ErrLost)
		free(t, begin(t, c, "k", fp("a")))
	})
}

func TestClaim_DetachedAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClaims(memoryLocker(t))
		var all []*claim.Claim
		for i := range claim.MaxDetached + 1 {
			ctx, hangUp := context.WithCancel(t.Context())
			all = append(all, beginWith(t, ctx, c, fmt.Sprint(i), fp("a")))
			hangUp()
			synctest.Wait()
		}
		ended := 0
		for _, k := range all {
			if k.Context().Err() != nil {
				ended++
			}
		}
		if _, detached, _ := claim.Running(); ended != 1 || detached != claim.MaxDetached {
			t.Errorf("%d contexts ended, %d handlers are detached", ended, detached)
		}
		for _, k := range all {
			k.Close()
			k.Close()
		}
		if handlers, detached, _ := claim.Running(); handlers != 0 || detached != 0 {
			t.Errorf("%d handlers, %d detached after Close", handlers, detached)
		}
	})
}

func TestClose_LeavesUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newClaims(memoryLocker(t))
		k := begin(t, c, "k", fp("a"))
		k.Close()
		want(t, "Complete after Close", k.Complete(record("x")), claim.ErrOver)
		refused(t, c, "k", fp("a"), claim.ErrUnknown)
	})
}

func TestTombstone(t *testing.T) {
	t.Parallel()
	c := newClaims(memoryLocker(t))
	k := begin(t, c, "k", fp("a"))
	ok(t, "Complete", k.Complete(claim.Tombstone()))
	ok(t, "the context, because a stream goes on", k.Context().Err())
	out, err := ask(t.Context(), c, "k", fp("a"))
	if err != nil || out.Replay == nil || !out.Replay.NotKept {
		t.Errorf("%+v, %v", out, err)
	}
	refused(t, c, "k", fp("b"), claim.ErrMismatch)
}

func TestComplete_RefusedRecord(t *testing.T) {
	t.Parallel()
	c := newClaims(memoryLocker(t))
	k := begin(t, c, "k", fp("a"))
	for _, r := range []*claim.Record{{Status: -1}, {Body: make([]byte, 16<<20)}} {
		if err := k.Complete(r); err == nil || errors.Is(err, claim.ErrOver) {
			t.Errorf("a bad record: %v", err)
		}
	}
	ok(t, "Complete with a tombstone", k.Complete(claim.Tombstone()))
}

func TestFromContext(t *testing.T) {
	t.Parallel()
	l := memoryLocker(t)
	c := newClaims(l)
	if _, ok := claim.FromContext(t.Context()); ok {
		t.Error("a bare context carries a claim")
	}
	outer := begin(t, c, "outer", fp("a"))
	inner := beginWith(t, outer.Context(), c, "inner", fp("a"))
	if got, ok := claim.FromContext(inner.Context()); !ok || got != inner {
		t.Error("the context carries another claim")
	}
	if !claim.Carries(inner.Context(), "outer") || !claim.Carries(inner.Context(), "inner") || claim.Carries(outer.Context(), "inner") {
		t.Error("Carries is wrong")
	}
	for _, key := range []string{"inner", "outer"} { // never two claims, although the lock would be entered again
		if _, err := ask(inner.Context(), c, key, fp("a")); !errors.Is(err, claim.ErrInFlight) {
			t.Errorf("%s again: %v", key, err)
		}
	}
	other := newClaims(memoryLocker(t)) // elsewhere the same key is another one
	free(t, beginWith(t, inner.Context(), other, "outer", fp("a")))
	free(t, inner)
	over := context.WithoutCancel(inner.Context()) // of work that outlives its request
	free(t, beginWith(t, over, c, "inner", fp("a")))
	_ = l.Close()
	<-outer.Context().Done()
	want(t, "the context after the Locker was closed", context.Cause(outer.Context()), core.ErrClosed)
	complete(t, outer, "done")
	refused(t, c, "outer", fp("a"), core.ErrClosed)
}

func TestForeignValue(t *testing.T) {
	t.Parallel()
	l := memoryLocker(t)
	k, err := l.Acquire(t.Context(), "claim:k")
	ok(t, "Acquire", err)
	c := newClaims(l, runAgain)
	refused(t, c, "k", fp("a"), claim.ErrInFlight)
	ok(t, "Seal", k.Seal(t.Context(), []byte("sold out"), time.Minute))
	refused(t, c, "k", fp("a"), claim.ErrRecord)
}

func TestKeys(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"onelane:", ""} {
		c := newClaims(memoryLocker(t, core.WithPrefix(prefix)))
		for i, key := range []string{"k", strings.Repeat("x", 10_000), strings.Repeat("x", 10_001), "a{b}", "a\nb", "\xff", "sha256:1",
			strings.Repeat("é", 250), strings.Repeat("x", 500), strings.Repeat("x", 501)} {
			complete(t, begin(t, c, key, fp(fmt.Sprint(i))), fmt.Sprint(i))
			replay(t, c, key, fp(fmt.Sprint(i)), fmt.Sprint(i))
		}
		refused(t, c, "", fp("a"), core.ErrInvalidKey)
	}
}

// A text that protobuf does not take must not keep an answer from being recorded.
func TestComplete_OddInstanceAndRequestID(t *testing.T) {
	t.Parallel()
	c := newClaims(memoryLocker(t, core.WithInstance("hôte")))
	for _, id := range []string{strings.Repeat("é", 30) + "x", "x" + strings.Repeat("é", 30), "\xff", strings.Repeat("r", 300)} {
		out, err := c.Begin(t.Context(), claim.Request{Key: id, ID: id})
		ok(t, "Begin", err)
		complete(t, out.Claim, "done")
		if out, err = c.Begin(t.Context(), claim.Request{Key: id}); err != nil || out.Replay == nil || out.Replay.Run.Instance != "hôte" ||
			!strings.HasPrefix(id, out.Replay.Run.RequestID) || len(out.Replay.Run.RequestID) > 36 {
			t.Errorf("%q: %+v, %v", id, out.Replay, err)
		}
	}
}

// One at a time, and none after one was completed, whoever comes when.
func TestBegin_OneClaim(t *testing.T) {
	t.Parallel()
	onBackends(t, func(t *testing.T, locker func(...core.Option) *core.Locker) {
		var all sync.WaitGroup
		var running, completed atomic.Int64
		for i := range 3 {
			c := newClaims(locker(), waiting(time.Minute))
			for j := range 6 {
				all.Go(func() {
					out, err := ask(t.Context(), c, "k", fp("a"))
					if err != nil {
						t.Error(err)
						return
					}
					if out.Claim == nil {
						return
					}
					defer out.Claim.Close()
					if running.Add(1) != 1 || completed.Load() > 0 {
						t.Error("two claims")
					}
					running.Add(-1)
					if i == 2 && j > 3 {
						completed.Add(1)
						err = out.Claim.Complete(record("done"))
					} else {
						err = out.Claim.Free()
					}
					if err != nil && !errors.Is(err, core.ErrUnavailable) { // then it goes on in the background
						t.Error(err)
					}
				})
			}
		}
		all.Wait()
	})
}
