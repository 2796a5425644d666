package redisbackend_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// far is a distant Backend. Its signals to watchers take a while, too.
type far struct {
	core.Backend
	n    func(int) int
	rash bool // Watch returns before it is subscribed: against the rule
	deaf bool // no watcher gets a signal
}

func (b far) travel() { time.Sleep(time.Duration(b.n(3000)) * time.Microsecond) }

func (b far) Open(core.Environment) (core.Backend, error) { return b, nil }

func (b far) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	b.travel()
	g, err := b.Backend.Acquire(context.WithoutCancel(ctx), r)
	b.travel()
	return g, err
}

func (b far) Release(ctx context.Context, g core.Grant) (core.Waiters, error) {
	b.travel()
	defer b.travel()
	return b.Backend.Release(ctx, g)
}

func (b far) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	told, over, subscribed := make(chan struct{}, 1), make(chan struct{}), make(chan error, 1)
	go func() {
		if b.travel(); b.rash {
			time.Sleep(100 * time.Millisecond)
		}
		changed, stop, err := b.Backend.Watch(context.WithoutCancel(ctx), key)
		subscribed <- err
		if err != nil {
			return
		}
		defer stop()
		for {
			select {
			case <-changed:
			case <-over:
				return
			}
			if b.travel(); b.deaf {
				continue
			}
			select {
			case told <- struct{}{}:
			default:
			}
		}
	}()
	end := sync.OnceFunc(func() { close(over) })
	if b.rash {
		return told, end, nil
	}
	if err := <-subscribed; err != nil {
		return nil, nil, err
	}
	b.travel()
	return told, end, nil
}

// wakeModel lets waiters of several processes take turns. It returns the longest time for which the
// key was free while somebody waited for it.
func wakeModel(t *testing.T, seed uint64, rash, deaf bool) (longest time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		random := rand.New(rand.NewPCG(seed, 3))
		n := func(most int) int {
			mu.Lock()
			defer mu.Unlock()
			return random.IntN(most)
		}
		b := far{backendtest.Memory(), n, rash, deaf}
		var all sync.WaitGroup
		waiting, free := make(map[int]time.Time), time.Time{} // since when
		for i := range 3 * (1 + n(3)) {
			l := locker(t, b)
			all.Go(func() {
				for range 5 {
					time.Sleep(time.Duration(n(30)) * time.Millisecond)
					mu.Lock()
					waiting[i] = time.Now()
					mu.Unlock()
					k, err := l.Acquire(context.Background(), "k")
					if err != nil {
						t.Errorf("Acquire: %v", err)
						return
					}
					mu.Lock()
					delete(waiting, i)
					mu.Unlock()
					time.Sleep(time.Duration(n(10)) * time.Millisecond)
					ok(t, "Release", k.Release(context.Background()))
					mu.Lock()
					free = time.Now()
					mu.Unlock()
				}
			})
		}
		done := make(chan struct{})
		go func() { all.Wait(); close(done) }()
		for over := false; !over; { // looks all the time
			select {
			case <-done:
				over = true
			case <-time.After(time.Millisecond):
				st, err := b.Inspect(t.Context(), "k")
				ok(t, "Inspect", err)
				mu.Lock()
				if st.Status == core.Free {
					for _, since := range waiting {
						if since.Before(free) {
							since = free
						}
						longest = max(longest, time.Since(since))
					}
				}
				mu.Unlock()
			}
		}
		time.Sleep(time.Second) // who is on the way arrives
	})
	return longest
}

// A waiter never misses a release: it hears the signal, or had not asked yet. A waiter that misses one
// sleeps for half a second at least.
func TestWatch_NoReleaseIsMissed(t *testing.T) {
	t.Parallel()
	const soon = 100 * time.Millisecond
	seeds := 30
	if long {
		seeds = 100
	}
	for _, c := range []struct {
		name       string
		rash, deaf bool
	}{{"as it is", false, false}, {"subscribed too late", true, false}, {"told nothing", false, true}} {
		t.Run(fmt.Sprint(c.name), func(t *testing.T) {
			missed, worst := 0, time.Duration(0)
			for seed := range uint64(seeds) {
				longest := wakeModel(t, seed, c.rash, c.deaf)
				if longest > soon {
					missed++
				}
				worst = max(worst, longest)
			}
			t.Logf("in %d of %d runs a key was free for more than %v while somebody waited; at most %v", missed, seeds, soon, worst)
			if broken := c.rash || c.deaf; broken != (missed > 0) {
				t.Errorf("broken %t, and missed in %d runs", broken, missed)
			}
			if worst > 2*time.Second {
				t.Errorf("a waiter that is not told looks for itself: not after %v", worst)
			}
		})
	}
}
