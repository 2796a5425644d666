package core_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
)

// panics calls fn and swallows its panic, as an HTTP server does with its handlers'.
func panics(fn func()) (what any) {
	defer func() { what = recover() }()
	fn()
	return nil
}

// After an unknown outcome, Seal may be tried again with the same value; ErrLost means that nothing was sealed.
func TestSeal_RetriedAfterLoss(t *testing.T) {
	for name, c := range map[string]struct {
		opts []core.AcquireOption
		wait time.Duration
	}{
		"renewal":  {nil, 4 * time.Second},
		"deadline": {[]core.AcquireOption{core.WithMaxHold(0)}, 11 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memorySpy()
				l := locker(t, s)
				k := acquire(t, l, "k", c.opts...)
				s.on("seal", func(context.Context) error {
					s.on("seal", nil)
					ok(t, "Seal", k2seal(t, s, k))
					return unavailable("k")
				})
				want(t, "Seal", k.Seal(t.Context(), []byte("v"), time.Hour), core.ErrUnavailable)
				time.Sleep(c.wait)
				again := k.Seal(t.Context(), []byte("v"), time.Hour)
				if got := status(t, l, "k"); got != core.Sealed {
					t.Fatalf("the key is %v", got)
				}
				if again != nil {
					t.Errorf("Seal again, of a key that is sealed with the value: %v", again)
				}
			})
		})
	}
}

// WithOutageWait counts from the first failure of the outage; a short outage is a slow call.
func TestAcquire_OutageEndsWithASuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		failing(s, 1, func() error { return unavailable("k") })
		k := acquire(t, l, "k") // the second try succeeds
		answer := make(chan error, 1)
		go func() {
			next, err := l.Acquire(context.Background(), "k")
			if err == nil {
				err = next.Release(context.Background())
			}
			answer <- err
		}()
		time.Sleep(time.Minute)
		failing(s, 1, func() error { return unavailable("k") })
		start := time.Now()
		ok(t, "Release", k.Release(t.Context()))
		ok(t, "Acquire of the next in line, after one failure", <-answer)
		t.Logf("answered after %v", time.Since(start))
	})
}

// With WithOutageWait(0) the first failure is returned, with 1 s the call gives up after 1 s of outage.
func TestAcquire_OutageWaitInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		s.on("acquire", func(context.Context) error { return unavailable("k") })
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		first := make(chan error, 1)
		go func() {
			_, err := l.Acquire(ctx, "k", core.WithOutageWait(time.Hour))
			first <- err
		}()
		synctest.Wait()
		start := time.Now()
		_, err := l.Acquire(t.Context(), "k", core.WithOutageWait(time.Second), core.WithWait(10*time.Minute))
		if took := time.Since(start); took > 3*time.Second || !errors.Is(err, core.ErrUnavailable) {
			t.Errorf("WithOutageWait(1s): returned after %v: %v", took, err)
		}
		cancel()
		<-first
	})
}

// A panic of the backend leaves the queue usable.
func TestRelease_PanicOfTheBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		k := acquire(t, l, "k")
		s.on("release", func(context.Context) error { panic("boom") })
		if panics(func() { _ = k.Release(t.Context()) }) != "boom" {
			t.Error("no panic")
		}
		s.on("release", nil)
		time.Sleep(time.Hour)
		if got := status(t, l, "k"); got != core.Free {
			t.Fatalf("the key is %v", got)
		}
		again, err := l.Acquire(t.Context(), "k", core.WithWait(time.Minute))
		ok(t, "Acquire of a key that is free for an hour", err)
		ok(t, "Release", again.Release(t.Context()))
	})
}

