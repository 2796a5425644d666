package core_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// seal seals a key for an hour. orphan leaves an orphan under it.
func seal(t *testing.T, l *core.Locker, key string) {
	t.Helper()
	ok(t, "Seal", acquire(t, l, key).Seal(t.Context(), []byte(key), time.Hour))
}

func orphan(t *testing.T, l *core.Locker, key string) {
	t.Helper()
	acquire(t, l, key, core.WithOrphan(time.Hour)).Lapse()
	time.Sleep(time.Minute)
}

// Sealed and orphaned keys are passed over. If there are no others the error says so, whether the call
// waits or not.
func TestAcquireAny_SealedAndOrphaned(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]core.AcquireOption{"waits": nil, "tries": {core.WithWait(0)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := backendtest.Memory()
				l, other := locker(t, b), locker(t, b)
				keys := slots(4)
				orphan(t, other, keys[0])
				for _, key := range keys[1:3] {
					seal(t, other, key)
				}
				k := acquireAny(t, l, keys, opts...)
				if k.Key() != keys[3] {
					t.Errorf("got %q", k.Key())
				}
				_, err := l.AcquireAny(t.Context(), keys, core.WithWait(0))
				want(t, "one is taken", err, core.ErrTaken)
				ok(t, "Seal", k.Seal(t.Context(), nil, time.Hour))
				_, err = l.AcquireAny(t.Context(), keys, opts...)
				want(t, "all are sealed or orphaned", err, core.ErrSealed)
				want(t, "all are sealed or orphaned", err, core.ErrOrphaned)
				if !strings.Contains(err.Error(), "3 keys are sealed and 1 orphaned") || errors.Is(err, core.ErrTaken) {
					t.Error(err)
				}
				_, err = l.AcquireAny(t.Context(), keys[1:], opts...)
				if want(t, "all are sealed", err, core.ErrSealed); errors.Is(err, core.ErrOrphaned) {
					t.Error(err)
				}
				orphan(t, other, "x")
				_, err = l.AcquireAny(t.Context(), []string{keys[0], "x"}, opts...)
				if want(t, "all are orphaned", err, core.ErrOrphaned); errors.Is(err, core.ErrSealed) {
					t.Error(err)
				}
			})
		})
	}
}

// What happens to the keys while a caller waits reaches it: a seal of the last one, an Unseal of another.
func TestAcquireAny_SealedMeanwhile(t *testing.T) {
	t.Parallel()
	for _, elsewhere := range []bool{false, true} {
		for _, unsealed := range []bool{false, true} {
			t.Run(fmt.Sprint(elsewhere, unsealed), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					b := backendtest.Memory()
					l := locker(t, b)
					holder := l
					if elsewhere {
						holder = locker(t, b)
					}
					keys := slots(20)
					if unsealed {
						keys = slots(4) // the caller that comes later would find it by itself
					}
					for _, key := range keys[1:] {
						seal(t, l, key)
					}
					held := acquire(t, holder, keys[0])
					first, firstErr := awaitAny(t.Context(), l, keys)
					time.Sleep(500 * time.Millisecond)
					second, secondErr := awaitAny(t.Context(), l, keys)
					synctest.Wait()
					if unsealed {
						ok(t, "Unseal", l.Unseal(t.Context(), keys[2]))
						third, _ := awaitAny(t.Context(), l, keys)
						select {
						case k := <-first:
							if k.Key() != keys[2] {
								t.Errorf("got %q", k.Key())
							}
							ok(t, "Release", k.Release(t.Context()))
						case <-third:
							t.Fatal("a caller that came later was served first")
						case <-time.After(10 * time.Second):
							t.Fatal("an unsealed key was not found")
						}
						ok(t, "Release", (<-second).Release(t.Context()))
						ok(t, "Release", (<-third).Release(t.Context()))
						return
					}
					ok(t, "Seal", held.Seal(t.Context(), nil, time.Hour))
					for _, errs := range []<-chan error{firstErr, secondErr} {
						select {
						case err := <-errs:
							want(t, "AcquireAny", err, core.ErrSealed)
						case <-time.After(time.Second):
							t.Fatal("a caller still waits for sealed keys")
						}
					}
				})
			})
		}
	}
}

// A caller never learns of seals that ended before it came.
func TestAcquireAny_NoOldAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := backendtest.Memory()
		l, other := locker(t, b), locker(t, b)
		keys := slots(40)
		for _, key := range keys[1:] {
			seal(t, l, key)
		}
		held := acquire(t, other, keys[0])
		_, errs := awaitAny(t.Context(), l, keys)
		time.Sleep(100 * time.Millisecond) // the seals are known now
		ok(t, "Unseal", l.Unseal(t.Context(), keys[5]))
		blocker := acquire(t, other, keys[5])
		locks, newErrs := awaitAny(t.Context(), l, keys)
		synctest.Wait()
		ok(t, "Seal", held.Seal(t.Context(), nil, time.Hour))
		// The first call came before the Unseal, so it may get ErrSealed. The second call may not.
		time.Sleep(time.Minute)
		select {
		case err := <-newErrs:
			t.Fatalf("one key is not sealed: %v", err)
		default:
		}
		want(t, "the first", <-errs, core.ErrSealed)
		ok(t, "Release", blocker.Release(t.Context()))
		ok(t, "Release", (<-locks).Release(t.Context()))
	})
}

