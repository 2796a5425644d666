package core

import (
	"context"
	"time"
)

const (
	firstWatchPause   = time.Second // between subscriptions that fail
	longestWatchPause = 30 * time.Second

	// A signal wakes the waiters of all processes at once. The one that heard the most signals goes
	// first. The others wait up to politeRounds units, and a unit is a small part of the time
	// between two signals.
	politeRounds  = 3
	longestPolite = 200 * time.Microsecond
	politePart    = 64
)

// watch is a head's subscription to its key.
type watch struct {
	backend Backend
	name    string
	changed <-chan struct{} // nil while not subscribed
	cancel  func()
	polls   bool // the backend cannot tell
	begun   time.Time
	retry   time.Time
	pause   time.Duration

	signals int       // heard without getting the key
	since   time.Time // of the last signal, or of the subscription
}

// begin subscribes, if that is due. It reports whether it has just done so.
func (w *watch) begin(ctx context.Context) bool {
	now := time.Now()
	if w.polls || w.changed != nil || now.Before(w.retry) {
		return false
	}
	w.stop()
	changed, cancel, err := w.backend.Watch(ctx, w.name)
	if err != nil {
		w.pause = longer(w.pause, firstWatchPause, longestWatchPause)
		w.retry = now.Add(w.pause)
		return false
	}
	w.changed, w.cancel, w.polls = changed, cancel, changed == nil
	w.begun, w.since = now, now
	return !w.polls
}

func (w *watch) active() bool { return w.changed != nil }

// ended says that the channel was closed. The head polls until it has subscribed again. After a
// subscription that did not last, that takes a while.
func (w *watch) ended() {
	w.changed = nil
	now := time.Now()
	if now.Sub(w.begun) >= firstWatchPause {
		w.pause = 0
		return
	}
	w.pause = longer(w.pause, firstWatchPause, longestWatchPause)
	w.retry = now.Add(w.pause)
}

// heard counts a signal and returns how long the head lets others go first.
func (w *watch) heard() time.Duration {
	now := time.Now()
	unit := min(now.Sub(w.since)/politePart, longestPolite)
	polite := unit * time.Duration(max(politeRounds-w.signals, 0))
	w.signals, w.since = w.signals+1, now
	return polite
}

func (w *watch) stop() {
	if w.cancel != nil {
		w.cancel()
		w.cancel = nil
	}
}
