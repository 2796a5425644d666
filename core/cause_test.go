package core_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
)

var errWhy = errors.New("the claim was lost")

// The caller's context ends a wait: the error matches the context's error and its cause, whatever
// the caller waited for. A cause that is an answer about another key is shown and not matched.
func TestAcquire_CauseOfTheEnd(t *testing.T) {
	t.Parallel()
	keys := []string{"k", "l"}
	for name, acquire := range map[string]func(context.Context, *core.Locker) error{
		"Acquire": func(ctx context.Context, l *core.Locker) error { _, err := l.Acquire(ctx, "k"); return err },
		"with wait": func(ctx context.Context, l *core.Locker) error {
			_, err := l.Acquire(ctx, "k", core.WithWait(time.Hour))
			return err
		},
		"AcquireAll": func(ctx context.Context, l *core.Locker) error { _, err := l.AcquireAll(ctx, keys); return err },
		"AcquireAny": func(ctx context.Context, l *core.Locker) error { _, err := l.AcquireAny(ctx, keys); return err },
		"Do":         func(ctx context.Context, l *core.Locker) error { return l.Do(ctx, "k", nothing) },
	} {
		for what, holder := range map[string]func(t *testing.T, s *spy) *core.Locker{
			"here":      func(t *testing.T, s *spy) *core.Locker { return locker(t, s) },
			"elsewhere": func(t *testing.T, s *spy) *core.Locker { return locker(t, s.Sealer) },
			"nowhere": func(t *testing.T, s *spy) *core.Locker {
				s.on("acquire", away)
				return nil
			},
		} {
			t.Run(name+" "+what, func(t *testing.T) {
				for _, why := range []error{errWhy, core.ErrLost, &core.SealedError{Key: "another"}} {
					synctest.Test(t, func(t *testing.T) {
						s := memorySpy()
						l := holder(t, s)
						if l != nil {
							for _, key := range keys {
								k, err := l.Acquire(t.Context(), key)
								ok(t, "Acquire", err)
								defer func() { ok(t, "Release", k.Release(context.Background())) }()
							}
						}
						if what != "here" {
							l = locker(t, s)
						}
						ctx, cancel := context.WithCancelCause(context.Background())
						defer cancel(nil)
						time.AfterFunc(50*time.Millisecond, func() { cancel(why) })
						err := acquire(ctx, l)
						want(t, "the error", err, context.Canceled)
						if errors.Is(err, why) == errors.Is(why, core.ErrSealed) || errors.Is(err, core.ErrSealed) {
							t.Errorf("the cause is %q, and the error matches it: %v: %v", why, errors.Is(err, why), err)
						}
						if !strings.Contains(err.Error(), why.Error()) {
							t.Errorf("%q does not show the cause %q", err, why)
						}
						if taken := what != "nowhere"; errors.Is(err, core.ErrTaken) != taken || errors.Is(err, core.ErrUnavailable) {
							t.Errorf("%v", err)
						}
					})
				}
			})
		}
	}
}

// The end of the wait is not the context's: there is no cause.
func TestAcquire_NoCauseOfAWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		k := acquire(t, locker(t, s), "k")
		_, err := locker(t, s).Acquire(t.Context(), "k", core.WithWait(time.Second))
		if taken, found := errors.AsType[*core.TakenError](err); !found || taken.Cause != nil {
			t.Errorf("%v", err)
		}
		ok(t, "Release", k.Release(t.Context()))
	})
}
