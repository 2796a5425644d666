package loglimit_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/internal/loglimit"
)

// book is a slog.Handler that keeps what it gets. It can be slow.
type book struct {
	slog.Handler
	level slog.Level
	slow  time.Duration
	mu    sync.Mutex
	lines []string
	now   int // lines being written
	most  int
}

func newBook(level slog.Level) *book { return &book{Handler: slog.DiscardHandler, level: level} }

func (b *book) Enabled(_ context.Context, l slog.Level) bool { return l >= b.level }

func (b *book) Handle(_ context.Context, r slog.Record) error {
	text := r.Level.String() + " " + r.Message
	r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	b.mu.Lock()
	b.lines = append(b.lines, text)
	b.now++
	b.most = max(b.most, b.now)
	b.mu.Unlock()
	time.Sleep(b.slow)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now--
	return nil
}

func (b *book) WithAttrs([]slog.Attr) slog.Handler { return b }

func (b *book) want(t *testing.T, lines ...string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.lines, lines) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(b.lines, "\n"), strings.Join(lines, "\n"))
	}
	b.lines = nil
}

func TestNew_FirstLineAtOnceThenOnePerInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBook(slog.LevelInfo)
		l := loglimit.New(slog.New(b))
		for i := range 50_000 {
			l.Warn("lost", "key", i)
		}
		b.want(t, "WARN lost key=0")
		time.Sleep(loglimit.Interval)
		synctest.Wait()
		b.want(t, "WARN lost key=49999 left_out=49998")
		l.Warn("lost", "key", "soon")
		b.want(t)
		time.Sleep(2 * loglimit.Interval)
		synctest.Wait()
		b.want(t, "WARN lost key=soon")
		l.Warn("lost", "key", "late")
		b.want(t, "WARN lost key=late")
	})
}

func TestNew_TellsLabelsApart(t *testing.T) {
	t.Parallel()
	b := newBook(slog.LevelInfo)
	l := loglimit.New(slog.New(b))
	for range 3 {
		for _, redis := range []string{"a:1", "b:1"} {
			l.Warn("down", "redis", redis, "key", "k")
			l.Info("up", "redis", redis)
		}
	}
	b.want(t, "WARN down redis=a:1 key=k", "INFO up redis=a:1", "WARN down redis=b:1 key=k", "INFO up redis=b:1")
}

func TestNew_DebugHasEachLine(t *testing.T) {
	t.Parallel()
	b := newBook(slog.LevelDebug)
	l := loglimit.New(slog.New(b))
	for i := range 3 {
		l.Warn("lost", "key", i)
		l.Debug("detail", "key", i)
	}
	b.want(t, "WARN lost key=0", "DEBUG detail key=0", "DEBUG lost key=1", "DEBUG detail key=1", "DEBUG lost key=2", "DEBUG detail key=2")
}

func TestFlush(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBook(slog.LevelInfo)
		l := loglimit.New(loglimit.New(slog.New(b)))
		for i := range 5 {
			l.Warn("lost", "key", i)
		}
		loglimit.Flush(l)
		loglimit.Flush(l)
		time.Sleep(time.Minute)
		b.want(t, "WARN lost key=0", "WARN lost key=4 left_out=3")
	})
}

// A log that takes a minute for a line costs two goroutines, and no caller of Later waits.
// The process may end after Flush. The line that Later's goroutine has in hand is written by then.
func TestFlush_WaitsForTheLineInHand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBook(slog.LevelInfo)
		b.slow = time.Second
		l := loglimit.New(slog.New(b))
		loglimit.Later(l, slog.LevelWarn, "lost", "key", 1)
		synctest.Wait() // its goroutine writes it
		loglimit.Flush(l)
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.now > 0 {
			t.Errorf("Flush returned while %d lines were being written", b.now)
		}
	})
}

func TestLater_SlowLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBook(slog.LevelInfo)
		b.slow = time.Minute
		l := loglimit.New(slog.New(b))
		began := time.Now()
		for i := range 1000 {
			loglimit.Later(l, slog.LevelWarn, "lost", "key", i)
			loglimit.Later(l, slog.LevelInfo, "found", "key", i)
			loglimit.Later(l, slog.LevelDebug, "seen", "key", i)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("Later took %v", took)
		}
		for range 1000 {
			time.Sleep(100 * time.Millisecond)
			loglimit.Later(l, slog.LevelWarn, "lost", "key", "again")
		}
		time.Sleep(time.Hour)
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.most > 3 {
			t.Errorf("%d lines were written at a time", b.most)
		}
		if n := len(b.lines); n < 4 || n > 8 {
			t.Errorf("%d lines: %q", n, b.lines)
		}
	})
}

// Many thousand routes cost little memory, and each message is still limited.
func TestNew_ManyLabels(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // on a busy machine, the summaries would come meanwhile
		b := newBook(slog.LevelInfo)
		l := loglimit.New(slog.New(b))
		for i := range 10_000 {
			l.Warn("refused", "route", fmt.Sprint("/", i))
		}
		if n := len(b.lines); n < 1024 || n > 1025 {
			t.Errorf("%d lines", n)
		}
	})
}

// Details at DEBUG that a slow log has not taken yet do not push out another message.
func TestLater_DetailsPushNothingOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBook(slog.LevelDebug)
		b.slow = time.Millisecond
		l := loglimit.New(slog.New(b))
		for i := range 5000 {
			loglimit.Later(l, slog.LevelWarn, "lost", "reason", "expired", "key", i)
		}
		loglimit.Later(l, slog.LevelWarn, "lost", "reason", "gone", "key", "k")
		time.Sleep(time.Hour)
		b.mu.Lock()
		defer b.mu.Unlock()
		if !slices.Contains(b.lines, "WARN lost reason=gone key=k") {
			t.Errorf("%d lines, and none of the second reason", len(b.lines))
		}
		if n := len(b.lines); n > 3000 {
			t.Errorf("%d lines were kept for a slow log", n)
		}
	})
}

// A label of the logger counts like one of the line.
func TestNew_LabelsOfTheLogger(t *testing.T) {
	t.Parallel()
	b := newBook(slog.LevelInfo)
	l := loglimit.New(slog.New(b))
	for range 2 {
		l.With("route", "/orders", "user", 7).Warn("refused")
		l.With("route", "/payments", "user", 8).Warn("refused")
		l.With("route", "/payments").With("user", 9).Warn("refused")
		l.Warn("refused", "route", "/payments")
	}
	b.want(t, "WARN refused", "WARN refused") // one for each route
}

// Many thousand messages cost little memory, too, and are limited.
func TestNew_ManyMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // on a busy machine, the summaries would come meanwhile
		b := newBook(slog.LevelInfo)
		l := loglimit.New(slog.New(b))
		for i := range 50_000 {
			l.Warn(fmt.Sprint("refused ", i), "route", "/orders")
		}
		if n := len(b.lines); n > 2049 {
			t.Errorf("%d lines", n)
		}
	})
}
