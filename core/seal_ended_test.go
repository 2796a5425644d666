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

// The client hung up while the work ran. Its seal gets the time that a Release gets, or the
// deferred Release would free the key of what was done.
func TestSeal_AfterTheCallersContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // so that the 100 ms of a release are not over on a busy machine
		l := locker(t, backendtest.Memory())
		ctx, hangUp := context.WithCancel(t.Context())
		k := acquire(t, l, "pay:7")
		hangUp()
		ok(t, "Seal", k.Seal(ctx, []byte("charged"), time.Hour))
		ok(t, "Release", k.Release(ctx))
		_, err := l.TryAcquire(t.Context(), "pay:7")
		want(t, "the retry", err, core.ErrSealed)
	})
}

// The backend refuses at once, and the caller's context had ended before. As with Release, the
// context did not end the call: the error and the metric say that the backend is out.
func TestSeal_OutageAfterTheCallersContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // so that the 100 ms are not over on a busy machine
		m, s := newMeters(), memorySpy()
		l := locker(t, s, core.WithTelemetry(m, nil))
		ctx, hangUp := context.WithCancel(t.Context())
		k := acquire(t, l, "pay:7")
		hangUp()
		for _, verb := range []string{"seal", "release"} {
			s.on(verb, func(context.Context) error { return unavailable("pay:7") })
		}
		sealed, released := k.Seal(ctx, []byte("charged"), time.Hour), k.Release(ctx)
		if n := m.read(t)["onelane.seal.duration{onelane.outcome=unavailable}"]; n != 1 {
			t.Errorf("%d seals were counted as unavailable, want 1: %v", n, m.read(t))
		}
		for verb, err := range map[string]error{"Seal": sealed, "Release": released} {
			if !errors.Is(err, core.ErrUnavailable) || errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", verb, err)
			}
		}
	})
}
