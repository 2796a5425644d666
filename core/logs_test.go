package core_test

import (
	"context"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// logged returns how many lines begin with a message, and how many such there would be if none had
// been left out.
func (r *records) logged(message string) (lines, all int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, text := range r.text {
		if strings.Contains(text, message) {
			lines++
			all++
			if found := leftOut.FindStringSubmatch(text); found != nil {
				n, _ := strconv.Atoi(found[1])
				all += n
			}
		}
	}
	return lines, all
}

var leftOut = regexp.MustCompile(`left_out=(\d+)`)

// unrenewed is a Backend that grants everything. From a moment on, it does not answer.
type unrenewed struct {
	granting
	mu    sync.Mutex
	since time.Time
}

func (b *unrenewed) Extend(_ context.Context, g core.Grant, ttl time.Duration) (core.Grant, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.since.IsZero() {
		return g, unavailable(g.Key)
	}
	g.Deadline = time.Now().Add(ttl)
	return g, nil
}

func (b *unrenewed) fail() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.since = time.Now()
}

// Many thousand locks whose renewals fail, and which are lost then, make a few lines.
func TestLogs_ManyLocksLost(t *testing.T) {
	t.Parallel()
	locks := 5000
	if long && !race {
		locks = 50_000
	}
	synctest.Test(t, func(t *testing.T) {
		log, b := &records{}, new(unrenewed)
		l := locker(t, b, core.WithLogger(slog.New(log)), core.WithTTL(30*time.Second))
		for i := range locks {
			acquire(t, l, "stock:"+strconv.Itoa(i))
		}
		time.Sleep(11 * time.Second)
		if lines, _ := log.logged(""); lines > 0 {
			t.Errorf("lines without a trouble: %q", log.text)
		}
		b.fail()
		time.Sleep(time.Minute)
		lines, all := log.logged("WARN core: renewal failed")
		if lines > 5 || all < locks {
			t.Errorf("renewals: %d lines about %d failures of %d locks", lines, all, locks)
		}
		lines, all = log.logged("WARN core: lock lost")
		if lines > 3 || all != locks {
			t.Errorf("losses: %d lines about %d losses of %d locks", lines, all, locks)
		}
	})
}

// A log that blocks does not have a goroutine for each lock that is lost.
func TestLogs_BlockedLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &busyHandler{Handler: slog.DiscardHandler}
		l := locker(t, granting{}, core.WithLogger(slog.New(log)), core.WithTTL(time.Second), core.WithMaxHold(0))
		for i := range 1000 {
			acquire(t, l, "stock:"+strconv.Itoa(i))
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Hour)
		log.mu.Lock()
		defer log.mu.Unlock()
		if log.most > 2 { // the first line, and the one about those that were left out
			t.Errorf("%d lines were written at a time, want at most 2", log.most)
		}
	})
}

// busyHandler takes a minute for a line.
type busyHandler struct {
	slog.Handler
	mu        sync.Mutex
	now, most int
}

func (h *busyHandler) Enabled(_ context.Context, l slog.Level) bool { return l > slog.LevelDebug }

func (h *busyHandler) Handle(context.Context, slog.Record) error {
	h.mu.Lock()
	h.now++
	h.most = max(h.most, h.now)
	h.mu.Unlock()
	time.Sleep(time.Minute)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now--
	return nil
}

