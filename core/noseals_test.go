package core_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
)

// Each call that needs a core.Sealer fails before it asks the backend, and says which backends can.
func TestNoSeals_EachCall(t *testing.T) {
	t.Parallel()
	l := locker(t, check.LeasesOnly{Backend: backendtest.Memory()})
	if l.Seals() {
		t.Error("Seals() = true")
	}
	if !locker(t, backendtest.Memory()).Seals() {
		t.Error("Seals() = false on a core.Sealer")
	}
	ctx, key := t.Context(), "k"
	k := acquire(t, l, "held")
	ran := false
	run := func(context.Context) error { ran = true; return nil }
	for name, call := range map[string]func() error{
		"WithOrphan": func() error { _, err := l.Acquire(ctx, key, core.WithOrphan(time.Hour)); return err },
		"TryAcquire": func() error { _, err := l.TryAcquire(ctx, key, core.WithOrphan(time.Hour)); return err },
		"AcquireAll": func() error {
			_, err := l.AcquireAll(ctx, []string{key, "b"}, core.WithOrphan(time.Hour))
			return err
		},
		"AcquireAny": func() error {
			_, err := l.AcquireAny(ctx, []string{key, "b"}, core.WithOrphan(time.Hour))
			return err
		},
		"Do":     func() error { return l.Do(ctx, key, run, core.WithOrphan(time.Hour)) },
		"DoOnce": func() error { _, err := l.DoOnce(ctx, key, time.Hour, run); return err },
		"Every":  func() error { return core.Every(ctx, l, key, time.Hour, run) },
		"Adopt":  func() error { _, err := l.Adopt(ctx, &core.OrphanedError{Key: key, Owner: "o"}); return err },
		"Seal":   func() error { return k.Seal(ctx, nil, time.Hour) },
		"Unseal": func() error { return l.Unseal(ctx, key) },
	} {
		err := call()
		if !errors.Is(err, core.ErrNoSeals) || !strings.Contains(err.Error(), "Sentinel, Redis Cluster, etcd, ZooKeeper") {
			t.Errorf("%s: %v, want ErrNoSeals", name, err)
		}
	}
	if ran {
		t.Error("a function ran")
	}
	if k.Err() != nil || k.Release(ctx) != nil {
		t.Error("the lock is lost after a Seal that was refused")
	}
	if st, err := l.Inspect(ctx, key); err != nil || st.Status != core.Free {
		t.Errorf("the key is %v, %v", st.Status, err)
	}
}

// WithOrphan as a default is refused where the Locker is made.
func TestNoSeals_Default(t *testing.T) {
	t.Parallel()
	_, err := core.New(check.LeasesOnly{Backend: backendtest.Memory()}, core.WithOrphan(time.Hour))
	if !errors.Is(err, core.ErrNoSeals) {
		t.Errorf("New: %v, want ErrNoSeals", err)
	}
}
