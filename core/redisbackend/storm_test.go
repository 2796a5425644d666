package redisbackend_test

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
	"github.com/onelane/onelane/testutil/backendtest"
)

// storm is two processes on one backend that is slow and fails. Callers change their minds at any
// moment.
type storm struct {
	t      *testing.T
	random *rand.Rand

	mu     sync.Mutex
	held   map[string]*core.Lock // the last one that was given out
	tokens map[string]uint64
	got    int
}

func (s *storm) n(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.random.IntN(n)
}

// pause takes up to most ms, and often none.
func (s *storm) pause(most int) {
	if n := s.n(2 * most); n < most {
		time.Sleep(time.Duration(n) * time.Millisecond)
	}
}

// slow is a Backend that takes its time and loses answers.
type slow struct {
	core.Backend
	*storm
}

func (b slow) Open(core.Environment) (core.Backend, error) { return b, nil }

func unavailable(key string) error {
	return &core.UnavailableError{Key: key, Nodes: []error{errors.New("no answer")}}
}

func (b slow) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	b.pause(5)
	g, err := b.Backend.Acquire(context.WithoutCancel(ctx), r)
	b.pause(5)
	if err == nil && (ctx.Err() != nil || b.n(20) == 0) { // as every Backend does
		_, _ = b.Backend.Release(context.WithoutCancel(ctx), g)
		return core.Grant{}, unavailable(r.Key)
	}
	return g, err
}

func (b slow) Extend(ctx context.Context, g core.Grant, ttl time.Duration) (core.Grant, error) {
	b.pause(20)
	if b.n(4) == 0 {
		return g, unavailable(g.Key)
	}
	return b.Backend.Extend(context.WithoutCancel(ctx), g, ttl)
}

func (b slow) Release(ctx context.Context, g core.Grant) (core.Waiters, error) {
	b.pause(5)
	if b.n(20) == 0 {
		return core.Waiters{Others: -1}, unavailable(g.Key)
	}
	return b.Backend.Release(context.WithoutCancel(ctx), g)
}

func (b slow) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	b.pause(3)
	if b.n(5) == 0 {
		return nil, func() {}, unavailable(key)
	}
	return b.Backend.Watch(context.WithoutCancel(ctx), key)
}

// given checks a lock that was given out: it is alone, and its token is larger.
func (s *storm) given(k *core.Lock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got++
	if before := s.held[k.Key()]; before != nil && before.Err() == nil {
		s.t.Errorf("two holders of %s", k.Key())
	}
	n, err := k.Token(context.Background()) // known already
	if err == nil && n <= s.tokens[k.Key()] {
		s.t.Errorf("token %d of %s after %d", n, k.Key(), s.tokens[k.Key()])
	}
	s.held[k.Key()] = k
	if err == nil {
		s.tokens[k.Key()] = n
	}
}

// caller does what callers do.
func (s *storm) caller(l *core.Locker) {
	keys := []string{"a", "b"}
	for range 12 {
		ctx, cancel := context.WithCancel(context.Background())
		switch s.n(4) {
		case 0:
			ctx, cancel = context.WithTimeout(ctx, time.Duration(s.n(30))*time.Millisecond)
		case 1:
			time.AfterFunc(time.Duration(s.n(30))*time.Millisecond, cancel)
		}
		var locks core.Locks
		var err error
		var k *core.Lock
		switch s.n(5) {
		case 0:
			if locks, err = l.AcquireAll(ctx, keys, core.WithWait(40*time.Millisecond)); err == nil && len(locks) != 2 {
				s.t.Errorf("%d locks of 2", len(locks))
			}
		case 1:
			k, err = l.TryAcquire(ctx, keys[s.n(2)])
		default:
			k, err = l.Acquire(ctx, keys[s.n(2)], core.WithWait(time.Duration(1+s.n(100))*time.Millisecond))
		}
		if k != nil {
			locks = core.Locks{k}
		}
		switch {
		case err == nil:
			for _, k := range locks {
				s.given(k)
			}
			s.pause(90)
			again, err := l.Acquire(core.WithLock(context.WithoutCancel(ctx), locks[0]), locks[0].Key())
			if err == nil {
				s.pause(3)
				_ = again.Release(ctx)
			}
			if s.n(8) == 0 {
				_ = locks[0].Seal(ctx, []byte("v"), 10*time.Millisecond)
			}
			_ = locks.Release(ctx)
		case !errors.Is(err, core.ErrTaken) && !errors.Is(err, core.ErrUnavailable) && !errors.Is(err, core.ErrSealed) &&
			!errors.Is(err, core.ErrLost) && !errors.Is(err, core.ErrClosed) && ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded):
			s.t.Errorf("%v", err)
		}
		cancel()
	}
}

func TestStorm(t *testing.T) {
	t.Parallel()
	seeds := 30
	if long && !race {
		seeds = 150
	}
	got := 0
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &storm{t: t, random: rand.New(rand.NewPCG(1, uint64(seed))), held: make(map[string]*core.Lock), tokens: make(map[string]uint64)}
				b := slow{backendtest.Memory(), s}
				opts := []core.Option{core.WithTTL(60 * time.Millisecond), core.WithToken(), core.WithOutageWait(0)}
				first, second := locker(t, b, opts...), locker(t, b, opts...)
				var all sync.WaitGroup
				for range 5 {
					all.Go(func() { s.caller(first) })
					all.Go(func() { s.caller(second) })
				}
				if seed%3 == 0 {
					time.Sleep(time.Duration(s.n(500)) * time.Millisecond)
					ok(t, "Close", second.Close())
				}
				all.Wait()
				time.Sleep(time.Second) // leases and seals end
				for _, key := range []string{"a", "b"} {
					if got := status(t, first, key); got != core.Free {
						t.Errorf("%s is %v", key, got)
					}
				}
				got += s.got
			})
		})
	}
	if got < 10*seeds {
		t.Errorf("%d locks in %d storms: too few to tell", got, seeds)
	}
	t.Logf("%d locks in %d storms", got, seeds)
}
