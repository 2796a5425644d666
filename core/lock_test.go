package core_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

func TestTryAcquire_TakenThenFree(t *testing.T) {
	t.Parallel()
	b := backendtest.Memory()
	l, other := locker(t, b, core.WithInstance("one")), locker(t, b, core.WithInstance("two"))
	k := acquire(t, l, "stock:42", core.WithTag("mine"))
	for name, who := range map[string]*core.Locker{"the same process": l, "another": other} {
		_, err := who.TryAcquire(t.Context(), "stock:42")
		want(t, name, err, core.ErrTaken)
		var taken *core.TakenError
		if errors.As(err, &taken); taken.Key != "stock:42" || taken.Tag != "mine" || taken.Holder[:4] != "one/" || taken.RetryAfter <= 0 {
			t.Errorf("%s: %+v", name, taken)
		}
	}
	ok(t, "Release", k.Release(t.Context()))
	k, err := other.TryAcquire(t.Context(), "stock:42")
	ok(t, "TryAcquire", err)
	ok(t, "Release", k.Release(t.Context()))
}

func TestRelease_TwiceIsAnError(t *testing.T) {
	t.Parallel()
	k := acquire(t, locker(t, backendtest.Memory()), "k")
	if k.Err() != nil {
		t.Errorf("Err of a held lock: %v", k.Err())
	}
	ctx := k.Context()
	ok(t, "Release", k.Release(t.Context()))
	want(t, "second Release", k.Release(t.Context()), core.ErrReleased)
	want(t, "Extend", k.Extend(t.Context(), time.Minute), core.ErrReleased)
	want(t, "Seal", k.Seal(t.Context(), nil, time.Minute), core.ErrReleased)
	want(t, "Err", k.Err(), core.ErrReleased)
	if ctx.Err() == nil || errors.Is(context.Cause(ctx), core.ErrLost) {
		t.Errorf("context after Release: %v, cause %v", ctx.Err(), context.Cause(ctx))
	}
}

func TestRenewal_KeepsTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		k := acquire(t, l, "k", core.WithTTL(9*time.Second))
		time.Sleep(60*time.Second + time.Millisecond)
		if k.Err() != nil || status(t, l, "k") != core.Held {
			t.Fatalf("after a minute: %v, key %v", k.Err(), status(t, l, "k"))
		}
		if n := s.count("extend"); n != 20 {
			t.Errorf("%d renewals in a minute of TTL/3 = 3 s, want 20", n)
		}
		ok(t, "Release", k.Release(t.Context()))
		time.Sleep(time.Minute)
		if n := s.count("extend"); n != 20 {
			t.Errorf("renewed after Release: %d", n)
		}
	})
}

func TestRenewal_EndsAtMaxHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, backendtest.Memory())
		start := time.Now()
		k := acquire(t, l, "k", core.WithMaxHold(time.Minute))
		select {
		case <-k.Context().Done():
		case <-time.After(time.Hour): // and no test that never ends
			_ = k.Release(t.Context())
		}
		want(t, "cause", context.Cause(k.Context()), core.ErrLost)
		if held := time.Since(start); held < time.Minute || held > time.Minute+10*time.Second {
			t.Errorf("lost after %v, want between the longest hold and a TTL later", held)
		}
	})
}

func TestWithMaxHold_ZeroEndsAtTheTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		k := acquire(t, l, "k", core.WithMaxHold(0), core.WithTTL(time.Second))
		deadline := k.Deadline()
		<-k.Context().Done()
		if !time.Now().Equal(deadline) || s.count("extend") != 0 {
			t.Errorf("lost %v after the deadline with %d renewals", time.Since(deadline), s.count("extend"))
		}
		want(t, "Release", k.Release(t.Context()), core.ErrLost)
	})
}

