package core_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// orphanOf leaves an orphan under key, as a holder that died does, and returns it.
func orphanOf(t *testing.T, l *core.Locker, key string) *core.OrphanedError {
	t.Helper()
	k := acquire(t, l, key, core.WithOrphan(time.Hour), core.WithMaxHold(0), core.WithTTL(time.Second))
	time.Sleep(2 * time.Second)
	_, err := l.TryAcquire(t.Context(), key)
	var orphan *core.OrphanedError
	if !errors.As(err, &orphan) {
		t.Fatalf("TryAcquire after the lease ended: %v, want *OrphanedError", err)
	}
	if orphan.Key != key || orphan.Owner != k.Owner() || time.Since(orphan.Since) > 2*time.Second {
		t.Errorf("got %+v, want the owner %q", orphan, k.Owner())
	}
	return orphan
}

func TestOrphan_IsNotFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, backendtest.Memory())
		orphanOf(t, l, "k")
		_, err := l.Acquire(t.Context(), "k", core.WithWait(time.Minute))
		want(t, "Acquire", err, core.ErrOrphaned)
		if got := status(t, l, "k"); got != core.Orphaned {
			t.Errorf("the key is %v", got)
		}
		time.Sleep(time.Hour)
		ok(t, "Release after the retention", acquire(t, l, "k").Release(t.Context()))
	})
}

func TestOrphan_Adopt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, backendtest.Memory())
		orphan := orphanOf(t, l, "k")
		k := adopt(t, l, orphan, core.WithOrphan(time.Hour))
		want(t, "TryAcquire", tryError(l, "k"), core.ErrTaken)
		ok(t, "Release", k.Release(t.Context()))
		ok(t, "Release", acquire(t, l, "k").Release(t.Context()))

		first := orphanOf(t, l, "again")
		k = adopt(t, l, first, core.WithOrphan(time.Hour), core.WithMaxHold(0))
		time.Sleep(time.Minute)
		_, err := l.Adopt(t.Context(), first, core.WithWait(0))
		var second *core.OrphanedError
		if !errors.As(err, &second) || second.Owner != k.Owner() {
			t.Errorf("adopting an orphan that was adopted already: %v", err)
		}
	})
}

func TestOrphan_AdoptNothing(t *testing.T) {
	t.Parallel()
	l := locker(t, backendtest.Memory())
	for _, orphan := range []*core.OrphanedError{nil, {Key: "k"}} {
		if k, err := l.Adopt(t.Context(), orphan); k != nil || err == nil || !strings.Contains(err.Error(), "pass the *OrphanedError") {
			t.Errorf("Adopt(%v): %v", orphan, err)
		}
	}
}

func TestOrphan_UnsealFrees(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, backendtest.Memory())
		orphanOf(t, l, "k")
		ok(t, "Unseal", l.Unseal(t.Context(), "k"))
		ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
	})
}

func TestOrphan_OwnerSealsAfterItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, backendtest.Memory())
		opts := []core.AcquireOption{core.WithOrphan(time.Hour), core.WithMaxHold(0), core.WithTTL(time.Second)}
		k := acquire(t, l, "k", opts...)
		time.Sleep(2 * time.Second)
		want(t, "Err", k.Err(), core.ErrLost)
		ok(t, "Seal over the own orphan", k.Seal(t.Context(), []byte("v"), time.Minute))
		want(t, "TryAcquire", tryError(l, "k"), core.ErrSealed)

		k = acquire(t, l, "adopted", opts...)
		time.Sleep(2 * time.Second)
		adopt(t, l, &core.OrphanedError{Key: "adopted", Owner: k.Owner()})
		want(t, "Seal of an adopted orphan", k.Seal(t.Context(), []byte("v"), time.Minute), core.ErrLost)
		want(t, "TryAcquire", tryError(l, "adopted"), core.ErrTaken)
	})
}

