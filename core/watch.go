package core

import (
	"context"
	"time"
)

const (
	firstWatchPause   = time.Second // between subscriptions that fail
	longestWatchPause = 30 * time.Second

	// If the lease is the same after a signal, the signal was about another key. Channels of Redis have
	// no database, so a key of that name may be in each. The pause before the next question grows.
	firstVainPause   = time.Millisecond
	longestVainPause = 16 * time.Millisecond
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

	woken  bool   // a signal came since the last answer
	holder string // of the last answer
	vain   time.Duration
}

// begin subscribes, if that is due. It reports whether it has just done so.
func (w *watch) begin(ctx context.Context) bool {
	now := time.Now()
	if w.polls || w.changed != nil || now.Before(w.retry) {
		return false
	}
	w.stop()
	changed, cancel, err := w.backend.Watch(ctx, w.name)
	if err != nil && ctx.Err() != nil {
		return false // there was no time for it
	}
	if err != nil {
		w.pause = longer(w.pause, firstWatchPause, longestWatchPause)
		w.retry = now.Add(w.pause)
		return false
	}
	w.changed, w.cancel, w.polls = changed, cancel, changed == nil
	w.begun = now
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

// taken notes which lease was found.
func (w *watch) taken(holder string) {
	if w.vain = longer(w.vain, firstVainPause, longestVainPause); !w.woken || holder != w.holder {
		w.vain = 0
	}
	w.holder, w.woken = holder, false
}

func (w *watch) stop() {
	if w.cancel != nil {
		w.cancel()
		w.cancel = nil
	}
}