func TestLoss_IsSignalledByTheDeadlineAndFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		k := acquire(t, l, "k")
		s.on("extend", func(ctx context.Context) error { // a server that hangs
			<-ctx.Done()
			return unavailable("k")
		})
		deadline := k.Deadline()
		<-k.Context().Done()
		if time.Now().After(deadline) {
			t.Errorf("told %v after the deadline", time.Since(deadline))
		}
		want(t, "cause", context.Cause(k.Context()), core.ErrLost)
		s.on("extend", nil)
		want(t, "Extend after the loss", k.Extend(t.Context(), time.Minute), core.ErrLost)
		want(t, "Seal after the loss", k.Seal(t.Context(), nil, time.Minute), core.ErrLost)
		want(t, "Release after the loss", k.Release(t.Context()), core.ErrLost)
		if n := s.count("seal"); n != 0 {
			t.Errorf("a lost lock asked the backend to seal")
		}
	})
}

func TestLoss_ToldByARenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		k := acquire(t, l, "k")
		s.on("extend", func(context.Context) error { return core.ErrLost })
		start := time.Now()
		<-k.Context().Done()
		if took := time.Since(start); took > 4*time.Second {
			t.Errorf("told after %v, want at the first renewal", took)
		}
		want(t, "cause", context.Cause(k.Context()), core.ErrLost)
	})
}

// A renewal under way is over before the key is released, so that nothing is resurrected.
func TestRelease_DrainsTheRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		k := acquire(t, l, "k")
		inside, goOn := make(chan struct{}), make(chan struct{})
		s.on("extend", func(context.Context) error {
			close(inside)
			<-goOn
			s.note("extended")
			return nil
		})
		<-inside
		released := make(chan error)
		go func() { released <- k.Release(t.Context()) }()
		synctest.Wait()
		if s.count("release") != 0 {
			t.Error("released while a renewal was under way")
		}
		close(goOn)
		ok(t, "Release", <-released)
		calls := s.log()
		if n := len(calls); calls[n-2] != "extended" || calls[n-1] != "release" {
			t.Errorf("calls: %v", calls)
		}
	})
}

func TestRelease_DoesNotWaitForAHungRenewalBeyondItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		k := acquire(t, l, "k")
		inside, goOn := make(chan struct{}), make(chan struct{})
		s.on("extend", func(context.Context) error { close(inside); <-goOn; return nil })
		<-inside
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		wantEnded(t, "Release", k.Release(ctx), context.DeadlineExceeded)
		if took := time.Since(start); took != time.Second {
			t.Errorf("took %v, want its deadline", took)
		}
		close(goOn)
		synctest.Wait()
		if got := status(t, l, "k"); got != core.Free {
			t.Errorf("the key is %v after the renewal returned, want it released", got)
		}
	})
}

func TestRelease_WorksWithADoneContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // so that the 100 ms of a release are not over on a busy machine
		l := locker(t, backendtest.Memory())
		ctx, cancel := context.WithCancel(t.Context())
		k, err := l.Acquire(ctx, "k")
		ok(t, "Acquire", err)
		cancel()
		ok(t, "Release", k.Release(ctx))
		if got := status(t, l, "k"); got != core.Free {
			t.Errorf("key is %v", got)
		}
	})
}

func TestExtend_KeepsTheLockWithoutRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, backendtest.Memory())
		k := acquire(t, l, "k", core.WithTTL(time.Second), core.WithMaxHold(0))
		ok(t, "Extend", k.Extend(t.Context(), time.Minute))
		time.Sleep(59 * time.Second)
		ok(t, "Err", k.Err())
		time.Sleep(time.Second)
		want(t, "Err", k.Err(), core.ErrLost)
	})
}

// A lease that Extend made longer is renewed as often as before: a node that lost it gets it back.
func TestExtend_IsRenewedAsOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		k := acquire(t, locker(t, s), "k", core.WithTTL(3*time.Second))
		ok(t, "Extend", k.Extend(t.Context(), 30*time.Second))
		time.Sleep(10 * time.Second)
		if n := s.count("extend"); n < 10 {
			t.Errorf("renewed %d times in 10 s of TTL/3 = 1 s", n-1)
		}
		ok(t, "Release", k.Release(t.Context()))
	})
}

