package core_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// Sets that overlap, in every order, with keys that are prefixes of each other and that are
// escaped.
func TestAcquireAll_OverlappingSetsNeverDeadlock(t *testing.T) {
	t.Parallel()
	keys := []string{"a", "a:", "a:b", "a{", "a}", "a{b}", "ab", "A", "é", core.Join("a", "b:c"), core.Join("a:b", "c")}
	for name, open := range map[string]func(t *testing.T) core.Opener{
		"memory": func(*testing.T) core.Opener { return backendtest.Memory() },
		"redis": func(t *testing.T) core.Opener {
			b := redisbackend.New(testutil.Redis(t).Client())
			b.NodeTimeout = time.Minute // a busy machine may answer late
			return b
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t)
			processes := []*core.Locker{locker(t, b), locker(t, b)}
			inside := make([]int, len(keys)) // of each key, without a lock of its own
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var all sync.WaitGroup
			for i := range 16 {
				all.Go(func() {
					random := rand.New(rand.NewPCG(1, uint64(i)))
					for range 20 {
						set := random.Perm(len(keys))[:2+random.IntN(5)]
						names := make([]string, len(set))
						for j, n := range set {
							names[j] = keys[n]
						}
						locks, err := processes[i%2].AcquireAll(ctx, names)
						if err != nil {
							t.Errorf("AcquireAll(%q): %v", names, err)
							return
						}
						for _, n := range set {
							inside[n]++
						}
						for _, n := range set {
							if inside[n] != 1 {
								t.Errorf("%d holders of %q", inside[n], keys[n])
							}
							inside[n]--
						}
						if err := locks.Release(ctx); err != nil {
							t.Errorf("Release: %v", err)
						}
					}
				})
			}
			all.Wait()
		})
	}
}

// A failed AcquireAll leaves nothing behind, whatever ends it.
func TestAcquireAll_NothingStaysOfAFailure(t *testing.T) {
	t.Parallel()
	keys := []string{"a", "b", "c", "d"}
	for name, c := range map[string]struct {
		fail func(s *spy, cancel context.CancelFunc) // when the third key is asked for
		err  error
	}{
		"the backend is away":    {func(s *spy, _ context.CancelFunc) { s.on("acquire", away) }, core.ErrUnavailable},
		"the context ends":       {func(_ *spy, cancel context.CancelFunc) { cancel() }, context.Canceled},
		"the first one is lost":  {func(s *spy, _ context.CancelFunc) { s.on("extend", away); time.Sleep(11 * time.Second) }, core.ErrLost},
		"somebody has the third": {nil, core.ErrTaken},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := memorySpy()
				l, other := locker(t, s), locker(t, s.Sealer)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				asked := 0
				s.on("acquire", func(context.Context) error {
					if asked++; asked == 3 && c.fail != nil {
						c.fail(s, cancel)
					}
					return nil
				})
				if c.fail == nil {
					acquire(t, other, "c")
				}
				locks, err := l.AcquireAll(ctx, keys, core.WithWait(time.Minute))
				want(t, "AcquireAll", err, c.err)
				if locks != nil {
					t.Errorf("%d locks with an error", len(locks))
				}
				synctest.Wait()
				for _, key := range keys {
					if got := status(t, l, key); got == core.Held && (key != "c" || c.fail != nil) {
						t.Errorf("%s is %v", key, got)
					}
				}
				if n := l.Keys(); n != 0 {
					t.Errorf("%d keys are remembered", n)
				}
			})
		})
	}
}

func away(context.Context) error { return unavailable("k") }

// Those that are still held are freed, and the error tells of the one that was not.
func TestLocks_ReleaseWhenOneIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := backendtest.Memory()
		l := locker(t, b)
		locks, err := l.AcquireAll(t.Context(), []string{"a", "b", "c"})
		ok(t, "AcquireAll", err)
		_, err = b.Release(t.Context(), core.Grant{Key: "onelane:{b}", Owner: locks[1].Owner()})
		ok(t, "Release behind its back", err)
		err = locks.Release(t.Context())
		want(t, "Release", err, core.ErrLost)
		if text := err.Error(); !strings.Contains(text, `"b"`) || strings.Contains(text, `"a"`) {
			t.Errorf("%v", err)
		}
		if !slices.Equal([]core.Status{status(t, l, "a"), status(t, l, "b"), status(t, l, "c")}, []core.Status{core.Free, core.Free, core.Free}) {
			t.Error("a lock stays held")
		}
	})
}