// AcquireAll holds all keys or none.
func TestAcquireAll_PanicOfTheBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		asked := 0
		s.on("acquire", func(context.Context) error {
			if asked++; asked == 2 {
				panic("boom")
			}
			return nil
		})
		if panics(func() { _, _ = l.AcquireAll(t.Context(), []string{"a", "b"}) }) != "boom" {
			t.Error("no panic")
		}
		time.Sleep(time.Minute)
		if got := status(t, l, "a"); got != core.Free {
			t.Errorf("a is %v a minute after AcquireAll panicked", got)
		}
	})
}

// slowHandler is a log sink that blocks: a full pipe, a slow disk.
type slowHandler struct {
	slog.Handler
	wait func()
}

func (h slowHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h slowHandler) Handle(context.Context, slog.Record) error {
	h.wait()
	return nil
}

// The context of a lost lock is canceled no later than its deadline.
func TestLoss_SlowLogger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backendtest.Memory()
		l := locker(t, b, core.WithLogger(slog.New(slowHandler{slog.DiscardHandler, func() { time.Sleep(5 * time.Second) }})))
		k := acquire(t, l, "k", core.WithTTL(time.Second), core.WithMaxHold(0))
		ctx, deadline := k.Context(), k.Deadline()
		next := acquire(t, locker(t, b), "k")
		if ctx.Err() == nil && time.Since(deadline) > time.Millisecond {
			t.Errorf("another holds the key, and the context of the lost lock is not done %v after its deadline", time.Since(deadline))
		}
		<-ctx.Done()
		if late := time.Since(deadline); late > 10*time.Millisecond {
			t.Errorf("told %v after the deadline", late)
		}
		ok(t, "Release", next.Release(t.Context()))
		_ = k.Release(t.Context())
		time.Sleep(time.Minute) // the log lines end
	})
}

// A renewal that fails is tried again after a tenth of the TTL; one lost packet never loses a lock.
func TestRenewal_SlowLogger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		over := make(chan struct{})
		l := locker(t, s, core.WithLogger(slog.New(slowHandler{slog.DiscardHandler, func() { <-over }})), core.WithTTL(4*time.Second))
		defer close(over)
		k := acquire(t, l, "k")
		s.on("extend", func(context.Context) error { s.on("extend", nil); return unavailable("k") })
		check.Eventually(t, "two more renewals, or the loss", func() bool { return s.count("extend") >= 3 || k.Err() != nil })
		if err := k.Err(); err != nil {
			t.Errorf("%d renewals: %v", s.count("extend"), err)
		}
		_ = k.Release(t.Context())
	})
}

// slowGrant grants at once, and the answer takes a while.
type slowGrant struct {
	core.Sealer
	d time.Duration
}

func (b slowGrant) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	g, err := b.Sealer.Acquire(ctx, r)
	time.Sleep(b.d)
	return g, err
}

// A lock is renewed until WithMaxHold, and not lost while the backend answers.
func TestRenewal_SlowGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, slowGrant{s, 7 * time.Second})
		k := acquire(t, l, "k") // 3 s of 10 are left
		time.Sleep(10 * time.Second)
		if err := k.Err(); err != nil {
			t.Errorf("%d renewals were tried: %v", s.count("extend"), err)
		}
		_ = k.Release(t.Context())
	})
}

// One lost packet never loses a lock.
func TestRenewal_BesideAVerbWithoutAnswer(t *testing.T) {
	for name, verb := range map[string]func(context.Context, *core.Lock) error{
		"mint":   func(ctx context.Context, k *core.Lock) error { _, err := k.Token(ctx); return err },
		"extend": func(ctx context.Context, k *core.Lock) error { return k.Extend(ctx, time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memorySpy()
				l := locker(t, s)
				k := acquire(t, l, "k")
				s.on(name, func(ctx context.Context) error { // this one gets no answer
					s.on(name, nil)
					<-ctx.Done()
					return &core.UnavailableError{Nodes: []error{ctx.Err()}}
				})
				_ = verb(context.Background(), k)
				if err := k.Err(); err != nil {
					t.Errorf("%d renewals: %v", s.count("extend"), err)
				}
				_ = k.Release(t.Context())
			})
		})
	}
}

