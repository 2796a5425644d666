package core_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// The largest and smallest durations either work or are refused with a sentence that is true.
func TestExtremes_Durations(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	for name, opts := range map[string][]core.Option{
		"node time-out": {core.WithNodeTimeout(math.MaxInt64)},
		"wait":          {core.WithWait(math.MaxInt64).(core.Option)},
		"hold":          {core.WithMaxHold(math.MaxInt64)},
		"TTL":           {core.WithTTL(math.MaxInt64)},
		"short":         {core.WithTTL(10 * time.Millisecond), core.WithMaxHold(1), core.WithNodeTimeout(time.Hour)},
		"long":          {core.WithTTL(10 * 365 * 24 * time.Hour), core.WithMaxHold(math.MaxInt64)},
		"memory":        {core.WithSealMemory(math.MaxInt64)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := core.New(core.Clients(client), opts...)
			if err != nil {
				if !strings.Contains(err.Error(), "at most") {
					t.Errorf("refused, and not said why: %v", err)
				}
				return
			}
			defer func() { ok(t, "Close", l.Close()) }()
			k, err := l.Acquire(t.Context(), name)
			ok(t, "Acquire", err)
			if err := k.Extend(t.Context(), math.MaxInt64); err == nil || !strings.Contains(err.Error(), "at most") {
				t.Errorf("Extend by 292 years: %v", err)
			}
			if err := k.Seal(t.Context(), nil, math.MaxInt64); err == nil || !strings.Contains(err.Error(), "at most") {
				t.Errorf("Seal for 292 years: %v", err)
			}
			for _, d := range []time.Duration{0, -1, math.MinInt64} {
				if err := k.Seal(t.Context(), nil, d); err == nil || errors.Is(err, core.ErrLost) {
					t.Errorf("Seal for %v: %v", d, err)
				}
			}
			if err := k.Release(t.Context()); err != nil && name != "short" {
				t.Errorf("Release: %v", err)
			}
		})
	}
}

// Two goroutines release one lock: one of them is told that it did.
func TestRelease_OfTwoAtOnceOneIsTold(t *testing.T) {
	t.Parallel()
	l := locker(t, core.Clients(testutil.Redis(t).Client()))
	for range 100 {
		k := acquire(t, l, "k")
		errs := make(chan error, 2)
		for range 2 {
			go func() { errs <- k.Release(context.Background()) }()
		}
		if a, b := <-errs, <-errs; (a == nil) == (b == nil) || !errors.Is(errors.Join(a, b), core.ErrReleased) {
			t.Fatalf("got %v and %v", a, b)
		}
	}
}

// Whoever is told of the loss may release at once.
func TestRelease_WhenToldOfTheLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		s.on("extend", func(context.Context) error { return core.ErrLost })
		l := locker(t, s)
		k := acquire(t, l, "k")
		released := make(chan error, 1)
		context.AfterFunc(k.Context(), func() { released <- k.Release(context.Background()) })
		want(t, "Release", <-released, core.ErrLost)
	})
}

// A thousand keys, each named twice, and contended by another call.
func TestAcquireAll_OfAThousand(t *testing.T) {
	t.Parallel()
	l := locker(t, core.Clients(testutil.Redis(t).Client()))
	var keys []string
	for i := range 2000 {
		keys = append(keys, fmt.Sprint("k", i%1000))
	}
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			locks, err := l.AcquireAll(t.Context(), keys)
			if err != nil || len(locks) != 1000 {
				t.Errorf("%d locks: %v", len(locks), err)
			}
			ok(t, "Release", locks.Release(t.Context()))
		})
	}
	all.Wait()
	if n := l.Lines(); n != 0 {
		t.Errorf("%d keys are remembered", n)
	}
}

// The head's lease was too short for its backend; the others want a longer one.
func TestWait_WhatATTLIsTooShortForIsNoAnswerForALongerOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, tooShort{s})
		k := acquire(t, l, "k")
		short := make(chan error, 1)
		go func() {
			_, err := l.Acquire(context.Background(), "k", core.WithTTL(10*time.Millisecond))
			short <- err
		}()
		synctest.Wait()
		long := acquiring(t, l)
		ok(t, "Release", k.Release(t.Context()))
		want(t, "the short one", <-short, core.ErrUnavailable)
		if k := <-long; k != nil {
			ok(t, "Release", k.Release(t.Context()))
		}
	})
}

// tooShort is a Backend that needs longer for an answer than a short lease lasts.
type tooShort struct{ core.Backend }

func (b tooShort) Acquire(ctx context.Context, key, owner string, ttl time.Duration) (core.Grant, error) {
	if ttl < time.Second {
		return core.Grant{}, unavailable(key)
	}
	return b.Backend.Acquire(ctx, key, owner, ttl)
}