// A loss that the holder's Release finds is logged and counted, once.
func TestLogs_LossFoundAtRelease(t *testing.T) {
	t.Parallel()
	revoked := func(t *testing.T, b core.Opener, k *core.Lock) {
		t.Helper()
		ok(t, "Revoke", locker(t, b).Revoke(t.Context(), k.Key(), k.Owner()))
	}
	for name, c := range map[string]struct {
		lose func(t *testing.T, s *spy, l *core.Locker)
		want int
	}{
		"Release": {func(t *testing.T, s *spy, l *core.Locker) {
			k := acquire(t, l, "k")
			revoked(t, s, k)
			want(t, "Release", k.Release(t.Context()), core.ErrLost)
			want(t, "Release again", k.Release(t.Context()), core.ErrReleased)
		}, 1},
		"Locks.Release": {func(t *testing.T, s *spy, l *core.Locker) {
			ks, err := l.AcquireAll(t.Context(), []string{"a", "b"})
			ok(t, "AcquireAll", err)
			revoked(t, s, ks[1])
			want(t, "Release", ks.Release(t.Context()), core.ErrLost)
		}, 1},
		"known before": {func(t *testing.T, s *spy, l *core.Locker) {
			k := acquire(t, l, "k")
			revoked(t, s, k)
			want(t, "Extend", k.Extend(t.Context(), time.Minute), core.ErrLost)
			want(t, "Release", k.Release(t.Context()), core.ErrLost)
		}, 1},
		"after Close": {func(t *testing.T, s *spy, l *core.Locker) {
			k := acquire(t, l, "k")
			ok(t, "Close", l.Close())
			revoked(t, s, k)
			want(t, "Release", k.Release(t.Context()), core.ErrLost)
		}, 1},
		"late": {func(t *testing.T, s *spy, l *core.Locker) { // behind a renewal that takes its time
			k := acquire(t, l, "k")
			s.on("extend", func(context.Context) error { time.Sleep(time.Second); return unavailable("k") })
			go func() { _ = k.Extend(t.Context(), time.Minute) }()
			synctest.Wait()
			revoked(t, s, k)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			wantEnded(t, "Release", k.Release(ctx), context.Canceled)
			time.Sleep(2 * time.Second)
		}, 1},
		"released": {func(t *testing.T, s *spy, l *core.Locker) {
			ok(t, "Release", acquire(t, l, "k").Release(t.Context()))
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				log, m, s := &records{}, newMeters(), memorySpy()
				c.lose(t, s, locker(t, s, core.WithLogger(slog.New(log)), core.WithTelemetry(m, nil)))
				synctest.Wait()
				if lines, all := log.logged("WARN core: lock lost"); lines != c.want || all != c.want {
					t.Errorf("%d lines, want %d: %q", lines, c.want, log.text)
				}
				if n := m.read(t)["onelane.locks.lost{onelane.reason=gone}"]; n != int64(c.want) {
					t.Errorf("%d losses were counted, want %d", n, c.want)
				}
			})
		})
	}
}

// The lines left out of the log are counted in one when the Locker is closed.
func TestClose_FlushesTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &records{}
		l := locker(t, backendtest.Memory(), core.WithLogger(slog.New(log)), core.WithTTL(time.Second), core.WithMaxHold(0))
		for i := range 10 {
			acquire(t, l, strconv.Itoa(i))
		}
		time.Sleep(2 * time.Second)
		if lines, _ := log.logged("WARN core: lock lost"); lines != 1 {
			t.Errorf("%d lines, want one", lines)
		}
		ok(t, "Close", l.Close())
		if lines, all := log.logged("WARN core: lock lost"); lines != 2 || all != 10 {
			t.Errorf("%d lines about %d locks, want 2 about 10", lines, all)
		}
	})
}

// Code on top of a Locker, such as a middleware that refuses each request, floods no log either.
func TestLogger_IsLimited(t *testing.T) {
	t.Parallel()
	log := &records{}
	l := locker(t, backendtest.Memory(), core.WithLogger(slog.New(log)))
	for range 100 {
		for _, route := range []string{"/orders", "/payments"} {
			l.Logger().Error("shop: no lock", "route", route)
		}
	}
	if lines, _ := log.logged("ERROR shop: no lock"); lines != 2 {
		t.Errorf("%d lines, want one for each route", lines)
	}
}

// A slow log slows no lock: Do returns although the log blocks.
func TestLogs_SlowLogAtAFailedRelease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memorySpy()
		s.on("release", away)
		l := locker(t, s, core.WithLogger(slog.New(&busyHandler{Handler: slog.DiscardHandler})))
		start := time.Now()
		ok(t, "Do", l.Do(t.Context(), "k", nothing))
		if took := time.Since(start); took > time.Second {
			t.Errorf("Do took %v", took)
		}
		time.Sleep(time.Hour)
	})
}