// On a machine that was suspended the lease counts as lost; small corrections of the clock lose no lock.
func TestLease_SuspendedSinceLastRenewal(t *testing.T) {
	for name, c := range map[string]struct {
		steps []time.Duration // of the wall clock, each 20 s after the one before
		lost  bool
	}{
		"set back, then suspended for 50 s": {[]time.Duration{-time.Minute, 50 * time.Second}, true},
		"three corrections by 1 s":          {[]time.Duration{time.Second, time.Second, time.Second}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var at []time.Time
				ahead := func(when time.Time) (d time.Duration) {
					for i, step := range at {
						if !when.Before(step) {
							d += c.steps[i]
						}
					}
					return d
				}
				l := locker(t, backendtest.Memory(), core.WithClocks(func(began, now time.Time) (wall, monotonic time.Duration) {
					mu.Lock()
					defer mu.Unlock()
					return now.Sub(began) + ahead(now) - ahead(began), now.Sub(began)
				}))
				k := acquire(t, l, "k")
				for range c.steps {
					time.Sleep(20 * time.Second)
					mu.Lock()
					at = append(at, time.Now())
					mu.Unlock()
				}
				err := k.Err()
				if c.lost != errors.Is(err, core.ErrLost) {
					t.Errorf("Err: %v", err)
				}
				_ = k.Release(t.Context())
			})
		})
	}
}

// After Lapse nobody gets the key before its lease ends, and Release returns ErrReleased.
func TestLapse_AfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backendtest.Memory()
		l, other := locker(t, b), locker(t, b)
		k := acquire(t, l, "k")
		ok(t, "Close", l.Close())
		k.Lapse()
		err := k.Release(t.Context())
		if got := status(t, other, "k"); got != core.Held {
			t.Errorf("the key is %v before the lease ends; Release after Lapse: %v", got, err)
		}
	})
}

// With Lapse and WithOrphan the key is orphaned when the lease ends; it is never free by itself.
func TestLapse_OfALostLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, backendtest.Memory(), core.WithMaxHold(0), core.WithTTL(time.Second))
		var k *core.Lock
		for name, late := range map[string]time.Duration{"in time": 0, "late": 2 * time.Second} {
			k = acquire(t, l, name, core.WithOrphan(time.Hour))
			time.Sleep(late)
			k.Lapse()
			err := k.Release(t.Context())
			time.Sleep(2 * time.Second)
			if got := status(t, l, name); got != core.Orphaned {
				t.Errorf("%s: the key is %v; Release after Lapse: %v", name, got, err)
			}
		}
	})
}

// Other handles on the same lock end with a Lapse, and nobody renews the lease any more.
func TestLapse_EndsOtherHandles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, backendtest.Memory())
		k := acquire(t, l, "k")
		other := acquireWith(t, l, core.WithLock(t.Context(), k), "k")
		k.Lapse()
		if other.Err() == nil {
			t.Error("the other handle does not say that it ended")
		}
		err := other.Extend(t.Context(), time.Hour)
		if left := time.Until(k.Deadline()); left > time.Minute {
			t.Errorf("the lapsed lease was extended to %v: %v", left, err)
		}
	})
}

// Acquire waits for up to WithWait for a taken key. TryAcquire of this free key succeeds at once.
func TestTurns_ShortWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		s.others = 1
		l := locker(t, s)
		ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
		asked := s.count("acquire")
		k, err := l.Acquire(t.Context(), "k", core.WithWait(20*time.Millisecond))
		if err != nil {
			t.Fatalf("the key is %v, the backend was asked %d times: %v", status(t, l, "k"), s.count("acquire")-asked, err)
		}
		ok(t, "Release", k.Release(t.Context()))
	})
}

// flapping is a backend whose subscriptions end as soon as they are made.
type flapping struct{ *spy }

func (b flapping) Open(core.Environment) (core.Backend, error) { return b, nil }

