package core_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
)

// Redis does not answer for as long as the callers wait, and nobody has the key. ErrTaken would mean
// that others had it.
func TestOutage_InLineIsNotTaken(t *testing.T) {
	for name, acquire := range map[string]func(context.Context, *core.Locker) error{
		"Acquire": func(ctx context.Context, l *core.Locker) error {
			_, err := l.Acquire(ctx, "k", core.WithWait(5*time.Second))
			return err
		},
		"AcquireAll": func(ctx context.Context, l *core.Locker) error {
			_, err := l.AcquireAll(ctx, []string{"k", "l"}, core.WithWait(5*time.Second))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memorySpy()
				l := locker(t, s)
				s.on("acquire", func(context.Context) error { return unavailable("k") })
				errs := make(chan error, 10)
				for range cap(errs) {
					go func() { errs <- acquire(t.Context(), l) }()
				}
				wrong := 0
				var last error
				for range cap(errs) {
					if err := <-errs; !errors.Is(err, core.ErrUnavailable) {
						wrong, last = wrong+1, err
					}
				}
				if wrong > 0 {
					t.Errorf("%d of %d callers were not told that the backend is unavailable, such as: %v", wrong, cap(errs), last)
				}
			})
		})
	}
}

// "If ctx ended before there was an answer, the error matches ctx's error alone." There was no answer:
// the first caller's request hangs.
func TestEnded_InLineBeforeAnyAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		s.on("acquire", func(ctx context.Context) error { <-ctx.Done(); return unavailable("k") })
		first, second := make(chan error, 1), make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, err := l.Acquire(ctx, "k"); first <- err }()
		synctest.Wait()
		own, end := context.WithCancel(t.Context())
		go func() { _, err := l.Acquire(own, "k"); second <- err }()
		synctest.Wait()
		end()
		err := <-second
		want(t, "the second", err, context.Canceled)
		if errors.Is(err, core.ErrTaken) {
			t.Errorf("nobody answered that the key is taken: %v", err)
		}
		cancel()
		err = <-first
		want(t, "the first", err, context.Canceled)
		if errors.Is(err, core.ErrTaken) {
			t.Errorf("the first: %v", err)
		}
	})
}