// I12: many locks have no more time than one when the context is done.
func TestLocks_ReleaseIsBoundedAltogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		var keys []string
		for i := range 50 {
			keys = append(keys, fmt.Sprint("k", i))
		}
		locks, err := l.AcquireAll(t.Context(), keys)
		ok(t, "AcquireAll", err)
		s.on("release", func(ctx context.Context) error { // it hangs
			<-ctx.Done()
			return unavailable("k")
		})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		start := time.Now()
		wantEnded(t, "Release", locks.Release(ctx), context.Canceled)
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Errorf("Release of %d locks took %v", len(keys), took)
		}
	})
}

func TestAcquireAll_OfNothingAndAgain(t *testing.T) {
	t.Parallel()
	l := locker(t, backendtest.Memory())
	none, err := l.AcquireAll(t.Context(), nil)
	ok(t, "AcquireAll of nothing", err)
	ok(t, "Release of nothing", none.Release(t.Context()))
	k := acquire(t, l, "b")
	locks, err := l.AcquireAll(core.WithLock(t.Context(), k), []string{"a", "b", "c"}, core.WithWait(time.Minute)) // b is carried
	ok(t, "AcquireAll", err)
	ok(t, "Release", locks.Release(t.Context()))
	if status(t, l, "a") != core.Free || status(t, l, "b") != core.Held {
		t.Errorf("a is %v and b is %v", status(t, l, "a"), status(t, l, "b"))
	}
	ok(t, "Release", k.Release(t.Context()))
}

// The backend answers long after the end of the wait. The keys that the call got are free when it
// returns.
func TestAcquireAll_GivesBackAfterALateAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		s.on("acquire", func(context.Context) error {
			s.on("acquire", func(context.Context) error {
				time.Sleep(2 * time.Second)
				return unavailable("b")
			})
			return nil
		})
		s.on("release", func(ctx context.Context) error { return ctx.Err() })
		_, err := l.AcquireAll(t.Context(), []string{"a", "b"}, core.WithWait(time.Second))
		want(t, "AcquireAll", err, core.ErrUnavailable)
		if got := status(t, l, "a"); got != core.Free {
			t.Errorf("a is %v", got)
		}
	})
}

// A context that is done gets no lock, and that holds for a key it carries, too.
func TestAcquire_AgainWithADoneContextIsAnError(t *testing.T) {
	t.Parallel()
	l := locker(t, backendtest.Memory())
	k := acquire(t, l, "k")
	ctx, cancel := context.WithCancel(core.WithLock(t.Context(), k))
	cancel()
	if _, err := l.Acquire(ctx, "k"); !errors.Is(err, context.Canceled) {
		t.Errorf("Acquire: %v", err)
	}
	ok(t, "Release", k.Release(t.Context()))
	if got := status(t, l, "k"); got != core.Free {
		t.Errorf("k is %v: a handle was given out", got)
	}
}

// The next holder chose a lease that lasts its TTL and is not renewed: what is left of another's is
// less.
func TestWithMaxHold_ZeroTheNextInLineHasItsWholeTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, backendtest.Memory(), core.WithMaxHold(0), core.WithTTL(90*time.Millisecond))
		k := acquire(t, l, "k")
		got := make(chan *core.Lock, 1)
		go func() {
			next, _ := l.Acquire(context.Background(), "k")
			got <- next
		}()
		time.Sleep(50 * time.Millisecond)
		ok(t, "Release", k.Release(t.Context()))
		next := <-got
		if left := time.Until(next.Deadline()); left < 90*time.Millisecond {
			t.Errorf("a lease of %v, want 90 ms", left)
		}
		ok(t, "Release", next.Release(t.Context()))
	})
}