func (b flapping) Watch(context.Context, string) (<-chan struct{}, func(), error) {
	b.note("watch")
	ended := make(chan struct{})
	close(ended)
	return ended, func() {}, nil
}

// A waiter pauses between two tries: 2 to 64 ms if it polls, up to a second if it is signaled.
func TestWatch_SubscriptionsThatEnd(t *testing.T) {
	t.Parallel()
	s := memorySpy()
	k := acquire(t, locker(t, s.Sealer), "k")
	l := locker(t, flapping{s})
	_, err := l.Acquire(t.Context(), "k", core.WithWait(300*time.Millisecond))
	want(t, "Acquire", err, core.ErrTaken)
	if n, w := s.count("acquire"), s.count("watch"); n > 300 {
		t.Errorf("%d tries and %d subscriptions in 300 ms", n, w)
	}
	ok(t, "Release", k.Release(t.Context()))
}

// The error names the key of the call.
func TestErrors_SharedByTheBackend(t *testing.T) {
	t.Parallel()
	s := memorySpy()
	l := locker(t, s)
	open := &core.UnavailableError{Nodes: []error{errors.New("the circuit is open")}}
	s.on("acquire", func(context.Context) error { return open })
	_, a := l.TryAcquire(t.Context(), "a")
	_, b := l.TryAcquire(t.Context(), "b")
	for key, err := range map[string]error{"a": a, "b": b} {
		var u *core.UnavailableError
		if !errors.As(err, &u) || u.Key != key {
			t.Errorf("TryAcquire(%q): %v", key, err)
		}
	}
}

// The second Release returns ErrReleased; Release returns ErrReleased after Lapse.
func TestRelease_SecondCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, backendtest.Memory(), core.WithMaxHold(0))
		k, lapsed := acquire(t, l, "k"), acquire(t, l, "lapsed")
		lapsed.Lapse()
		time.Sleep(time.Minute)
		want(t, "Release", k.Release(t.Context()), core.ErrLost)
		for name, k := range map[string]*core.Lock{"lost": k, "lapsed": lapsed} {
			if err := k.Release(t.Context()); !errors.Is(err, core.ErrReleased) {
				t.Errorf("%s: Release: %v", name, err)
			}
		}
	})
}

// After Lapse the context says when the lock is lost: it ends with the lease.
func TestLapse_ContextEndsWithTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, backendtest.Memory())
		k := acquire(t, l, "k")
		k.Lapse()
		ctx, start := k.Context(), time.Now()
		<-ctx.Done()
		if time.Since(start) == 0 || !errors.Is(context.Cause(ctx), core.ErrLost) {
			t.Errorf("done after %v: %v", time.Since(start), context.Cause(ctx))
		}
	})
}

// If a Seal was refused, the lock is as it was, and another value may be sealed.
func TestSeal_Refused(t *testing.T) {
	t.Parallel()
	s := memorySpy()
	k := acquire(t, locker(t, s), "k")
	s.on("seal", func(context.Context) error { return core.ErrInvalidKey })
	want(t, "the first Seal", k.Seal(t.Context(), []byte("v"), time.Minute), core.ErrInvalidKey)
	s.on("seal", nil)
	ok(t, "the second Seal", k.Seal(t.Context(), []byte("w"), time.Minute))
}

// ErrClosed is about the Locker of the call.
func TestErrors_ClosedIsOfThisLocker(t *testing.T) {
	t.Parallel()
	b := backendtest.Memory()
	closed, l := locker(t, b), locker(t, b)
	ctx := acquire(t, closed, "k").Context()
	ok(t, "Close", closed.Close())
	_, err := l.Acquire(ctx, "other")
	want(t, "Acquire", err, context.Canceled)
	if errors.Is(err, core.ErrClosed) {
		t.Errorf("of a Locker that is open: %v", err)
	}
}

// notes is a backend that keeps notes in the grant, and wants back those that it wrote last.
type notes struct {
	core.Sealer
	last string
	bad  []string
}

