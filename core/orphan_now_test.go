package core_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
)

// The key is an orphan at once. All handles end, and no loss is reported.
func TestOrphan_AtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, lost := check.Locker(t, backendtest.Memory()), false
		k := acquire(t, l, "k", core.WithOrphan(time.Hour))
		again, err := l.Acquire(core.WithLock(t.Context(), k), "k")
		ok(t, "Acquire again", err)
		k.OnLoss(func(error) { lost = true })
		waits := make(chan error, 1)
		go func() {
			_, err := l.Acquire(t.Context(), "k", core.WithOrphan(time.Hour))
			waits <- err
		}()
		synctest.Wait()
		began := time.Now()
		ok(t, "Orphan", k.Orphan(k.Context()))
		want(t, "a waiter", <-waits, core.ErrOrphaned)
		if waited := time.Since(began); waited != 0 {
			t.Errorf("a waiter learned it after %v", waited)
		}
		want(t, "Release", k.Release(t.Context()), core.ErrReleased)
		want(t, "Orphan again", k.Orphan(t.Context()), core.ErrReleased)
		want(t, "Seal", k.Seal(t.Context(), nil, time.Hour), core.ErrReleased)
		want(t, "the other handle", again.Err(), core.ErrReleased)
		want(t, "Release of the other handle", again.Release(t.Context()), core.ErrReleased)
		if _, err := l.TryAcquire(t.Context(), "k"); !errors.Is(err, core.ErrOrphaned) || lost || k.Context().Err() == nil {
			t.Errorf("Acquire: %v; lost %v; the context %v", err, lost, k.Context().Err())
		}
	})
}

func TestOrphan_WithoutOrphan(t *testing.T) {
	t.Parallel()
	k := acquire(t, check.Locker(t, backendtest.Memory()), "k")
	if err := k.Orphan(t.Context()); err == nil {
		t.Error("a lock without an orphan was given up")
	}
	ok(t, "the lock", k.Err())
	ok(t, "Release", k.Release(t.Context()))
}

// silent is a backend that does not answer Orphan.
type silent struct{ *backendtest.MemoryBackend }

func (silent) Orphan(_ context.Context, g core.Grant) error {
	return &core.UnavailableError{Key: g.Key}
}

// Without an answer the key is an orphan when the lease ends, and nothing renews it. A lock that
// was lost, or whose Locker is closed, can be no more than that.
func TestOrphan_Ends(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := backendtest.Memory()
		l, quiet := check.Locker(t, b), check.Locker(t, silent{b})
		unanswered := acquire(t, quiet, "unanswered", core.WithOrphan(time.Hour))
		want(t, "Orphan without an answer", unanswered.Orphan(t.Context()), core.ErrUnavailable)
		_, err := l.TryAcquire(t.Context(), "unanswered")
		want(t, "Acquire before the lease ends", err, core.ErrTaken)

		lost := acquire(t, l, "lost", core.WithOrphan(time.Hour), core.WithMaxHold(0))
		closing := check.Locker(t, b)
		closed := acquire(t, closing, "closed", core.WithOrphan(time.Hour))
		ok(t, "Close", closing.Close())
		ok(t, "Orphan after Close", closed.Orphan(t.Context()))
		_, err = l.TryAcquire(t.Context(), "closed")
		want(t, "Acquire after Close", err, core.ErrOrphaned)

		time.Sleep(time.Minute)
		want(t, "Orphan of a lost lock", lost.Orphan(t.Context()), core.ErrLost)
		for _, key := range []string{"unanswered", "lost"} {
			_, err := l.TryAcquire(t.Context(), key)
			want(t, key, err, core.ErrOrphaned)
		}
	})
}
