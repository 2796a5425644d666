package core_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// These tests do two things at the same moment: a verb of a lease and its release, or a grant and
// Close.

// acquiring starts an Acquire, and returns its lock when it is here.
func acquiring(t *testing.T, l *core.Locker, opts ...core.AcquireOption) <-chan *core.Lock {
	got := make(chan *core.Lock, 1)
	go func() {
		k, err := l.Acquire(context.Background(), "k", opts...)
		if err != nil {
			t.Errorf("Acquire of who waits: %v", err)
		}
		got <- k
	}()
	synctest.Wait()
	return got
}

// A lease is not handed over while a verb is under way. The answer may be that the lease is lost,
// and the waiter that got it meanwhile would not learn of it.
func TestHandOver_NotWhileAVerbIsUnderWay(t *testing.T) {
	for name, verb := range map[string]func(k *core.Lock){
		"renewal": func(*core.Lock) {},
		"Extend": func(k *core.Lock) {
			_ = k.Extend(context.Background(), time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memorySpy()
				l := locker(t, s, core.WithTTL(240*time.Millisecond))
				s.on("extend", func(context.Context) error {
					s.on("extend", nil)
					time.Sleep(50 * time.Millisecond)
					return core.ErrLost
				})
				k := acquire(t, l, "k")
				got := acquiring(t, l)
				time.Sleep(70 * time.Millisecond)
				go verb(k)
				time.Sleep(20 * time.Millisecond) // a renewal began after 80 ms; hand-overs go on for 100
				if s.count("extend") != 1 {
					t.Fatal("no verb is under way")
				}
				ok(t, "Release", k.Release(t.Context()))
				next := <-got
				if n := s.count("acquire"); n != 2 {
					t.Errorf("%d acquires: the lease was handed over while nobody knew whether it was lost", n)
				}
				ok(t, "Release of the next holder", next.Release(t.Context()))
			})
		})
	}
}

// The next holder does not start with a lease that is about to end.
func TestHandOver_NeedsAThirdOfTheTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s, core.WithTTL(120*time.Millisecond))
		s.on("extend", func(context.Context) error { return unavailable("k") })
		k := acquire(t, l, "k")
		got := acquiring(t, l)
		time.Sleep(90 * time.Millisecond)
		ok(t, "Release", k.Release(t.Context()))
		next := <-got
		if left := time.Until(next.Deadline()); left < 100*time.Millisecond || s.count("acquire") != 2 {
			t.Errorf("the next holder has %v, after %d acquires", left, s.count("acquire"))
		}
		ok(t, "Release", next.Release(t.Context()))
	})
}

// overdueGrant is a Backend whose first grant comes when it has ended.
type overdueGrant struct {
	core.Sealer
	grants int
}

func (b *overdueGrant) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	g, err := b.Sealer.Acquire(ctx, r)
	if b.grants++; b.grants == 1 {
		time.Sleep(2 * r.TTL)
	}
	return g, err
}

func TestAcquire_ALeaseThatEndsOnTheWayBlocksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, &overdueGrant{Sealer: backendtest.Memory()})
		if k, err := l.Acquire(t.Context(), "k"); err == nil {
			want(t, "Err", k.Err(), core.ErrLost)
		}
		ok(t, "Release", acquire(t, l, "k", core.WithWait(time.Second)).Release(t.Context()))
	})
}

