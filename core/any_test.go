package core_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// slots are n keys.
func slots(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = core.Join("slot", fmt.Sprint(i))
	}
	return keys
}

func acquireAny(t testing.TB, l *core.Locker, keys []string, opts ...core.AcquireOption) *core.Lock {
	t.Helper()
	k, err := l.AcquireAny(t.Context(), keys, opts...)
	if err != nil {
		t.Fatalf("AcquireAny: %v", err)
	}
	return k
}

// awaitAny starts an AcquireAny that has to wait.
func awaitAny(ctx context.Context, l *core.Locker, keys []string, opts ...core.AcquireOption) (<-chan *core.Lock, <-chan error) {
	locks, errs := make(chan *core.Lock, 1), make(chan error, 1)
	go func() {
		k, err := l.AcquireAny(ctx, keys, opts...)
		if err != nil {
			errs <- err
		} else {
			locks <- k
		}
	}()
	return locks, errs
}

func TestAcquireAny_EachGetsAnotherKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l, other := locker(t, s), locker(t, s)
		keys := slots(4)
		var got []string
		for i := range 4 {
			k := acquireAny(t, []*core.Locker{l, other}[i%2], append(keys, keys...), core.WithToken())
			got = append(got, k.Key())
			if token(t, k) == 0 || status(t, l, k.Key()) != core.Held {
				t.Errorf("%s is not held with a token", k.Key())
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, keys) {
			t.Errorf("got %q, want each of %q", got, keys)
		}
		_, err := l.AcquireAny(t.Context(), keys, core.WithWait(0))
		want(t, "AcquireAny of taken keys", err, core.ErrTaken)
		start := time.Now()
		_, err = l.AcquireAny(t.Context(), keys, core.WithWait(time.Second))
		want(t, "AcquireAny of taken keys", err, core.ErrTaken)
		if took := time.Since(start); took != time.Second || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// With free keys a call is one round trip and leaves nothing behind.
func TestAcquireAny_OneRoundTrip(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		first := make(map[string]bool)
		for range 300 {
			k := acquireAny(t, l, slots(8))
			first[k.Key()] = true
			ok(t, "Release", k.Release(t.Context()))
		}
		if n := s.count("acquire"); n != 300 {
			t.Errorf("%d requests for 300 locks", n)
		}
		if len(first) != 8 {
			t.Errorf("the calls began at %d of 8 keys", len(first))
		}
		// AcquireAny does not ask for keys that this process holds.
		var held []*core.Lock
		for range 8 {
			held = append(held, acquireAny(t, l, slots(8)))
		}
		if n := s.count("acquire"); n != 308 || l.Keys() != 8 {
			t.Errorf("%d requests for 308 locks; %d keys are remembered", n, l.Keys())
		}
		for _, k := range held {
			ok(t, "Release", k.Release(t.Context()))
		}
	})
}

func TestAcquireAny_BadCalls(t *testing.T) {
	t.Parallel()
	l := locker(t, backendtest.Memory())
	for name, c := range map[string]struct {
		keys []string
		opts []core.AcquireOption
		says string
	}{
		"no keys":     {nil, nil, "of 0 keys: pass 1 to 1000"},
		"too many":    {slots(1001), nil, "of 1001 keys: pass 1 to 1000"},
		"invalid key": {[]string{"a", "b\n"}, nil, "control character"},
		"bad option":  {slots(2), []core.AcquireOption{core.WithTTL(-1)}, "TTL"},
	} {
		k, err := l.AcquireAny(t.Context(), c.keys, c.opts...)
		if k != nil || err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := l.AcquireAny(ctx, slots(2))
	wantEnded(t, "AcquireAny with a done context", err, context.Canceled)
	if k := acquireAny(t, l, slots(1000)); k.Err() != nil {
		t.Error(k.Err())
	}
	if k := acquireAny(t, l, []string{"one", "one"}); k.Key() != "one" {
		t.Errorf("got %q", k.Key())
	}
}

// Callers of one process are served first come, first served, whether the key comes from a holder
// of their process or of another.
func TestAcquireAny_FirstComeFirstServed(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]func(*spy) core.Backend{
		"signaled": func(s *spy) core.Backend { return s },
		"polling":  func(s *spy) core.Backend { return polling{s} },
	} {
		for _, elsewhere := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, elsewhere %v", name, elsewhere), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					s := memorySpy()
					l := locker(t, b(s))
					holder := l
					if elsewhere {
						holder = locker(t, b(s))
					}
					keys := slots(3)
					var held []*core.Lock
					for _, key := range keys {
						held = append(held, acquire(t, holder, key))
					}
					order := make(chan int, 50)
					var all sync.WaitGroup
					for i := range cap(order) {
						all.Go(func() {
							k, err := l.AcquireAny(context.Background(), keys)
							if err != nil {
								t.Errorf("caller %d: %v", i, err)
								return
							}
							order <- i
							time.Sleep(10 * time.Millisecond)
							ok(t, "Release", k.Release(context.Background()))
						})
						time.Sleep(time.Millisecond)
					}
					for _, k := range held {
						ok(t, "Release", k.Release(t.Context()))
						time.Sleep(7 * time.Millisecond)
					}
					all.Wait()
					for i := range cap(order) {
						if got := <-order; got != i {
							t.Fatalf("caller %d was served in place %d", got, i)
						}
					}
					if n := s.count("acquire"); !elsewhere && n > 3+20 {
						t.Errorf("%d requests: locks were not handed over", n)
					}
				})
			})
		}
	}
}