// keyed fails the requests for some keys.
type keyed struct {
	core.Sealer
	fail func(ctx context.Context, key string) error
}

func (b keyed) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	if err := b.fail(ctx, r.Key); err != nil {
		return core.Grant{}, err
	}
	return b.Sealer.Acquire(ctx, r)
}

// A key whose backend fails or hangs does not keep a caller from one that is free.
func TestAcquireAny_OneKeyUnavailable(t *testing.T) {
	t.Parallel()
	for name, hang := range map[string]time.Duration{"fails": 0, "hangs": 500 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := backendtest.Memory()
				broken := keyed{b, func(_ context.Context, key string) error {
					if strings.Contains(key, "slot:0") {
						time.Sleep(hang)
						return unavailable(key)
					}
					return nil
				}}
				l, idle, other := locker(t, broken), locker(t, broken), locker(t, b)
				keys := slots(2)
				for range 20 {
					start := time.Now()
					k := acquireAny(t, l, keys)
					if took := time.Since(start); k.Key() != keys[1] || took > hang+50*time.Millisecond {
						t.Errorf("got %q after %v", k.Key(), took)
					}
					ok(t, "Release", k.Release(t.Context()))
				}
				// One that is freed later is found soon, too, and an outage is not the end of the wait.
				held := acquire(t, other, keys[1])
				locks, _ := awaitAny(t.Context(), l, keys)
				time.Sleep(time.Minute)
				_, err := idle.AcquireAny(t.Context(), keys, core.WithWait(0))
				want(t, "none is free and one is away", err, core.ErrUnavailable)
				_, err = l.AcquireAny(t.Context(), keys, core.WithWait(5*time.Second))
				want(t, "none is free and one is away", err, core.ErrUnavailable)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				_, err = l.AcquireAny(ctx, keys)
				wantEnded(t, "the context ended", err, context.DeadlineExceeded)
				start := time.Now()
				ok(t, "Release", held.Release(t.Context()))
				k := <-locks
				if took := time.Since(start); took > 100*time.Millisecond {
					t.Errorf("a free key was found after %v", took)
				}
				ok(t, "Release", k.Release(t.Context()))
				time.Sleep(time.Second) // the request that hangs ends
			})
		})
	}
}

// If the backend answers for no key, the error is that of Acquire, after the same time.
func TestAcquireAny_AllUnavailable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		s.on("acquire", away)
		for _, c := range []struct {
			opts []core.AcquireOption
			took time.Duration
		}{
			{nil, 10 * time.Second},
			{[]core.AcquireOption{core.WithOutageWait(0)}, 0},
			{[]core.AcquireOption{core.WithWait(0)}, 0},
			{[]core.AcquireOption{core.WithWait(2 * time.Second)}, 2 * time.Second},
		} {
			start := time.Now()
			_, err := l.AcquireAny(t.Context(), slots(5), c.opts...)
			want(t, "AcquireAny", err, core.ErrUnavailable)
			if took := time.Since(start); took < c.took || took > c.took+time.Second {
				t.Errorf("after %v, want %v", took, c.took)
			}
		}
		// An outage that ends in time is a slow call.
		locks, _ := awaitAny(t.Context(), l, slots(5))
		time.Sleep(5 * time.Second)
		s.on("acquire", nil)
		ok(t, "Release", (<-locks).Release(t.Context()))

		s.on("acquire", func(context.Context) error {
			return &core.UnavailableError{Key: "k", Nodes: []error{errors.New("wrong password")}, Permanent: true}
		})
		start := time.Now()
		_, err := l.AcquireAny(t.Context(), slots(5))
		if want(t, "AcquireAny", err, core.ErrUnavailable); time.Since(start) != 0 {
			t.Errorf("a permanent error after %v", time.Since(start))
		}
	})
}

// Of many keys that hang a caller waits for one.
func TestAcquireAny_ManyKeysHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const hang = time.Second
		l := locker(t, keyed{backendtest.Memory(), func(_ context.Context, key string) error {
			if !strings.Contains(key, "slot:0") {
				time.Sleep(hang)
				return unavailable(key)
			}
			return nil
		}})
		for range 20 {
			start := time.Now()
			ok(t, "Release", acquireAny(t, l, slots(10)).Release(t.Context()))
			if took := time.Since(start); took > hang+300*time.Millisecond {
				t.Errorf("a free key was found after %v", took)
			}
		}
		time.Sleep(hang) // the requests end
	})
}

// An outage that reaches the keys one after the other ends the wait, too.
func TestAcquireAny_OutageKeyByKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		l := locker(t, keyed{backendtest.Memory(), func(_ context.Context, key string) error {
			for i, name := range slots(4) {
				if strings.Contains(key, name) && time.Since(start) < time.Duration(i)*5*time.Second {
					return &core.TakenError{Key: key, Holder: "other/1"}
				}
			}
			return unavailable(key)
		}})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		_, err := l.AcquireAny(ctx, slots(4))
		want(t, "AcquireAny", err, core.ErrUnavailable)
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("after %v", took)
		}
	})
}