// A Close comes between the question and the grant. The caller gets ErrClosed, and the Locker
// releases the grant.
func TestClose_WhileTheBackendGrants(t *testing.T) {
	for name, call := range map[string]func(*core.Locker) error{
		"Acquire": func(l *core.Locker) error { _, err := l.Acquire(context.Background(), "k"); return err },
		"Try":     func(l *core.Locker) error { _, err := l.TryAcquire(context.Background(), "k"); return err },
		"All": func(l *core.Locker) error {
			_, err := l.AcquireAll(context.Background(), []string{"a", "k"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memorySpy()
				l, other := locker(t, s), locker(t, s.Sealer)
				s.on("acquire", func(context.Context) error { time.Sleep(time.Second); return nil })
				answer := make(chan error, 1)
				go func() { answer <- call(l) }()
				time.Sleep(500 * time.Millisecond)
				if name == "All" {
					time.Sleep(time.Second) // the first is held
				}
				ok(t, "Close", l.Close())
				want(t, name, <-answer, core.ErrClosed)
				for _, key := range []string{"a", "k"} {
					if got := status(t, other, key); got != core.Free {
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

// closedInACall answers late, that its client is closed.
type closedInACall struct{ core.Sealer }

func (closedInACall) gone() error {
	time.Sleep(time.Second)
	return &core.UnavailableError{Nodes: []error{errors.New("client is closed")}, Permanent: true}
}

func (b closedInACall) Acquire(context.Context, core.Request) (core.Grant, error) {
	return core.Grant{}, b.gone()
}

func (b closedInACall) Inspect(context.Context, string) (core.State, error) {
	return core.State{}, b.gone()
}

// A backend that was closed in the middle of a call answers that it is unavailable. The caller gets
// ErrClosed all the same.
func TestClose_InTheMiddleOfACall(t *testing.T) {
	for name, call := range map[string]func(*core.Locker) error{
		"Acquire": func(l *core.Locker) error { _, err := l.Acquire(context.Background(), "k"); return err },
		"Try":     func(l *core.Locker) error { _, err := l.TryAcquire(context.Background(), "k"); return err },
		"Any": func(l *core.Locker) error {
			_, err := l.AcquireAny(context.Background(), []string{"k", "j"})
			return err
		},
		"Every": func(l *core.Locker) error {
			return core.Every(context.Background(), l, "k", time.Minute, func(context.Context) error { return nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := locker(t, closedInACall{backendtest.Memory()})
				answer := make(chan error, 1)
				go func() { answer <- call(l) }()
				time.Sleep(500 * time.Millisecond)
				ok(t, "Close", l.Close())
				want(t, name, <-answer, core.ErrClosed)
			})
		})
	}
}

// A caller that waits for another process returns at once, and the Locker asks the backend no more.
func TestClose_EndsTheWaitAtOnce(t *testing.T) {
	for name, hide := range map[string]bool{"told of changes": false, "polling": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memorySpy()
				var b core.Backend = s
				if hide {
					b = polling{s}
				}
				l := locker(t, b)
				acquire(t, locker(t, s.Sealer), "k")
				answers := make(chan error, 3)
				for range cap(answers) {
					go func() { _, err := l.Acquire(context.Background(), "k"); answers <- err }()
				}
				time.Sleep(5 * time.Second)
				asked, start := s.count("acquire"), time.Now()
				ok(t, "Close", l.Close())
				for range cap(answers) {
					want(t, "a waiter", <-answers, core.ErrClosed)
				}
				if n := s.count("acquire") - asked; n != 0 || time.Since(start) != 0 {
					t.Errorf("told after %v and %d more acquires", time.Since(start), n)
				}
			})
		})
	}
}

// A lock may reach a waiter at the moment when the waiter gives up. The lock goes on to the next in
// line, in all the ways in which the two can meet.
func TestWait_ALockDeliveredToWhoLeavesGoesOn(t *testing.T) {
	for range 50 { // which of the two is seen first is chance
		synctest.Test(t, func(t *testing.T) {
			l := locker(t, backendtest.Memory())
			k := acquire(t, l, "k")
			ctx, cancel := context.WithCancel(t.Context())
			left := make(chan struct{})
			go func() {
				defer close(left)
				if k, err := l.Acquire(ctx, "k"); err == nil { // it came first
					ok(t, "Release", k.Release(t.Context()))
				}
			}()
			synctest.Wait()
			got := acquiring(t, l)
			go func() { ok(t, "Release", k.Release(context.Background())) }()
			go cancel()
			<-left
			start := time.Now()
			next := <-got
			if waited := time.Since(start); waited > time.Second {
				t.Errorf("the next in line got it after %v", waited)
			}
			ok(t, "Release", next.Release(t.Context()))
		})
	}
}
