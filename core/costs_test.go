package core_test

import (
	"context"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/check"
)

// granting is a Backend that grants everything and remembers nothing, so that only the costs of
// core are measured.
type granting struct{ core.Sealer }

func (granting) Acquire(_ context.Context, r core.Request) (core.Grant, error) {
	return core.Grant{Key: r.Key, Owner: r.Owner, Deadline: time.Now().Add(r.TTL)}, nil
}

func (granting) Release(context.Context, core.Grant) (core.Waiters, error) {
	return core.Waiters{}, nil
}

func (granting) Close() error { return nil }

// The tests here are not parallel: they measure the whole process.

func TestCosts_Allocations(t *testing.T) {
	limited, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	for _, c := range []struct {
		ctx  context.Context
		most float64
	}{{context.Background(), 7}, {limited, 9}} {
		l := locker(t, granting{})
		n := testing.AllocsPerRun(1000, func() {
			k, err := l.Acquire(c.ctx, "stock:42")
			if err != nil || k.Release(c.ctx) != nil {
				t.Error("a lock failed")
			}
		})
		t.Logf("lock and release: %v allocations in core", n)
		if n > c.most && !race {
			t.Errorf("lock and release with %v allocate %v times, want at most %v", c.ctx, n, c.most)
		}
	}
}

func TestCosts_HeldLock(t *testing.T) {
	const locks = 10_000
	l := locker(t, granting{}, core.WithTTL(time.Hour)) // it cannot renew
	held := make([]*core.Lock, 0, locks)
	goroutines, before := runtime.NumGoroutine(), inUse()
	for i := range locks {
		held = append(held, acquire(t, l, "stock:"+strconv.Itoa(i)))
	}
	each := (inUse() - before) / locks
	t.Logf("a held lock: %d bytes", each)
	if each > 1024 && !race {
		t.Errorf("a held lock takes %d bytes, want at most 1024", each)
	}
	check.Eventually(t, "a held lock has no goroutine", func() bool { return runtime.NumGoroutine() <= goroutines })
	for _, k := range held {
		ok(t, "Release", k.Release(t.Context()))
	}
	if n := l.Keys(); n != 0 {
		t.Errorf("%d keys are remembered after their release", n)
	}
}
