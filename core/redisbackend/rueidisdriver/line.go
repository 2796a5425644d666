package rueidisdriver

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

const (
	// mostInFlight is how many calls are under way on a connection at most, with those that were
	// given up. Rueidis has room for 1024; a call that finds none there could not be given up.
	mostInFlight = 256
	// connectWait is how long calls wait for a connection, or their time-out if that is longer. After
	// that they fail at once, until it is there.
	connectWait = time.Second
	// A dial that failed is not repeated before firstDialPause, then longer, up to longestDialPause.
	firstDialPause   = 5 * time.Millisecond
	longestDialPause = 250 * time.Millisecond
	// A connection on which a call was given up is replaced if it stays silent for pongWait.
	pongWait = 250 * time.Millisecond
	// pingWait is how long a new connection has for its first answer.
	pingWait = 5 * time.Second
)

var errConnecting = errors.New("rueidisdriver: still connecting")

// line is a connection for many callers, which is made in the background and replaced if it breaks.
type line struct {
	open    func() (*wire, error)
	current atomic.Pointer[wire]
	closed  atomic.Bool

	mu      sync.Mutex
	opened  chan struct{} // closed when the connection being made is there, or has failed.
	waiting int           // calls that wait for it.
	since   time.Time     // when that began.
	failed  error         // of the last one, nil after a success
	retry   time.Time     // no other before it
	pause   time.Duration
}

// do sends commands and returns the first one's error.
func (l *line) do(ctx context.Context, commands []*driver.Command) (late <-chan struct{}, err error) {
	if err := ctx.Err(); err != nil {
		return nil, driver.NotSent(err)
	}
	w, err := l.wire(ctx)
	if err != nil {
		return nil, driver.NotSent(err)
	}
	select {
	case w.places <- struct{}{}:
	default:
		select {
		case w.places <- struct{}{}:
		case <-ctx.Done():
			return nil, driver.NotSent(ctx.Err())
		}
	}
	err = w.do(ctx, commands)
	switch {
	case err == nil:
		// The next one may lead there, too, so a new one is kept for a while.
		if time.Since(w.made) > longestDialPause && driver.FromReplica(commands) {
			l.drop(w)
		}
		l.leave(w)
		return nil, commands[0].Err
	case hasEnded(ctx):
		return l.follow(w), err
	default:
		l.drop(w)
		l.leave(w)
		return nil, broken(err)
	}
}

// leave ends a call on a connection.
func (l *line) leave(w *wire) {
	<-w.places
	if l.closed.Load() && len(w.places) == 0 {
		l.drop(w)
	}
}

// isIdle reports whether no call is under way.
func (l *line) isIdle() bool {
	w := l.current.Load()
	return w == nil || len(w.places) == 0
}

// hasEnded also notices a deadline that passed before ctx's timer fired. An error says less:
// rueidis gives the one that ended a connection to later calls, too.
func hasEnded(ctx context.Context) bool {
	end, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(end)
}

// follow returns a channel that is closed when the calls given up so far are over. Redis has then
// answered a command that was sent after them, or the connection has ended.
func (l *line) follow(w *wire) <-chan struct{} {
	late := make(chan struct{})
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), pongWait)
		defer cancel()
		if err := w.ping(ctx); err != nil {
			l.drop(w)
			w.close()
		}
		l.leave(w)
		close(late)
	}()
	return late
}

// wire returns the connection, or waits for it.
func (l *line) wire(ctx context.Context) (*wire, error) {
	w := l.current.Load()
	if w != nil && !w.isOld() {
		return w, nil
	}
	if w != nil {
		l.drop(w)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.current.Load(); w != nil { // just now
		return w, nil
	}
	now := time.Now()
	switch {
	case l.opened == nil && now.Before(l.retry):
		return nil, l.failed
	case l.opened == nil:
		l.opened, l.since = make(chan struct{}), now
		go l.connect(l.opened)
	case now.Sub(l.since) >= patience(ctx, now):
		return nil, errConnecting
	}
	return l.wait(ctx, l.opened)
}

// patience is how long a call waits for a connection.
func patience(ctx context.Context, now time.Time) time.Duration {
	end, ok := ctx.Deadline()
	if !ok {
		return connectWait
	}
	return max(connectWait, end.Sub(now))
}

// wait waits for the connection that is being made. l.mu is held.
func (l *line) wait(ctx context.Context, opened chan struct{}) (w *wire, err error) {
	l.waiting++
	l.mu.Unlock()
	select {
	case <-opened:
	case <-ctx.Done():
		err = ctx.Err()
	}
	l.mu.Lock()
	l.waiting--
	w = l.current.Load()
	switch {
	case err != nil:
		l.dropUnused(w)
		return nil, err
	case w != nil:
		return w, nil
	case l.failed != nil:
		return nil, l.failed
	default: // it was there, and broke
		return nil, errConnecting
	}
}

// connect makes a connection and puts it to use.
func (l *line) connect(opened chan struct{}) {
	w, err := l.open()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed, l.opened = err, nil
	if err != nil {
		l.pause = min(max(2*l.pause, firstDialPause), longestDialPause)
		l.retry = time.Now().Add(l.pause)
	} else {
		l.pause, l.retry = 0, time.Time{}
		l.current.Store(w)
	}
	close(opened)
	l.dropUnused(w)
}

// dropUnused ends a connection that was made after close, for a call that gave up. l.mu is held.
func (l *line) dropUnused(w *wire) {
	if w != nil && l.closed.Load() && l.waiting == 0 && len(w.places) == 0 {
		l.drop(w)
	}
}

// drop makes later calls use another connection. Calls under way on this one end first.
func (l *line) drop(w *wire) {
	if l.current.CompareAndSwap(w, nil) {
		go w.close()
	}
}

// close ends the connection. Late releases make another one, and end it when they are done.
func (l *line) close() {
	l.closed.Store(true)
	if w := l.current.Load(); w != nil {
		l.drop(w)
	}
}

// wire is one connection to Redis.
type wire struct {
	client  rueidis.DedicatedClient
	release func()
	made    time.Time
	places  chan struct{} // one for each call under way
	once    sync.Once

	// For a Redis that Sentinel names.
	address string
	moved   func() string // returns the present address
	until   atomic.Int64  // when to look at it
}

// do sends commands. The error is the connection's or ctx's.
func (w *wire) do(ctx context.Context, commands []*driver.Command) error {
	b := w.client.B()
	if len(commands) == 1 {
		return take(commands[0], w.client.Do(ctx, build(b, commands[0])))
	}
	all := make([]rueidis.Completed, len(commands))
	for i, c := range commands {
		all[i] = build(b, c)
	}
	var first error
	for i, r := range w.client.DoMulti(ctx, all...) {
		if err := take(commands[i], r); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// ping asks for any answer, also an error of the ACL.
func (w *wire) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pingWait)
	defer cancel()
	return w.client.Do(ctx, w.client.B().Ping().Build()).NonRedisError()
}

// isOld reports whether Sentinel names another master now.
func (w *wire) isOld() bool {
	if w.moved == nil {
		return false
	}
	now := time.Now()
	// More than followTime is left if the clock was set back.
	if left := w.until.Load() - now.UnixNano(); left > 0 && left <= int64(followTime) {
		return false
	}
	w.until.Store(now.Add(followTime).UnixNano())
	return w.moved() != w.address
}

// close ends the connection: after the calls under way, but within about a second.
func (w *wire) close() {
	w.once.Do(func() {
		w.client.Close()
		w.release()
	})
}