func (b *notes) write(g core.Grant, what string) core.Grant {
	b.last, g.Backend = what, what
	return g
}

func (b *notes) read(g core.Grant, verb string) {
	if g.Backend != b.last {
		b.bad = append(b.bad, verb+" got the notes of "+g.Backend.(string)+", written last: "+b.last)
	}
}

func (b *notes) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	g, err := b.Sealer.Acquire(ctx, r)
	return b.write(g, "acquire"), err
}

func (b *notes) Mint(ctx context.Context, g core.Grant) (core.Grant, error) {
	b.read(g, "mint")
	g, err := b.Sealer.Mint(ctx, g)
	return b.write(g, "mint"), err
}

func (b *notes) Extend(ctx context.Context, g core.Grant, ttl time.Duration) (core.Grant, error) {
	b.read(g, "extend")
	g, err := b.Sealer.Extend(ctx, g, ttl)
	return b.write(g, "extend"), err
}

func (b *notes) Release(ctx context.Context, g core.Grant) (core.Waiters, error) {
	b.read(g, "release")
	return b.Sealer.Release(ctx, g)
}

// The engine passes the backend's notes back unread.
func TestGrant_NotesArePassedBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &notes{Sealer: backendtest.Memory()}
		l := locker(t, b)
		k := acquire(t, l, "k")
		token(t, k)
		ok(t, "Extend", k.Extend(t.Context(), time.Second)) // the lease lasts longer already
		ok(t, "Release", k.Release(t.Context()))
		for _, bad := range b.bad {
			t.Error(bad)
		}
	})
}

// Adopt takes over the orphan; "if the key holds another orphan by now", the error is that one's.
func TestOrphan_AdoptedByAnotherCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		orphan := orphanOf(t, l, "k")
		s.on("acquire", func(context.Context) error { time.Sleep(time.Second); return nil })
		answer := make(chan error, 1)
		go func() { _, err := l.Adopt(context.Background(), orphan); answer <- err }()
		synctest.Wait()
		_, err := l.Adopt(t.Context(), orphan, core.WithWait(0))
		if !errors.Is(err, core.ErrTaken) {
			t.Errorf("TryAcquire: %v", err)
		}
		ok(t, "the other adopts it", <-answer)
	})
}

// Every error names the key.
func TestErrors_AfterSealNameTheKey(t *testing.T) {
	t.Parallel()
	k := acquire(t, locker(t, backendtest.Memory()), "stock:42")
	ok(t, "Seal", k.Seal(t.Context(), []byte("v"), time.Minute))
	_, err := k.Token(t.Context())
	for what, err := range map[string]error{"Err": k.Err(), "Token": err, "Extend": k.Extend(t.Context(), time.Minute)} {
		if want(t, what, err, core.ErrReleased); !strings.Contains(err.Error(), "stock:42") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A key goes from one local holder to the next for up to 125 ms, then others have their turn.
func TestTurns_BeginAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l, other := locker(t, s), locker(t, s.Sealer)
		k := acquire(t, l, "k", core.WithTTL(time.Minute))
		first, second := acquiring(t, l), acquiring(t, l) // of another TTL: no hand-over from k
		var theirs *core.Lock
		s.on("acquire", func(context.Context) error { // the other process is faster
			s.on("acquire", nil)
			theirs = acquire(t, other, "k")
			return nil
		})
		ok(t, "Release", k.Release(t.Context()))
		synctest.Wait()
		time.Sleep(5 * time.Second)
		ok(t, "Release", theirs.Release(t.Context()))
		k = <-first
		asked := s.count("acquire")
		ok(t, "Release", k.Release(t.Context()))
		k = <-second
		if n := s.count("acquire") - asked; n != 0 {
			t.Errorf("%d acquires instead of a hand-over, at the beginning of the turn", n)
		}
		ok(t, "Release", k.Release(t.Context()))
	})
}