// Callers with other keys or options, and those of one key, take turns.
func TestAcquireAny_TakesTurnsWithOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, backendtest.Memory())
		calls := []func(context.Context) (*core.Lock, error){
			func(ctx context.Context) (*core.Lock, error) { return l.Acquire(ctx, "slot:0") },
			func(ctx context.Context) (*core.Lock, error) { return l.AcquireAny(ctx, slots(2)) },
			func(ctx context.Context) (*core.Lock, error) { return l.AcquireAny(ctx, slots(3)) },
			func(ctx context.Context) (*core.Lock, error) {
				return l.AcquireAny(ctx, slots(2), core.WithTTL(time.Second))
			},
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		counts := make([]atomic.Int64, len(calls))
		var all sync.WaitGroup
		for i, call := range calls {
			for range 4 {
				all.Go(func() {
					for ctx.Err() == nil {
						k, err := call(ctx)
						if err != nil {
							return
						}
						counts[i].Add(1)
						time.Sleep(5 * time.Millisecond)
						_ = k.Release(context.Background())
					}
				})
			}
		}
		all.Wait()
		for i := range counts {
			if n := counts[i].Load(); n < 300 {
				t.Errorf("callers of kind %d got %d locks", i, n)
			}
		}
	})
}

// With one waiter one key is acquired, even if all become free at the same time.
func TestAcquireAny_NoneTooMany(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := backendtest.Memory()
		s := spyOn(remote{Sealer: memory, oneWay: time.Millisecond})
		l, other := locker(t, s), locker(t, memory)
		keys := slots(20)
		held, err := other.AcquireAll(t.Context(), keys)
		ok(t, "AcquireAll", err)
		locks, _ := awaitAny(t.Context(), l, keys)
		time.Sleep(time.Second)
		ok(t, "Release", held.Release(t.Context()))
		k := <-locks
		time.Sleep(time.Second)
		if n := s.count("release"); n != 0 {
			t.Errorf("%d locks were acquired for nobody", n)
		}
		ok(t, "Release", k.Release(t.Context()))
		time.Sleep(time.Second) // subscriptions end
	})
}

// A process that is farther away from the backend gets its turns, as with Acquire, and the near
// ones share the rest.
func TestAcquireAny_CallerAtADistance(t *testing.T) {
	t.Parallel()
	for _, polls := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			memory := backendtest.Memory()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			var all sync.WaitGroup
			var locks [3]atomic.Int64
			var longest atomic.Int64 // of the far one
			for i := range locks {
				oneWay, callers := time.Duration(0), 8
				if i == 2 {
					oneWay, callers = 1*time.Millisecond, 1
				}
				l := locker(t, remote{memory, oneWay, polls})
				for range callers {
					all.Go(func() {
						for start := time.Now(); ; start = time.Now() {
							k, err := l.AcquireAny(ctx, slots(3))
							if err != nil {
								return
							}
							if waited := int64(time.Since(start)); i == 2 && waited > longest.Load() {
								longest.Store(waited)
							}
							locks[i].Add(1)
							time.Sleep(5 * time.Millisecond)
							ok(t, "Release", k.Release(context.Background()))
						}
					})
				}
			}
			all.Wait()
			time.Sleep(time.Second) // subscriptions end
			near, far := locks[0].Load()+locks[1].Load(), locks[2].Load()
			t.Logf("polls %v: %d and %d locks near, %d far, which waited %v at most", polls, locks[0].Load(), locks[1].Load(), far, time.Duration(longest.Load()))
			if far < 30 || time.Duration(longest.Load()) > 5*time.Second {
				t.Errorf("the far caller got %d locks, want one each second", far)
			}
			if locks[0].Load() < near/3 || locks[1].Load() < near/3 {
				t.Errorf("the near processes got %d and %d locks", locks[0].Load(), locks[1].Load())
			}
		})
	}
}

// A caller that comes back at once leaves the key to a process that waits for it.
func TestAcquireAny_LeavesTurnsToOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := backendtest.Memory()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		var all sync.WaitGroup
		var locks [3]atomic.Int64
		for i := range locks {
			l := locker(t, remote{Sealer: memory, oneWay: []time.Duration{0, time.Millisecond, time.Millisecond}[i]})
			all.Go(func() {
				for {
					k, err := l.AcquireAny(ctx, slots(2))
					if err != nil {
						return
					}
					locks[i].Add(1)
					time.Sleep(5 * time.Millisecond)
					ok(t, "Release", k.Release(context.Background()))
				}
			})
		}
		all.Wait()
		time.Sleep(time.Second) // subscriptions end
		a, b, c := locks[0].Load(), locks[1].Load(), locks[2].Load()
		t.Logf("%d, %d and %d locks", a, b, c)
		if most := (a + b + c) * 11 / 20; max(a, b, c) > most || min(a, b, c) < (a+b+c)/5 || a+b+c < 5_000 {
			t.Errorf("three processes got %d, %d and %d locks", a, b, c)
		}
	})
}