// Renewal keeps the lease. MaxHold, Lapse and a holder that hangs leave an orphan; Release does not.
func TestOrphan_WhatLeavesOne(t *testing.T) {
	for name, c := range map[string]struct {
		opts []core.AcquireOption
		end  func(t *testing.T, k *core.Lock)
		want core.Status
	}{
		"renewed":         {nil, func(*testing.T, *core.Lock) {}, core.Held},
		"maximum hold":    {[]core.AcquireOption{core.WithMaxHold(10 * time.Second)}, func(*testing.T, *core.Lock) {}, core.Orphaned},
		"Lapse":           {nil, func(_ *testing.T, k *core.Lock) { k.Lapse() }, core.Orphaned},
		"Release":         {nil, func(t *testing.T, k *core.Lock) { ok(t, "Release", k.Release(t.Context())) }, core.Free},
		"Release of lost": {[]core.AcquireOption{core.WithMaxHold(0)}, func(t *testing.T, k *core.Lock) { time.Sleep(time.Minute); _ = k.Release(t.Context()) }, core.Free},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := locker(t, backendtest.Memory(), core.WithTTL(3*time.Second))
				k := acquire(t, l, "k", append(c.opts, core.WithOrphan(time.Hour))...)
				c.end(t, k)
				time.Sleep(time.Minute)
				if got := status(t, l, "k"); got != c.want {
					t.Errorf("the key is %v, want %v", got, c.want)
				}
			})
		})
	}
}

// All waiters of this process get the answer, and none of them a lock.
func TestOrphan_AnswersAllWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		k := acquire(t, l, "k", core.WithOrphan(time.Hour), core.WithTTL(time.Second))
		answers := make(chan error, 20)
		for range cap(answers) {
			go func() { _, err := l.Acquire(t.Context(), "k"); answers <- err }()
		}
		synctest.Wait()
		k.Lapse()
		for range cap(answers) {
			want(t, "a waiter", <-answers, core.ErrOrphaned)
		}
		if n := s.count("acquire"); n > 4 {
			t.Errorf("%d acquires for 20 waiters", n)
		}
	})
}

// An adoption whose caller is gone when the answer arrives leaves the orphan.
func TestOrphan_AdopterIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backendtest.Memory()
		l := locker(t, b)
		orphan := orphanOf(t, l, "k")
		ctx, cancel := context.WithCancel(t.Context())
		gone := locker(t, afterAcquire{b, cancel})
		_, err := gone.Adopt(ctx, orphan, core.WithOrphan(time.Hour))
		want(t, "Acquire", err, context.Canceled)
		time.Sleep(time.Minute)
		if got := status(t, l, "k"); got != core.Orphaned {
			t.Errorf("the key is %v, want orphaned", got)
		}
	})
}

// lateBackend answers its first attempts after the lease has ended, and then frees what they hold.
type lateBackend struct {
	core.Sealer
	late int
}

func (b *lateBackend) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	g, err := b.Sealer.Acquire(ctx, r)
	if err != nil || b.late == 0 {
		return g, err
	}
	b.late--
	time.Sleep(r.TTL)
	if r.Adopt == "" {
		time.AfterFunc(100*time.Millisecond, func() { _, _ = b.Release(context.Background(), g) })
	}
	return core.Grant{}, unavailable("k")
}

// The orphan of an attempt whose answer came too late is nobody's: no holder ever worked under it.
func TestOrphan_OfOwnLateAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &lateBackend{Sealer: backendtest.Memory()}
		l := locker(t, b)
		orphan := orphanOf(t, l, "k")
		b.late = 1
		ok(t, "Release", adopt(t, l, orphan, core.WithOrphan(time.Hour)).Release(t.Context()))
		b.late = 1
		ok(t, "Release", acquire(t, l, "k", core.WithOrphan(time.Hour)).Release(t.Context()))
		b.late = 1
		_, err := l.Acquire(t.Context(), "k", core.WithOrphan(time.Hour), core.WithOutageWait(0))
		want(t, "Acquire", err, core.ErrUnavailable)
	})
}

// restoringBackend answers the first adoption after the lease has ended. When somebody has seen what
// that left, it makes the key the earlier orphan again.
type restoringBackend struct {
	core.Sealer
	calls int
}

func (b *restoringBackend) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	if r.Adopt == "" {
		return b.Sealer.Acquire(ctx, r)
	}
	g, err := b.Sealer.Acquire(ctx, r)
	switch b.calls++; b.calls {
	case 1:
		time.Sleep(r.TTL)
		return core.Grant{}, unavailable("k")
	case 2:
		_ = b.Unseal(ctx, r.Key)
		_, _ = b.Sealer.Acquire(ctx, core.Request{Key: r.Key, Owner: r.Adopt, TTL: time.Millisecond, Orphan: time.Hour})
		time.Sleep(2 * time.Millisecond)
	}
	return g, err
}

// An adoption that failed may be undone after its own caller has seen it.
func TestOrphan_AdoptionIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &restoringBackend{Sealer: backendtest.Memory()}
		l := locker(t, b)
		orphan := orphanOf(t, l, "k")
		ok(t, "Release", adopt(t, l, orphan, core.WithOrphan(time.Hour)).Release(t.Context()))
	})
}