func TestExtend_UnavailableIsNotALoss(t *testing.T) {
	t.Parallel()
	s := memorySpy()
	k := acquire(t, locker(t, s), "k")
	s.on("extend", func(context.Context) error { return unavailable("k") })
	err := k.Extend(t.Context(), time.Minute)
	want(t, "Extend", err, core.ErrUnavailable)
	if errors.Is(err, core.ErrLost) || k.Err() != nil {
		t.Errorf("%v, Err %v", err, k.Err())
	}
}

func TestSeal_EndsTheLock(t *testing.T) {
	t.Parallel()
	l := locker(t, backendtest.Memory())
	k := acquire(t, l, "k", core.WithToken())
	ok(t, "Seal", k.Seal(t.Context(), []byte("answer"), time.Minute))
	ok(t, "Seal again", k.Seal(t.Context(), []byte("answer"), time.Minute))
	if err := k.Seal(t.Context(), []byte("other"), time.Minute); err == nil {
		t.Error("a second Seal with another value succeeded")
	}
	ok(t, "Release after Seal", k.Release(t.Context()))
	_, err := l.Acquire(t.Context(), "k")
	var sealed *core.SealedError
	if !errors.As(err, &sealed) || string(sealed.Value) != "answer" || sealed.Token != token(t, k) || sealed.Key != "k" {
		t.Fatalf("Acquire of a sealed key: %v", err)
	}
	ok(t, "Unseal", l.Unseal(t.Context(), "k"))
	if next := acquire(t, l, "k"); token(t, next) <= token(t, k) {
		t.Errorf("token %d after a seal with %d", token(t, next), token(t, k))
	}
}

func TestSeal_OfUnknownOutcomeIsNotHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		k := acquire(t, l, "k")
		s.on("seal", func(context.Context) error { // it has its effect, and the reply is lost
			s.on("seal", nil)
			ok(t, "Seal", k2seal(t, s, k))
			return unavailable("k")
		})
		waited := make(chan error, 1)
		go func() {
			_, err := l.Acquire(context.Background(), "k")
			waited <- err
		}()
		synctest.Wait() // it stands in line
		want(t, "Seal", k.Seal(t.Context(), []byte("v"), time.Minute), core.ErrUnavailable)
		if err := k.Seal(t.Context(), []byte("w"), time.Minute); err == nil {
			t.Error("another value was sealed after a Seal of unknown outcome")
		}
		ok(t, "Release", k.Release(t.Context()))
		want(t, "the waiter", <-waited, core.ErrSealed)
	})
}

// k2seal seals k's key behind its back, as its own Seal does.
func k2seal(t *testing.T, s *spy, k *core.Lock) error {
	g := core.Grant{Key: "onelane:{k}", Owner: k.Owner()}
	return s.Sealer.Seal(context.Background(), g, []byte("v"), time.Minute)
}

func TestClose(t *testing.T) {
	t.Parallel()
	l, err := core.New(backendtest.Memory())
	ok(t, "New", err)
	k := acquire(t, l, "k")
	waited := make(chan error, 1)
	go func() {
		_, err := l.Acquire(context.Background(), "k")
		waited <- err
	}()
	ctx := k.Context()
	ok(t, "Close", l.Close())
	want(t, "a waiter", <-waited, core.ErrClosed)
	want(t, "cause", context.Cause(ctx), core.ErrClosed)
	_, err = l.Acquire(t.Context(), "other")
	want(t, "Acquire", err, core.ErrClosed)
	ok(t, "Release after Close", k.Release(t.Context()))
	if got := status(t, l, "k"); got != core.Free {
		t.Errorf("key is %v", got)
	}
	ok(t, "second Close", l.Close())
}
