package core_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// remote is a Backend at a distance: each message takes the one-way time and up to 200 µs more.
type remote struct {
	core.Sealer
	oneWay time.Duration
	polls  bool
}

func (b remote) travel() { time.Sleep(b.oneWay + rand.N(200*time.Microsecond)) }

func (b remote) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	b.travel()
	defer b.travel()
	return b.Sealer.Acquire(context.WithoutCancel(ctx), r)
}

func (b remote) Release(ctx context.Context, g core.Grant) (core.Waiters, error) {
	b.travel()
	defer b.travel()
	others, err := b.Sealer.Release(ctx, g)
	if b.polls {
		others = core.Waiters{Others: -1}
	}
	return others, err
}

func (b remote) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	if b.polls {
		return nil, func() {}, nil
	}
	b.travel()
	defer b.travel()
	changed, stop, err := b.Sealer.Watch(ctx, key)
	if err != nil {
		return nil, nil, err
	}
	signaled, over := make(chan struct{}, 1), make(chan struct{})
	go func() {
		for {
			select {
			case <-changed:
				b.travel()
				select {
				case signaled <- struct{}{}:
				default:
				}
			case <-over:
				return
			}
		}
	}()
	return signaled, sync.OnceFunc(func() { close(over); stop() }), nil
}

// contender is a process that wants one key all the time.
type contender struct {
	callers int
	hold    time.Duration
	oneWay  time.Duration
	polls   bool
	redsync bool // a plain redsync process: it polls every 50 to 250 ms
}

// share is what a contender got.
type share struct {
	locks   int
	longest time.Duration // between two locks
	run     int           // locks in a row
	skipped int           // locks of others in a row
}

// contend lets the contenders work for a while in simulated time.
func contend(t *testing.T, last time.Duration, contenders ...contender) []share {
	shares := make([]share, len(contenders))
	synctest.Test(t, func(t *testing.T) {
		memory := backendtest.Memory()
		ctx, cancel := context.WithTimeout(context.Background(), last)
		defer cancel()
		var mu sync.Mutex
		var run, before int
		skipped := make([]int, len(contenders))
		since := make([]time.Time, len(contenders))
		work := func(i int) { // while it holds the key
			mu.Lock()
			s := &shares[i]
			s.locks++
			s.longest = max(s.longest, time.Since(since[i]))
			if i != before {
				run, before = 0, i
			}
			run++
			s.run = max(s.run, run)
			for j := range skipped {
				skipped[j]++
				shares[j].skipped = max(shares[j].skipped, skipped[j]-1)
			}
			skipped[i] = 0
			mu.Unlock()
			time.Sleep(contenders[i].hold)
			mu.Lock()
			since[i] = time.Now()
			mu.Unlock()
		}
		var all sync.WaitGroup
		for i, c := range contenders {
			b := remote{memory, c.oneWay, c.polls || c.redsync}
			l := locker(t, b)
			since[i] = time.Now()
			for range c.callers {
				all.Go(func() {
					for ctx.Err() == nil {
						if c.redsync {
							pollAsRedsync(b, func() { work(i) })
							continue
						}
						k, err := l.Acquire(ctx, "k")
						if err != nil {
							if ctx.Err() == nil {
								t.Errorf("Acquire: %v", err)
							}
							return
						}
						work(i)
						ok(t, "Release", k.Release(context.Background()))
					}
				})
			}
		}
		all.Wait()
		time.Sleep(time.Second) // subscriptions end
	})
	return shares
}

// pollAsRedsync makes one try of redsync's Mutex.
func pollAsRedsync(b remote, work func()) {
	owner := fmt.Sprint("redsync/", rand.Int64())
	g, err := b.Acquire(context.Background(), core.Request{Key: "onelane:{k}", Owner: owner, TTL: 8 * time.Second})
	if err != nil {
		time.Sleep(50*time.Millisecond + rand.N(200*time.Millisecond))
		return
	}
	work()
	_, _ = b.Release(context.Background(), g)
}

// A caller with a round trip of up to 8 ms competes with processes that have eight near callers
// each. It gets at least a quarter of an equal share, and never waits longer than 2 s. It costs
// them at most a fifth of their throughput.
func TestTurns_CallerAtADistance(t *testing.T) {
	t.Parallel()
	last, hold := time.Minute, 5*time.Millisecond
	if !long {
		last /= 2
	}
	near := contender{callers: 8, hold: hold}
	alone := contend(t, last, near)[0].locks
	for processes := 1; processes <= 3; processes++ {
		for _, oneWay := range []time.Duration{0, time.Millisecond, 4 * time.Millisecond} {
			all := append(slices.Repeat([]contender{near}, processes), contender{callers: 1, hold: hold, oneWay: oneWay})
			shares := contend(t, last, all...)
			t.Logf("%d processes, %v away: %+v; one alone: %d locks", processes, oneWay, shares, alone)
			total := 0
			for _, s := range shares[:processes] {
				total += s.locks
			}
			far := shares[processes]
			quarter := (total + far.locks) / (8*processes + 1) / 4
			if far.locks < quarter || far.longest > 2*time.Second {
				t.Errorf("the far caller got %d locks, longest wait %v; want %d locks and at most 2 s", far.locks, far.longest, quarter)
			}
			if total < alone*8/10 {
				t.Errorf("the near callers got %d locks, one process alone %d", total, alone)
			}
		}
	}
}

