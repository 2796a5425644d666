package core_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// nearby is a Backend half a millisecond away.
type nearby struct{ core.Backend }

func (b nearby) travel() { time.Sleep(50*time.Microsecond + rand.N(200*time.Microsecond)) }

func (b nearby) Acquire(ctx context.Context, key, owner string, ttl time.Duration) (core.Grant, error) {
	b.travel()
	defer b.travel()
	return b.Backend.Acquire(context.WithoutCancel(ctx), key, owner, ttl)
}

func (b nearby) Release(ctx context.Context, g core.Grant) error {
	b.travel()
	defer b.travel()
	return b.Backend.Release(ctx, g)
}

// toldNearby is one whose waiters are told of a release.
type toldNearby struct{ nearby }

func (b toldNearby) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	b.travel()
	changed, stop, err := b.Backend.(core.Watcher).Watch(ctx, key)
	told, over := make(chan struct{}, 1), make(chan struct{})
	go func() {
		for {
			select {
			case <-changed:
				b.travel()
				select {
				case told <- struct{}{}:
				default:
				}
			case <-over:
				return
			}
		}
	}()
	return told, sync.OnceFunc(func() { close(over); stop() }), err
}

// contender is a process that wants a key all the time.
type contender struct {
	told    bool // else it polls
	redsync bool // it does not use this package
	waiters int
	hold    time.Duration
}

// share is what a contender got: how often, for how long altogether, and the longest it waited between two.
type share struct {
	locks   int
	held    time.Duration
	longest time.Duration
}

func turns(t *testing.T, last time.Duration, contenders ...contender) []share {
	shares := make([]share, len(contenders))
	synctest.Test(t, func(t *testing.T) {
		memory := testutil.Memory()
		ctx, cancel := context.WithTimeout(context.Background(), last)
		defer cancel()
		var all sync.WaitGroup
		for i, c := range contenders {
			var b core.Backend = nearby{memory}
			if c.told {
				b = toldNearby{nearby{memory}}
			}
			l := locker(t, b)
			var mu sync.Mutex
			since := time.Now()
			use := func() { // while it holds the key
				mu.Lock()
				shares[i].locks++
				shares[i].held += c.hold
				shares[i].longest = max(shares[i].longest, time.Since(since))
				mu.Unlock()
				time.Sleep(c.hold)
				mu.Lock()
				since = time.Now()
				mu.Unlock()
			}
			for range c.waiters {
				all.Go(func() {
					for ctx.Err() == nil {
						if c.redsync {
							g, err := nearby{memory}.Acquire(context.Background(), "onelane:{k}", fmt.Sprint("redsync/", rand.Int64()), 8*time.Second)
							if err != nil { // taken
								time.Sleep(50*time.Millisecond + rand.N(200*time.Millisecond)) // as redsync does
								continue
							}
							use()
							ok(t, "Release", nearby{memory}.Release(context.Background(), g))
							continue
						}
						k, err := l.Acquire(ctx, "k")
						if err != nil {
							if !errors.Is(err, context.DeadlineExceeded) {
								t.Errorf("Acquire: %v", err)
							}
							return
						}
						use()
						ok(t, "Release", k.Release(context.Background()))
					}
				})
			}
		}
		all.Wait()
		time.Sleep(time.Second)
	})
	return shares
}

// Nobody starves: not who polls beside those who are told of releases, not a process with one caller beside one with many, nor the other
// way round. Plain redsync, which polls every 50 to 250 ms, is shown for comparison: it finds a hot key by chance.
func TestTurns_NobodyStarves(t *testing.T) {
	t.Parallel()
	const last, ms = time.Minute, time.Millisecond
	for _, c := range []struct {
		name  string
		hold  time.Duration
		both  [2]contender
		least [2]int // locks
	}{
		{"told 8, told 8", 5 * ms, [2]contender{{told: true, waiters: 8}, {told: true, waiters: 8}}, [2]int{3000, 3000}},
		{"told 64, told 1", 5 * ms, [2]contender{{told: true, waiters: 64}, {told: true, waiters: 1}}, [2]int{3000, 300}},
		{"told 1, told 1", 50 * ms, [2]contender{{told: true, waiters: 1}, {told: true, waiters: 1}}, [2]int{300, 300}},
		{"told 8, polling 1", 5 * ms, [2]contender{{told: true, waiters: 8}, {waiters: 1}}, [2]int{3000, 30}},
		{"told 8, polling 8", 5 * ms, [2]contender{{told: true, waiters: 8}, {waiters: 8}}, [2]int{3000, 500}},
		{"told 8, polling 8", 50 * ms, [2]contender{{told: true, waiters: 8}, {waiters: 8}}, [2]int{300, 50}},
		{"polling 8, polling 8", 5 * ms, [2]contender{{waiters: 8}, {waiters: 8}}, [2]int{2000, 2000}},
		{"polling 64, polling 1", 5 * ms, [2]contender{{waiters: 64}, {waiters: 1}}, [2]int{1000, 1000}},
		{"polling 64, polling 1", 50 * ms, [2]contender{{waiters: 64}, {waiters: 1}}, [2]int{50, 300}},
		{"told 8, redsync 1", 5 * ms, [2]contender{{told: true, waiters: 8}, {redsync: true, waiters: 1}}, [2]int{3000, 0}},
		{"polling 8, redsync 1", 5 * ms, [2]contender{{waiters: 8}, {redsync: true, waiters: 1}}, [2]int{500, 100}},
	} {
		c.both[0].hold, c.both[1].hold = c.hold, c.hold
		for i, s := range turns(t, last, c.both[:]...) {
			t.Logf("%v %s: the %s: %d locks, %v at most without one", c.hold, c.name, []string{"first", "second"}[i], s.locks, s.longest.Round(ms))
			if s.locks < c.least[i] || s.longest > 20*time.Second && c.least[i] > 0 {
				t.Errorf("want %d locks at least, and never 20 s without", c.least[i])
			}
		}
	}
}
