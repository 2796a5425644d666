package core_test

import (
	"context"
	"errors"
	"testing"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/undone"
	"github.com/onelane/onelane/testutil/backendtest"
)

// Acquire did nothing if the backend does not answer or the Locker is closed. Release, after the work
// under the lock, must not say so.
func TestUnavailable_SaysNothingWasDone(t *testing.T) {
	t.Parallel()
	none := func(error) bool { return false }
	l, err := core.New(down{backendtest.Memory()}, core.WithOutageWait(0))
	ok(t, "New", err)
	acquires := map[string]func() error{
		"Acquire":    func() error { _, err := l.Acquire(t.Context(), "k"); return err },
		"TryAcquire": func() error { _, err := l.TryAcquire(t.Context(), "k"); return err },
		"AcquireAll": func() error { _, err := l.AcquireAll(t.Context(), []string{"k", "n"}); return err },
		"AcquireAny": func() error { _, err := l.AcquireAny(t.Context(), []string{"k", "n"}); return err },
		"Do":         func() error { return l.Do(t.Context(), "k", func(context.Context) error { return nil }) },
	}
	for name, acquire := range acquires {
		if err := acquire(); !errors.Is(err, core.ErrUnavailable) || !undone.Certain(err, none) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := l.Unseal(t.Context(), "k"); undone.Certain(err, none) {
		t.Errorf("Unseal: %v", err)
	}
	ok(t, "Close", l.Close())
	for name, acquire := range acquires {
		if err := acquire(); !errors.Is(err, core.ErrClosed) || !undone.Certain(err, none) {
			t.Errorf("%s of a closed Locker: %v", name, err)
		}
	}
}
