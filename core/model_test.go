package core_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// chaos is a Backend with latency, failures before and after the effect, and odd counts of others.
type chaos struct {
	core.Sealer
	rate  float64
	quick time.Duration // all times are divided by it
	polls bool
	later *sync.WaitGroup
}

func (b chaos) gap(ctx context.Context, key string) error {
	d := rand.N(20*time.Millisecond) / b.quick
	if rand.Float64() < .02 {
		d = rand.N(2*time.Second) / b.quick
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return &core.UnavailableError{Key: key, Nodes: []error{ctx.Err()}}
	}
	if rand.Float64() < b.rate {
		return unavailable(key)
	}
	return nil
}

func (b chaos) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	if err := b.gap(ctx, r.Key); err != nil {
		return core.Grant{}, err
	}
	g, err := b.Sealer.Acquire(context.WithoutCancel(ctx), r)
	if lost := b.gap(ctx, r.Key); lost != nil && err == nil {
		b.later.Go(func() { _, _ = b.Sealer.Release(context.Background(), g) })
		return core.Grant{}, lost
	}
	return g, err
}

func (b chaos) Mint(ctx context.Context, g core.Grant) (core.Grant, error) {
	if err := b.gap(ctx, g.Key); err != nil {
		return g, err
	}
	m, err := b.Sealer.Mint(context.WithoutCancel(ctx), g)
	if lost := b.gap(ctx, g.Key); lost != nil && err == nil {
		return g, lost
	}
	return m, err
}

func (b chaos) Extend(ctx context.Context, g core.Grant, ttl time.Duration) (core.Grant, error) {
	if err := b.gap(ctx, g.Key); err != nil {
		return g, err
	}
	m, err := b.Sealer.Extend(context.WithoutCancel(ctx), g, ttl)
	if lost := b.gap(ctx, g.Key); lost != nil && err == nil {
		return g, lost
	}
	return m, err
}

func (b chaos) Release(ctx context.Context, g core.Grant) (core.Waiters, error) {
	if err := b.gap(ctx, g.Key); err != nil {
		return core.Waiters{Others: -1}, err
	}
	n, err := b.Sealer.Release(context.WithoutCancel(ctx), g)
	if b.polls {
		n = core.Waiters{Others: -1}
	}
	if lost := b.gap(ctx, g.Key); lost != nil && err == nil {
		return core.Waiters{Others: rand.N(5) - 2, Need: 10 * time.Millisecond}, lost
	}
	if rand.Float64() < .1 {
		n = core.Waiters{Others: []int{-1 << 62, -1, 0, 1, 1 << 62}[rand.N(5)], Need: 10 * time.Millisecond}
	}
	return n, err
}

func (b chaos) Seal(ctx context.Context, g core.Grant, value []byte, retention time.Duration) error {
	if err := b.gap(ctx, g.Key); err != nil {
		return err
	}
	err := b.Sealer.Seal(context.WithoutCancel(ctx), g, value, retention)
	if lost := b.gap(ctx, g.Key); lost != nil && err == nil {
		return lost
	}
	return err
}

func (b chaos) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	if b.polls {
		return nil, func() {}, nil
	}
	if err := b.gap(ctx, key); err != nil {
		return nil, nil, err
	}
	return b.Sealer.Watch(context.WithoutCancel(ctx), key)
}

// TestModel does everything at random. It checks one holder at a time, growing tokens, error classes, and that
// nothing stays in memory.
func TestModel(t *testing.T) {
	rounds := 10
	if long {
		rounds = 20
	}
	if n, err := strconv.Atoi(os.Getenv("ROUNDS")); err == nil {
		rounds = n
	}
	for range rounds {
		synctest.Test(t, func(t *testing.T) { model(t) })
		if t.Failed() {
			return
		}
	}
}

