package core_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// TestAcquireAny_Model lets callers of three processes want any of random keys, over a backend with
// latency and failures. A key has at most one holder, all callers finish, no wait outlives its end,
// no wake-up is lost, and nothing stays in memory.
func TestAcquireAny_Model(t *testing.T) {
	t.Parallel()
	rounds := 15
	if long {
		rounds = 30
	}
	if n, err := strconv.Atoi(os.Getenv("ROUNDS")); err == nil {
		rounds = n
	}
	for range rounds {
		synctest.Test(t, anyModel)
		if t.Failed() {
			return
		}
	}
}

func anyModel(t *testing.T) {
	const callers = 24
	memory := backendtest.Memory()
	var later, all sync.WaitGroup
	failures := []float64{0, 0, .05}[rand.N(3)]
	polls := rand.N(3) == 0
	quick := []time.Duration{1, 10, 100}[rand.N(3)]
	maxWaiters := []int{1000, 4}[rand.N(2)]
	var lockers []*core.Locker
	for i := range 3 {
		lockers = append(lockers, locker(t, chaos{memory, failures, quick, polls && i > 0, &later},
			core.WithTTL(10*time.Second), core.WithMaxWaiters(maxWaiters)))
	}
	keys := slots(2 + rand.N(6))
	holders := make(map[string]*core.Lock)
	last := make(map[string]uint64)
	var mu sync.Mutex
	var granted atomic.Int64
	for i := range callers {
		l := lockers[i%len(lockers)]
		all.Go(func() {
			for range 20 {
				set := keys
				if rand.N(2) == 0 {
					set = nil
					for _, n := range rand.Perm(len(keys))[:1+rand.N(len(keys))] {
						set = append(set, keys[n])
					}
				}
				opts := []core.AcquireOption{core.WithOutageWait(time.Hour)}
				if rand.N(2) == 0 {
					opts = append(opts, core.WithToken())
				}
				var wait time.Duration
				ctx, cancel := context.WithCancel(context.Background())
				switch rand.N(6) {
				case 0:
					wait = rand.N(time.Second)
					opts = append(opts, core.WithWait(wait))
				case 1:
					time.AfterFunc(rand.N(time.Second), cancel)
				}
				start := time.Now()
				call := func() (*core.Lock, error) { return l.AcquireAny(ctx, set, opts...) }
				if rand.N(5) == 0 {
					call = func() (*core.Lock, error) { return l.Acquire(ctx, set[0], opts...) }
				}
				k, err := call()
				took := time.Since(start)
				if limit := wait + 3*time.Second; wait > 0 && took > limit {
					t.Errorf("a wait of %v took %v", wait, took)
				}
				if took > 5*time.Minute {
					t.Errorf("a caller waited for %v", took)
				}
				if err != nil {
					full, _ := errors.AsType[*core.TakenError](err)
					if k != nil || wait == 0 && ctx.Err() == nil && !errors.Is(err, core.ErrSealed) && (full == nil || !full.QueueFull) {
						t.Errorf("AcquireAny of %q: %v, %v", set, k, err)
					}
					cancel()
					if errors.Is(err, core.ErrSealed) {
						time.Sleep(time.Second)
					}
					time.Sleep(rand.N(10 * time.Millisecond))
					continue
				}
				granted.Add(1)
				mu.Lock()
				if h := holders[k.Key()]; h != nil && h.Err() == nil && k.Err() == nil {
					t.Errorf("%q has two holders: %s and %s", k.Key(), h.Owner(), k.Owner())
				}
				holders[k.Key()] = k
				mu.Unlock()
				if token, err := k.Token(context.Background()); err == nil {
					mu.Lock()
					if holders[k.Key()] == k && k.Err() == nil {
						if token <= last[k.Key()] {
							t.Errorf("%q: token %d after %d", k.Key(), token, last[k.Key()])
						}
						last[k.Key()] = token
					}
					mu.Unlock()
				}
				time.Sleep(rand.N(50 * time.Millisecond))
				mu.Lock()
				if holders[k.Key()] == k {
					delete(holders, k.Key())
				}
				mu.Unlock()
				if rand.N(50) == 0 {
					_ = k.Seal(context.Background(), nil, time.Second)
				}
				_ = k.Release(context.Background())
				cancel()
			}
		})
	}
	all.Wait()
	later.Wait()
	t.Logf("%d keys, polls %v, failures %v, quick %d, at most %d waiters: %d locks", len(keys), polls, failures, quick, maxWaiters, granted.Load())
	time.Sleep(20 * time.Minute)
	for i, l := range lockers {
		if n := l.Keys(); n != 0 {
			t.Errorf("process %d remembers %d keys", i, n)
		}
	}
	for _, key := range keys {
		ok(t, "Release", acquire(t, locker(t, memory), key, core.WithWait(time.Minute)).Release(t.Context()))
	}
}

// On a real Redis three processes with more callers than keys get a fair share each, and no caller
// of a process is left behind.
func TestAcquireAny_FairOnRedis(t *testing.T) {
	t.Parallel()
	unfair := ""
	for range 3 { // a caller that a busy machine holds up misses its turns
		if unfair = fairOnRedis(t); unfair == "" {
			return
		}
		t.Log(unfair)
	}
	t.Error(unfair)
}

// fairOnRedis returns which process or caller got too few locks, if any.
func fairOnRedis(t *testing.T) (unfair string) {
	const processes, callers, keys, locks = 3, 6, 4, 900
	addr := testutil.Redis(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all sync.WaitGroup
	var total atomic.Int64
	var got [processes][callers]int
	inside := make(map[string]string)
	var mu sync.Mutex
	for p := range processes {
		b := redisbackend.New(addr.Client())
		b.NodeTimeout = time.Minute // a busy machine may answer late
		l := locker(t, b)
		for c := range callers {
			all.Go(func() {
				for total.Add(1) <= locks {
					k, err := l.AcquireAny(ctx, slots(keys))
					if err != nil {
						t.Errorf("AcquireAny: %v", err)
						return
					}
					got[p][c]++
					mu.Lock()
					if h := inside[k.Key()]; h != "" && k.Err() == nil {
						t.Errorf("%q has two holders", k.Key())
					}
					inside[k.Key()] = k.Owner()
					mu.Unlock()
					time.Sleep(10 * time.Millisecond)
					mu.Lock()
					delete(inside, k.Key())
					mu.Unlock()
					if err := k.Release(ctx); err != nil {
						t.Errorf("Release: %v", err)
					}
				}
			})
		}
	}
	all.Wait()
	t.Logf("%v", got)
	for p, counts := range got {
		sum, least := 0, locks
		for _, n := range counts {
			sum, least = sum+n, min(least, n)
		}
		if sum < locks/processes/3 || least < sum/callers/2 {
			unfair = fmt.Sprintf("process %d got %d locks of %d: %v", p, sum, locks, counts)
		}
	}
	return unfair
}
