package redisbackend

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

const (
	// confirmWait is how long Watch waits for the server's confirmation. A later one is a signal.
	confirmWait = 250 * time.Millisecond
	// channelLinger is how long a channel without waiters stays subscribed. It is longer than a turn
	// of core: a confirmation at its end would be taken for a release.
	channelLinger = 300 * time.Millisecond
	// firstAlone is for how long the waiter that a release names is the only one to be signaled. All
	// at once would keep each other from the key, and the machine from the holder.
	firstAlone = time.Millisecond
	// failedFor is longer than the pause after which a waiter subscribes again.
	failedFor = time.Minute
)

var (
	errWakesClosed  = errors.New("redisbackend: the backend is closed")
	errUnsubscribed = errors.New("redisbackend: the subscription ended")
)

// connect opens a pub/sub connection.
type connect = func(ctx context.Context, heard func(driver.Event)) (driver.PubSub, error)

// wakes wakes the waiters of one Redis. Its one pub/sub connection is made for the first waiter and
// stays for a while after the last.
type wakes struct {
	connect connect
	self    string // the message of this backend's own releases
	moves   bool   // a key may move to another Redis: a connection that ends is not replaced

	mu       sync.Mutex
	sharded  bool
	channels map[string]*channel
	session  *session // nil without a connection
	pause    time.Duration
	closed   bool
	failed   time.Time // when waiters last got no subscription, or zero after one that did
}

// channel is what the waiters of one key listen to. Guarded by wakes.mu.
type channel struct {
	watchers  map[*watcher]bool
	ready     chan struct{} // closed when the server confirmed or refused the subscription
	settled   bool
	err       error     // why it was refused.
	sent      bool      // the subscription was sent on this connection.
	confirmed bool      // by the server, on this connection.
	leaving   int       // confirmations of our own UNSUBSCRIBE that are under way
	idle      time.Time // since when nobody watches
}

type watcher struct {
	changed chan struct{}
	told    bool // Watch has returned
}

func newWakes(connect connect, self string, sharded bool) *wakes {
	return &wakes{connect: connect, self: self, sharded: sharded, channels: make(map[string]*channel)}
}

// watch signals changed, which has room for one signal, after a message on the channel and when one
// may have been missed. If the subscription ends for good, changed is closed.
func (w *wakes) watch(ctx context.Context, name string, changed chan struct{}) (stop func(), err error) {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return func() {}, errWakesClosed
	}
	c := w.channels[name]
	if c == nil {
		c = newChannel()
		w.channels[name] = c
	}
	me := &watcher{changed: changed}
	c.watchers[me] = true
	if w.session == nil {
		w.session = newSession(w)
		go w.session.run(0)
	}
	if !c.sent {
		signal(w.session.kicked)
	}
	w.mu.Unlock()

	select {
	case <-c.ready:
	case <-time.After(confirmWait):
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.err != nil {
		c.leave(me)
		return func() {}, c.err
	}
	if !c.watchers[me] { // the subscription ended just now
		return func() {}, errUnsubscribed
	}
	me.told = true
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		c.leave(me)
	}, nil
}

func newChannel() *channel {
	return &channel{watchers: make(map[*watcher]bool), ready: make(chan struct{})}
}

func (c *channel) leave(me *watcher) {
	delete(c.watchers, me)
	c.idle = time.Now()
}

// down reports whether waiters get no signals now. If nobody tries any more, that is soon
// forgotten.
func (w *wakes) down() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.failed.IsZero() && (len(w.channels) > 0 || time.Since(w.failed) < failedFor)
}

// awaited reports whether anybody waits for a signal. w.mu is held.
func (w *wakes) awaited() bool {
	for _, c := range w.channels {
		if len(c.watchers) > 0 {
			return true
		}
	}
	return false
}

// settle lets the callers of watch return. wakes.mu is held.
func (c *channel) settle(err error) {
	if !c.settled {
		c.settled, c.err = true, err
		close(c.ready)
	}
}

// signal tells the watchers that the key may have changed. wakes.mu is held.
func (c *channel) signal() {
	for me := range c.watchers {
		if me.told {
			signal(me.changed)
		}
	}
}

// end tells the watchers that there will be no more signals. wakes.mu is held.
func (c *channel) end(err error) {
	c.settle(err)
	for me := range c.watchers {
		if me.told {
			close(me.changed)
		}
	}
	clear(c.watchers)
}

// heard passes on what the server sent.
func (w *wakes) heard(e driver.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.channels[e.Channel]
	if c == nil {
		return
	}
	switch e.Kind {
	case "message", "smessage":
		from, first, _ := strings.Cut(e.Payload, " ")
		switch {
		case from == w.self:
		case first == "" || strings.HasPrefix(first, w.self+" "):
			c.signal()
		default:
			time.AfterFunc(firstAlone, func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				c.signal()
			})
		}
	case "subscribe", "ssubscribe":
		w.failed = time.Time{}
		if c.leaving == 0 {
			c.confirmed = true
			c.settle(nil)
			c.signal() // something may have changed before it
		}
	case "unsubscribe", "sunsubscribe":
		if c.leaving > 0 {
			c.leaving--
			return
		}
		// By the server: the slot went to another shard.
		delete(w.channels, e.Channel)
		c.end(errUnsubscribed)
	}
}

// interrupted is called when a connection ended: messages may be lost.
func (w *wakes) interrupted() {
	for name, c := range w.channels {
		c.sent, c.confirmed, c.leaving = false, false, 0
		switch {
		case w.moves:
			delete(w.channels, name)
			c.end(errUnsubscribed)
		case len(c.watchers) == 0:
			delete(w.channels, name)
		default:
			c.signal()
		}
	}
}

// refused ends the subscriptions that the server does not allow.
func (w *wakes) refused(err error) {
	w.failed = time.Now()
	for name, c := range w.channels {
		if !c.confirmed {
			delete(w.channels, name)
			c.end(err)
		}
	}
}

func (w *wakes) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for name, c := range w.channels {
		delete(w.channels, name)
		c.end(errWakesClosed)
	}
	if w.session != nil {
		w.session.cancel()
	}
}

// channel returns where the waiters of a key listen.
func (n *node) channel(key string) string { return channelName(key, n.sharded) }

func channelName(key string, sharded bool) string {
	if sharded {
		return companion(key, "free:s")
	}
	return companion(key, "free")
}

// watch is wakes.watch for a key.
func (n *node) watch(ctx context.Context, key string, changed chan struct{}) (stop func(), err error) {
	return n.wakes.watch(ctx, n.channel(key), changed)
}

// freed signals those who watch now, after a release of this backend itself. Its message is
// ignored: it could come when the next waiter of this process leaves the key to others.
func (n *node) freed(channel string) {
	if n.wakes == nil {
		return
	}
	n.wakes.mu.Lock()
	defer n.wakes.mu.Unlock()
	if c := n.wakes.channels[channel]; c != nil {
		c.signal()
	}
}

// subscribed reports whether a key's channel is subscribed already.
func (n *node) subscribed(key string) bool {
	n.wakes.mu.Lock()
	defer n.wakes.mu.Unlock()
	c := n.wakes.channels[n.channel(key)]
	return c != nil && c.confirmed
}
