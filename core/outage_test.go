package core_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
)

// failing makes the spy's Acquire fail for the first n calls.
func failing(s *spy, n int, err func() error) {
	asked := 0
	s.on("acquire", func(context.Context) error {
		if asked++; asked <= n {
			return err()
		}
		return nil
	})
}

func TestAcquire_OutageIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		failing(s, 10, func() error { return unavailable("k") })
		start := time.Now()
		ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
		if took := time.Since(start); took > 8*time.Second {
			t.Errorf("Acquire took %v with 10 failures", took)
		}
	})
}

func TestAcquire_OutageWaitIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		opts     []core.AcquireOption
		timeout  time.Duration
		min, max time.Duration
		err      error
	}{
		"default":        {nil, time.Hour, 10 * time.Second, 11 * time.Second, core.ErrUnavailable},
		"WithOutageWait": {[]core.AcquireOption{core.WithOutageWait(3 * time.Second)}, time.Hour, 3 * time.Second, 4 * time.Second, core.ErrUnavailable},
		"no retry":       {[]core.AcquireOption{core.WithOutageWait(0)}, time.Hour, 0, 0, core.ErrUnavailable},
		"WithWait":       {[]core.AcquireOption{core.WithWait(time.Second)}, time.Hour, time.Second, time.Second, core.ErrUnavailable},
		"context":        {nil, 2 * time.Second, 2 * time.Second, 2 * time.Second, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memorySpy()
				l := locker(t, s)
				s.on("acquire", func(context.Context) error { return unavailable("k") })
				ctx, cancel := context.WithTimeout(t.Context(), c.timeout)
				defer cancel()
				start := time.Now()
				_, err := l.Acquire(ctx, "k", c.opts...)
				want(t, "Acquire", err, c.err)
				if took := time.Since(start); took < c.min || took > c.max {
					t.Errorf("returned after %v, want %v to %v", took, c.min, c.max)
				}
				if n := l.Keys(); n != 0 {
					t.Errorf("%d keys are remembered", n)
				}
			})
		})
	}
}

func TestAcquire_PermanentFailureIsNotRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		s.on("acquire", func(context.Context) error {
			return &core.UnavailableError{Nodes: []error{errors.New("NOPERM")}, Permanent: true}
		})
		_, err := l.Acquire(t.Context(), "k")
		want(t, "Acquire", err, core.ErrUnavailable)
		if n := s.count("acquire"); n != 1 {
			t.Errorf("asked %d times", n)
		}
	})
}

func TestTryAcquire_OutageIsNotRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		s.on("acquire", func(context.Context) error { return unavailable("k") })
		for _, try := range []func() error{
			func() error { _, err := l.TryAcquire(t.Context(), "k"); return err },
			func() error { _, err := l.Acquire(t.Context(), "k", core.WithWait(0)); return err },
		} {
			start := time.Now()
			want(t, "TryAcquire", try(), core.ErrUnavailable)
			if time.Since(start) != 0 {
				t.Errorf("returned after %v", time.Since(start))
			}
		}
	})
}

// If the votes of a quorum were split, nobody may hold the key: TryAcquire asks again.
func TestTryAcquire_SplitVoteIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		contested := func() error { return &core.TakenError{Contested: true} }
		failing(s, 3, contested)
		k, err := l.TryAcquire(t.Context(), "k")
		ok(t, "TryAcquire after three split votes", err)
		ok(t, "Release", k.Release(t.Context()))
		failing(s, 1000, contested)
		before := s.count("acquire")
		_, err = l.TryAcquire(t.Context(), "k")
		want(t, "TryAcquire", err, core.ErrTaken)
		if n := s.count("acquire") - before; n < 3 || n > 10 {
			t.Errorf("asked %d times, want a few", n)
		}
	})
}

func TestWithWait_ZeroIsOneTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, memorySpy(), core.WithWait(time.Second))
		k := acquire(t, l, "k")
		start := time.Now()
		_, err := l.Acquire(t.Context(), "k", core.WithWait(0))
		want(t, "Acquire", err, core.ErrTaken)
		_, err = l.AcquireAll(t.Context(), []string{"a", "k"}, core.WithWait(0))
		want(t, "AcquireAll", err, core.ErrTaken)
		locks, err := l.AcquireAll(t.Context(), []string{"a", "b"}, core.WithWait(0))
		ok(t, "AcquireAll of free keys", err)
		ok(t, "Release", locks.Release(t.Context()))
		if time.Since(start) != 0 {
			t.Errorf("returned after %v", time.Since(start))
		}
		if _, err := core.New(opener{memorySpy()}, core.WithWait(-time.Second)); err == nil {
			t.Error("a negative wait was accepted")
		}
		ok(t, "Release", k.Release(t.Context()))
	})
}

func TestAcquire_PanicOfTheBackendFreesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		l := locker(t, s)
		for name, call := range map[string]func() error{
			"Acquire":    func() error { _, err := l.Acquire(t.Context(), "k"); return err },
			"TryAcquire": func() error { _, err := l.TryAcquire(t.Context(), "k"); return err },
		} {
			s.on("acquire", func(context.Context) error { panic("boom") })
			func() {
				defer func() {
					if recover() != "boom" {
						t.Errorf("%s: the panic did not go on", name)
					}
				}()
				_ = call()
			}()
			s.on("acquire", nil)
			ok(t, "Release", acquire(t, l, "k", core.WithWait(time.Second)).Release(t.Context()))
		}
	})
}
