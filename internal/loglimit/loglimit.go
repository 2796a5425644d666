// Package loglimit keeps one problem that affects many keys from flooding the log. The first line
// of a message is written at once. Further ones follow at most once per Interval: the last of them,
// with how many others were left out.
package loglimit

import (
	"context"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// Interval is the time between two lines of one message.
	Interval = 10 * time.Second

	// maxSeries bounds how many messages are counted apart. Beyond it, labels do not count, and
	// beyond twice of it all further messages count as one.
	maxSeries = 1024
	// sweepPause is the time between two searches for series that are over.
	sweepPause = time.Second
	// maxQueue bounds the lines of Later that a slow log has not taken yet. Lines above DEBUG have as
	// much room again: details do not push them out.
	maxQueue = 1024
)

// labels are the attributes that separate lines of one message: a problem of one Redis must not
// hide another Redis's problem. None of them is a key.
var labels = []string{"redis", "reason", "route", "method", "job"}

// New returns a logger that writes to l and does not flood it. If l is such a logger, New returns
// l. Lines at DEBUG are not limited. If the log takes DEBUG, it gets each line that is left out at
// that level.
func New(l *slog.Logger) *slog.Logger {
	if _, ok := l.Handler().(*handler); ok {
		return l
	}
	return slog.New(&handler{l.Handler(), &limiter{series: make(map[string]*series), pen: make(chan struct{}, 1)}, ""})
}

// Later logs a line without waiting for it to be written. It is for callers that hold a mutex.
func Later(l *slog.Logger, level slog.Level, message string, args ...any) {
	ctx := context.Background()
	if !l.Enabled(ctx, level) {
		return
	}
	var caller [1]uintptr
	runtime.Callers(2, caller[:])
	record := slog.NewRecord(time.Now(), level, message, caller[0])
	record.Add(args...)
	h := New(l).Handler().(*handler)
	if n := (line{ctx, h.Handler, h.labels, record}); h.limiter.admits(&n) {
		h.limiter.enqueue(n)
	}
}

// Flush writes what was left out so far. Call it before the process ends.
func Flush(l *slog.Logger) {
	if h, ok := l.Handler().(*handler); ok {
		h.limiter.flush()
	}
}

type handler struct {
	slog.Handler
	limiter *limiter
	labels  string // of the logger, as in a series' name
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	if n := (line{ctx, h.Handler, h.labels, r}); h.limiter.admits(&n) {
		return n.write()
	}
	return nil
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	names := h.labels
	for _, a := range attrs {
		names = withLabel(names, a)
	}
	return &handler{h.Handler.WithAttrs(attrs), h.limiter, names}
}

func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.Handler.WithGroup(name), h.limiter, h.labels}
}

type line struct {
	ctx    context.Context
	out    slog.Handler
	labels string
	record slog.Record
}

func (n *line) write() error { return n.out.Handle(n.ctx, n.record) }

// series is one message with its labels.
type series struct {
	until   time.Time   // no line before it
	last    line        // that was left out
	leftOut int         // since the last line
	timer   *time.Timer // writes last; nil if nothing is left out
}

type limiter struct {
	mu      sync.Mutex
	series  map[string]*series
	swept   time.Time // when series that are over were removed
	queue   []line
	writing bool // a goroutine writes the queue

	pen chan struct{} // has one element while lines of the queue are written
}

// admits reports whether to write a line now. A line that is left out may be written at DEBUG.
func (l *limiter) admits(n *line) bool {
	if n.record.Level <= slog.LevelDebug || l.counts(n) {
		return true
	}
	n.record.Level = slog.LevelDebug
	return n.out.Enabled(n.ctx, slog.LevelDebug)
}

// counts reports whether a line is the first of its series for an Interval.
func (l *limiter) counts(n *line) bool {
	name := n.name()
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	s := l.series[name]
	if s == nil && len(l.series) >= maxSeries {
		l.sweep(now)
		if len(l.series) >= maxSeries {
			name = n.record.Message
			s = l.series[name]
		}
		if s == nil && len(l.series) >= 2*maxSeries {
			name = ""
			s = l.series[name]
		}
	}
	if s == nil {
		s = new(series)
		l.series[name] = s
	}
	if s.timer == nil && !now.Before(s.until) {
		s.until = now.Add(Interval)
		return true
	}
	s.last = *n
	s.leftOut++
	if s.timer == nil {
		s.timer = time.AfterFunc(s.until.Sub(now), func() { l.summarize(s) })
	}
	return false
}

// sweep removes series that are over, now and then.
func (l *limiter) sweep(now time.Time) {
	if now.Sub(l.swept) < sweepPause {
		return
	}
	l.swept = now
	for name, s := range l.series {
		if s.timer == nil && !now.Before(s.until) {
			delete(l.series, name)
		}
	}
}

// name is the message with its labels.
func (n *line) name() string {
	name := n.record.Message + n.labels
	n.record.Attrs(func(a slog.Attr) bool {
		name = withLabel(name, a)
		return true
	})
	return name
}

func withLabel(name string, a slog.Attr) string {
	if slices.Contains(labels, a.Key) {
		return strings.Join([]string{name, a.Key, a.Value.String()}, "\x00")
	}
	return name
}

// summarize writes the last line that was left out. While a slow log writes it, further ones count.
func (l *limiter) summarize(s *series) {
	l.mu.Lock()
	n, leftOut := s.last, s.leftOut
	s.last, s.leftOut = line{}, 0
	l.mu.Unlock()
	if leftOut > 0 {
		n.record = n.record.Clone()
		if leftOut > 1 {
			n.record.AddAttrs(slog.Int("left_out", leftOut-1))
		}
		_ = n.write() // as slog does with errors of a handler
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.until = time.Now().Add(Interval)
	if s.leftOut > 0 {
		s.timer.Reset(Interval)
	} else {
		s.timer = nil
	}
}

// enqueue gives a line to the goroutine that writes for callers of Later.
func (l *limiter) enqueue(n line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	room := maxQueue
	if n.record.Level > slog.LevelDebug {
		room *= 2
	}
	if len(l.queue) >= room {
		return
	}
	l.queue = append(l.queue, n)
	if !l.writing {
		l.writing = true
		go l.drain()
	}
}

func (l *limiter) drain() {
	for l.writeNext() {
	}
}

// writeNext writes the first line of the queue. It returns false if there was none.
func (l *limiter) writeNext() bool {
	l.pen <- struct{}{}
	defer func() { <-l.pen }()
	l.mu.Lock()
	if len(l.queue) == 0 {
		l.queue, l.writing = nil, false
		l.mu.Unlock()
		return false
	}
	n := l.queue[0]
	l.queue = l.queue[1:]
	l.mu.Unlock()
	_ = n.write()
	return true
}

func (l *limiter) flush() {
	l.pen <- struct{}{} // after the line that is being written
	defer func() { <-l.pen }()
	l.mu.Lock()
	queue := l.queue
	l.queue = nil
	var due []*series
	for _, s := range l.series {
		// A timer that has fired writes by itself.
		if s.timer != nil && s.timer.Stop() {
			due = append(due, s)
		}
	}
	l.mu.Unlock()
	for _, n := range queue {
		_ = n.write()
	}
	for _, s := range due {
		l.summarize(s)
	}
}