// Three processes that loop with long holds take turns.
func TestTurns_LongHolds(t *testing.T) {
	t.Parallel()
	c := contender{callers: 1, hold: 300 * time.Millisecond}
	for i, s := range contend(t, 5*time.Minute, c, c, c) {
		t.Logf("process %d: %+v", i, s)
		if s.run > 3 || s.skipped > 4 {
			t.Errorf("process %d: %d locks in a row, and %d of the others; want at most 3 and 4", i, s.run, s.skipped)
		}
	}
}

// Nobody starves, however waiters learn of a release. Waiters that poll depend on chance. The worst
// of 300 runs was 54 locks, and 19 s without one. So the bounds are far from that.
func TestTurns_NobodyStarves(t *testing.T) {
	t.Parallel()
	const last, ms = time.Minute, time.Millisecond
	signaled := func(n int) contender { return contender{callers: n} }
	polls := func(n int) contender { return contender{callers: n, polls: true} }
	for _, c := range []struct {
		name  string
		hold  time.Duration
		both  [2]contender
		least [2]int // locks
	}{
		{"signaled 8, signaled 8", 5 * ms, [2]contender{signaled(8), signaled(8)}, [2]int{3000, 3000}},
		{"signaled 64, signaled 1", 5 * ms, [2]contender{signaled(64), signaled(1)}, [2]int{3000, 300}},
		{"signaled 1, signaled 1", 50 * ms, [2]contender{signaled(1), signaled(1)}, [2]int{300, 300}},
		{"signaled 8, polling 1", 5 * ms, [2]contender{signaled(8), polls(1)}, [2]int{3000, 30}},
		{"signaled 8, polling 8", 5 * ms, [2]contender{signaled(8), polls(8)}, [2]int{3000, 500}},
		{"signaled 8, polling 8", 50 * ms, [2]contender{signaled(8), polls(8)}, [2]int{300, 50}},
		{"polling 8, polling 8", 5 * ms, [2]contender{polls(8), polls(8)}, [2]int{2000, 2000}},
		{"polling 64, polling 1", 5 * ms, [2]contender{polls(64), polls(1)}, [2]int{1000, 1000}},
		{"polling 64, polling 1", 50 * ms, [2]contender{polls(64), polls(1)}, [2]int{20, 300}},
		{"signaled 8, redsync 1", 5 * ms, [2]contender{signaled(8), {callers: 1, redsync: true}}, [2]int{3000, 0}},
		{"polling 8, redsync 1", 5 * ms, [2]contender{polls(8), {callers: 1, redsync: true}}, [2]int{500, 100}},
	} {
		c.both[0].hold, c.both[1].hold = c.hold, c.hold
		for i, s := range contend(t, last, c.both[:]...) {
			t.Logf("%v %s: the %s: %+v", c.hold, c.name, []string{"first", "second"}[i], s)
			if s.locks < c.least[i] || s.longest > 40*time.Second && c.least[i] > 0 {
				t.Errorf("want %d locks at least, and never 40 s without", c.least[i])
			}
		}
	}
}

// A process owes turns to waiters elsewhere until it gets the key: by then they have left. A later
// caller has no right to their turns.
func TestTurns_DebtEndsWithTheNextLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l, other := locker(t, s), locker(t, s.Sealer)
		k := acquire(t, l, "k")
		first, second := acquiring(t, l), acquiring(t, l)
		time.Sleep(200 * time.Millisecond) // the turn is over: no hand-over
		s.others = 100                     // they leave without taking the key
		ok(t, "Release", k.Release(t.Context()))
		k = <-first
		s.others = 0
		time.Sleep(200 * time.Millisecond)
		ok(t, "Release", k.Release(t.Context()))
		theirs := acquire(t, other, "k") // a new process is faster
		time.Sleep(20 * time.Millisecond)
		ok(t, "Release", theirs.Release(t.Context()))
		start := time.Now()
		k = <-second
		if waited := time.Since(start); waited > 10*time.Millisecond {
			t.Errorf("waited %v after the release, for turns of callers that are gone", waited)
		}
		ok(t, "Release", k.Release(t.Context()))
	})
}

