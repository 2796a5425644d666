// Package check has what the tests of several packages check with.
package check

import (
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
)

// Patience bounds each wait for a condition. Tests give a lease a minute, and the wait is shorter:
// a lease that ends by itself is not taken for one that was released.
const Patience = 40 * time.Second

// Long is true if simulations, storms and long holds run at full size, as in .ci/run.
var Long = os.Getenv("ONELANE_LONG") != ""

// OK fails the test if what was done returned an error.
func OK(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// Want fails the test if an error does not match target.
func Want(t testing.TB, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("%s: got %v, want an error that matches %v", what, err, target)
	}
}

// Ended checks that an error is the caller's context's and says nothing about the backend.
func Ended(t testing.TB, what string, err, over error) {
	t.Helper()
	if !errors.Is(err, over) {
		t.Errorf("%s: got %v, want an error that matches %v", what, err, over)
	}
	for _, other := range []error{core.ErrUnavailable, core.ErrLost, core.ErrSealed, core.ErrReleased} {
		if errors.Is(err, other) {
			t.Errorf("%s: %v matches %v", what, err, other)
		}
	}
}

// Eventually polls for what happens in the background, less often the longer it takes.
func Eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for begun := time.Now(); !done(); {
		waited := time.Since(begun)
		if waited > Patience {
			t.Fatalf("%s: it did not happen within %v", what, Patience)
		}
		time.Sleep(min(max(waited/16, 5*time.Millisecond), 50*time.Millisecond))
	}
}

// Locker returns a Locker that logs nothing and is closed with the test.
func Locker(t testing.TB, o core.Opener, opts ...core.Option) *core.Locker {
	t.Helper()
	l, err := core.New(o, append([]core.Option{core.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
	OK(t, "New", err)
	t.Cleanup(func() { OK(t, "Close", l.Close()) })
	return l
}

// Acquire returns the lock of a key.
func Acquire(t testing.TB, l *core.Locker, key string, opts ...core.AcquireOption) *core.Lock {
	t.Helper()
	k, err := l.Acquire(t.Context(), key, opts...)
	if err != nil {
		t.Fatalf("Acquire(%q): %v", key, err)
	}
	return k
}