func model(t *testing.T) {
	memory := backendtest.Memory()
	var later sync.WaitGroup
	tokenRate := rand.Float64()
	var lockers []*core.Locker
	quick := []time.Duration{1, 10, 100}[rand.N(3)]
	for i := range 3 {
		lockers = append(lockers, locker(t, chaos{memory, []float64{0, .01, .1}[rand.N(3)], quick, i == 2, &later}, core.WithTTL([]time.Duration{400 * time.Millisecond, 3 * time.Second, 10 * time.Second}[rand.N(3)])))
	}
	type holder struct {
		k    *core.Lock
		over bool
	}
	var mu sync.Mutex
	current := map[string]*holder{}
	last := map[string]uint64{}
	lastOf := map[string]*holder{}
	var tokens, holders int
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var all sync.WaitGroup
	for i := range 24 {
		l := lockers[i%3]
		all.Go(func() {
			for ctx.Err() == nil {
				key := fmt.Sprint("k", rand.N(3))
				var opts []core.AcquireOption
				add := func(p float64, o ...core.AcquireOption) {
					if rand.Float64() < p {
						opts = append(opts, o[rand.N(len(o))])
					}
				}
				add(tokenRate, core.WithToken())
				add(.3, core.WithTTL(200*time.Millisecond), core.WithTTL(2*time.Second))
				add(.1, core.WithMaxHold(0))
				add(.3, core.WithWait(0), core.WithWait(50*time.Millisecond), core.WithWait(time.Second))
				add(.1, core.WithMaxHold(500*time.Millisecond))
				add(.1, core.WithOrphan(300*time.Millisecond))
				add(.2*tokenRate, core.WithTag("tag"))
				add(.2, core.WithOutageWait(0), core.WithOutageWait(time.Second))
				c, stop := context.WithCancel(ctx)
				if rand.Float64() < .5 {
					c, stop = context.WithTimeout(ctx, rand.N(2*time.Second))
				} else if rand.Float64() < .3 {
					d := rand.N(time.Second)
					time.AfterFunc(d, stop)
				}
				k, err := l.Acquire(c, key, opts...)
				if err != nil {
					if k != nil {
						t.Error("lock and error")
					}
					if isCtx := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled); isCtx && errors.Is(err, core.ErrUnavailable) || isCtx && c.Err() == nil {
						t.Errorf("%v with a context that is %v", err, c.Err())
					}
					stop()
					if errors.Is(err, core.ErrSealed) || errors.Is(err, core.ErrOrphaned) {
						if rand.Float64() < .5 {
							_ = l.Unseal(ctx, key)
						} else {
							time.Sleep(rand.N(50 * time.Millisecond))
						}
					}
					continue
				}
				h := &holder{k: k}
				mu.Lock()
				if k.Err() == nil {
					if p := current[key]; p != nil && !p.over && p.k.Err() == nil {
						t.Errorf("two holders of %s: %s and %s", key, p.k.Owner(), k.Owner())
					}
					current[key] = h
					holders++
				}
				mu.Unlock()
				note := func() {
					n, err := k.Token(context.Background())
					mu.Lock()
					defer mu.Unlock()
					if err == nil && k.Err() == nil && current[key] == h {
						if n < last[key] || n == last[key] && lastOf[key] != h {
							t.Errorf("%s: token %d after %d", key, n, last[key])
						}
						last[key], lastOf[key] = n, h
						tokens++
					}
				}
				inner, innerErr := (*core.Lock)(nil), error(nil)
				if rand.Float64() < .1 {
					inner, innerErr = l.Acquire(core.WithLock(ctx, k), key)
					_ = innerErr
				}
				lctx := k.Context()
				for range rand.N(3) {
					switch rand.N(4) {
					case 0:
						note()
					case 1:
						_ = k.Extend(c, time.Duration(10+rand.N(3000))*time.Millisecond)
					case 2:
						select {
						case <-lctx.Done():
						case <-time.After(rand.N(time.Second) / quick):
						}
					case 3:
						var verbs sync.WaitGroup
						verbs.Go(note)
						verbs.Go(func() { _ = k.Extend(c, time.Second) })
						verbs.Wait()
					}
				}
				if inner != nil {
					_ = inner.Release(ctx)
				}
				mu.Lock()
				h.over = true
				mu.Unlock()
				switch rand.N(10 + int(quick)) {
				case 0:
					_ = k.Seal(c, []byte("v"), 100*time.Millisecond)
				case 1:
					k.Lapse()
				}
				var ends sync.WaitGroup
				ends.Go(func() { _ = k.Release(c) })
				if rand.Float64() < .2 {
					ends.Go(func() { _, _ = k.Token(ctx) })
				}
				ends.Wait()
				stop()
			}
		})
	}
	all.Wait()
	later.Wait()
	t.Logf("%d holders, %d tokens", holders, tokens)
	time.Sleep(20 * time.Minute)
	for i, l := range lockers {
		if n := l.Keys(); n != 0 {
			t.Errorf("locker %d remembers %d keys", i, n)
		}
	}
	for key := range current {
		k, err := lockers[0].Acquire(context.Background(), key, core.WithWait(5*time.Minute), core.WithOutageWait(time.Minute))
		if err != nil {
			t.Errorf("%s at the end: %v", key, err)
			continue
		}
		n, err := k.Token(context.Background())
		if err == nil && n <= last[key] {
			t.Errorf("%s at the end: token %d after %d", key, n, last[key])
		}
		_ = k.Release(context.Background())
	}
	time.Sleep(time.Minute)
}