// A waiter that stands still, or went without the key, costs others one stand-back, of what it said that
// it needs. Then others get the free key at once.
func TestTurns_WaiterThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backendtest.Memory()
		l := locker(t, b)
		k := acquire(t, l, "k")
		_, stop, err := b.Watch(t.Context(), "onelane:{k}")
		ok(t, "Watch", err)
		defer stop()
		_, err = b.Acquire(t.Context(), core.Request{Key: "onelane:{k}", Owner: "gone/1", TTL: time.Minute, Waiter: "gone", Needs: 3 * time.Millisecond})
		want(t, "Acquire of a taken key", err, core.ErrTaken)
		ok(t, "Release", k.Release(t.Context()))
		start := time.Now()
		for range 100 {
			ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
		}
		if took := time.Since(start); took > 3*time.Millisecond {
			t.Errorf("100 locks took %v, want one stand-back of 3 ms", took)
		}
	})
}

// A waiter tells what it needs once it has tried to listen: its first answer has told how far the
// backend is.
func TestTurns_WhatAWaiterNeeds(t *testing.T) {
	for name, c := range map[string]struct {
		b     remote
		least time.Duration
		most  time.Duration
	}{
		"near":  {remote{}, 2 * time.Millisecond, 4 * time.Millisecond},
		"far":   {remote{oneWay: 4 * time.Millisecond}, 18 * time.Millisecond, 21 * time.Millisecond},
		"away":  {remote{oneWay: 40 * time.Millisecond}, 50 * time.Millisecond, 50 * time.Millisecond},
		"polls": {remote{polls: true}, 50 * time.Millisecond, 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.b.Sealer = backendtest.Memory()
				asked := &asked{Backend: c.b}
				k := acquire(t, locker(t, c.b.Sealer), "k")
				got := acquiring(t, locker(t, asked))
				time.Sleep(time.Second)
				ok(t, "Release", k.Release(t.Context()))
				ok(t, "Release", (<-got).Release(t.Context()))
				if asked.needs[0] != 0 {
					t.Errorf("the first question needs %v", asked.needs[0])
				}
				for i, needs := range asked.needs[1:] {
					if needs < c.least || needs > c.most {
						t.Errorf("question %d needs %v, want %v to %v", i+1, needs, c.least, c.most)
					}
				}
			})
		})
	}
}

// asked is a Backend that notes what waiters need.
type asked struct {
	core.Backend
	needs []time.Duration
}

func (b *asked) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	b.needs = append(b.needs, r.Needs)
	return b.Backend.Acquire(ctx, r)
}

// A caller that holds a key of the same AcquireAll leaves the next one to nobody: others wait for the
// one that it holds.
func TestTurns_AcquireAllHoldsNoKeyInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		s.others = 1
		ok(t, "Release", acquire(t, l, "b").Release(t.Context()))
		start := time.Now()
		locks, err := l.AcquireAll(t.Context(), []string{"a", "b"})
		ok(t, "AcquireAll", err)
		if waited := time.Since(start); waited > 0 {
			t.Errorf("AcquireAll waited %v", waited)
		}
		ok(t, "Release", locks.Release(t.Context()))
		start = time.Now()
		ok(t, "Release", acquire(t, l, "b").Release(t.Context()))
		if waited := time.Since(start); waited != 50*time.Millisecond {
			t.Errorf("Acquire waited %v, want the 50 ms that the other needs", waited)
		}
	})
}

// After a long hold, the next caller does not leave the free key alone for a part of all that time.
func TestTurns_AfterALongHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, b := range map[string]any{"waiters poll": polling{backendtest.Memory()}, "waiters listen": backendtest.Memory()} {
			l := locker(t, b)
			k := acquire(t, l, "k")
			got := acquiring(t, l)
			synctest.Wait()
			time.Sleep(5 * time.Minute)
			start := time.Now()
			ok(t, "Release", k.Release(t.Context()))
			ok(t, "Release", (<-got).Release(t.Context()))
			if waited := time.Since(start); waited > 50*time.Millisecond {
				t.Errorf("%s: the next caller got the free key after %v", name, waited)
			}
		}
	})
}

// In another database of a Redis, somebody frees a key of this name again and again. The waiter asks seldom.
func TestTurns_SignalsOfAnotherKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		signals := make(chan struct{}, 1)
		l, other := locker(t, signaling{s, signals}), locker(t, s.Sealer)
		k := acquire(t, other, "k", core.WithMaxHold(time.Hour))
		got := acquiring(t, l)
		signal := func() {
			select {
			case signals <- struct{}{}:
			default:
			}
		}
		for range 10_000 {
			time.Sleep(100 * time.Microsecond)
			signal()
		}
		if n := s.count("acquire"); n > 100 {
			t.Errorf("the waiter asked %d times in a second", n)
		}
		ok(t, "Release", k.Release(t.Context()))
		start := time.Now()
		signal()
		ok(t, "Release", (<-got).Release(t.Context()))
		if waited := time.Since(start); waited > 20*time.Millisecond {
			t.Errorf("got the key %v after its release", waited)
		}
	})
}

// signaling is a Backend whose subscriptions have other signals.
type signaling struct {
	core.Backend
	signals chan struct{}
}

func (b signaling) Watch(context.Context, string) (<-chan struct{}, func(), error) {
	return b.signals, func() {}, nil
}
