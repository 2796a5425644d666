package core

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	wakeTick   = 250 * time.Millisecond // how often the subscription looks for channels nobody waits on
	wakeLinger = 500 * time.Millisecond // how long a channel is kept for the next waiter
	wakePing   = 5 * time.Second        // how often a silent connection is tested
	closeGrace = 100 * time.Millisecond // how long Close waits for the connection to end
)

// wakes is a pub/sub connection to one Redis. It is made for the first waiter, and ends soon after the last.
type wakes struct {
	client redis.UniversalClient

	wire sync.Mutex // held while channels are added and removed on the wire, so that they keep their order

	mu       sync.Mutex // taken after wire where both are needed
	sharded  bool       // channels are of a shard of a cluster, and go with their slot
	sub      *redis.PubSub
	channels map[string]*channel
	closed   bool
}

// channel is what the waiters for one key listen to.
type channel struct {
	watchers map[chan struct{}]bool
	ready    chan struct{} // closed when the server has confirmed the subscription, or refused it
	err      error         // why it was refused
	settled  bool
	idle     time.Time // since when there are no watchers
}

func newWakes(client redis.UniversalClient) *wakes {
	return &wakes{client: client, channels: make(map[string]*channel)}
}

var errWakesClosed = errors.New("core: the backend is closed")

// watch signals changed, which has room for one signal, when there is a message on a channel and when one may have been missed.
// Where the subscription ends for good, changed is closed.
func (w *wakes) watch(ctx context.Context, name string, changed chan struct{}) (stop func(), err error) {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil, errWakesClosed
	}
	c := w.channels[name]
	if c == nil {
		c = &channel{watchers: make(map[chan struct{}]bool), ready: make(chan struct{})}
		w.channels[name] = c
		if w.sub == nil {
			w.sub = w.client.Subscribe(context.Background())
			go w.listen(w.sub)
		}
		go w.subscribe(w.sub, name, c)
	}
	c.watchers[changed] = true
	w.mu.Unlock()

	stop = func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(c.watchers, changed)
		c.idle = time.Now()
	}
	select {
	case <-c.ready:
		if c.err != nil {
			stop()
			return nil, c.err
		}
		return stop, nil
	case <-ctx.Done():
		stop()
		return nil, context.Cause(ctx)
	}
}

func (w *wakes) subscribe(sub *redis.PubSub, name string, c *channel) {
	w.wire.Lock()
	defer w.wire.Unlock()
	w.mu.Lock()
	send := sub.Subscribe
	if w.sharded {
		send = sub.SSubscribe
	}
	w.mu.Unlock()
	if err := send(context.Background(), name); err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		c.settle(err) // listen tries again; whoever waits now polls
	}
}

// settle lets the watchers go on. wakes.mu is held.
func (c *channel) settle(err error) {
	if !c.settled {
		c.settled, c.err = true, err
		close(c.ready)
	}
}

// listen receives until nobody waits any more.
func (w *wakes) listen(sub *redis.PubSub) {
	heard := time.Now()
	for pause := 10 * time.Millisecond; ; {
		msg, err := sub.ReceiveTimeout(context.Background(), wakeTick)
		var timeout net.Error
		switch {
		case err == nil:
			heard, pause = time.Now(), 10*time.Millisecond
			w.heard(msg)
		case errors.As(err, &timeout) && timeout.Timeout():
			if time.Since(heard) > wakePing {
				heard = time.Now()
				_ = sub.Ping(context.Background()) // a broken connection is replaced by the client
			}
		default: // interrupted: a message may be lost, and the client connects anew
			w.interrupted(err)
			if w.isSharded() { // the shard may be elsewhere: whoever waits asks the cluster
				w.end(sub)
				return
			}
			time.Sleep(pause)
			pause = min(2*pause, time.Second)
		}
		if w.sweep(sub) {
			return
		}
	}
}

// heard passes a message on. A confirmation counts as one: something may have changed before it.
func (w *wakes) heard(msg any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch m := msg.(type) {
	case *redis.Message:
		w.channels[m.Channel].signal()
	case *redis.Subscription:
		c := w.channels[m.Channel]
		switch {
		case c == nil:
		case m.Kind == "subscribe" || m.Kind == "ssubscribe":
			c.settle(nil)
			c.signal()
		case m.Kind == "sunsubscribe": // by the server: the slot went to another shard
			delete(w.channels, m.Channel)
			c.end()
		}
	}
}

// end tells the watchers that they are told nothing any more. wakes.mu is held.
func (c *channel) end() {
	c.settle(errMoved)
	for changed := range c.watchers {
		close(changed)
	}
	clear(c.watchers)
}

var errMoved = errors.New("core: the subscription ended")

func (c *channel) signal() {
	if c == nil {
		return
	}
	for changed := range c.watchers {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}

// interrupted lets everybody look for themselves.
func (w *wakes) interrupted(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sharded && err != nil && strings.Contains(err.Error(), "unknown command") {
		w.sharded = false // before Redis 7
	}
	for _, c := range w.channels {
		if serverReply(err) {
			c.settle(err) // not allowed to subscribe
		}
		c.signal()
	}
}

func (w *wakes) isSharded() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sharded
}

// end closes a connection with all that is subscribed on it.
func (w *wakes) end(sub *redis.PubSub) {
	w.mu.Lock()
	for name, c := range w.channels {
		delete(w.channels, name)
		c.end()
	}
	if w.sub == sub {
		w.sub = nil
	}
	w.mu.Unlock()
	_ = sub.Close()
}

// sweep leaves the channels that nobody has waited on for a while, and says whether that was the last of them.
func (w *wakes) sweep(sub *redis.PubSub) (over bool) {
	if !w.wire.TryLock() {
		return false // a subscription is under way
	}
	defer w.wire.Unlock()
	w.mu.Lock()
	var left []string
	for name, c := range w.channels {
		if len(c.watchers) == 0 && (time.Since(c.idle) > wakeLinger || c.err != nil) {
			left = append(left, name)
			delete(w.channels, name)
		}
	}
	over = len(w.channels) == 0 || w.closed
	if over && w.sub == sub {
		w.sub = nil
	}
	w.mu.Unlock()
	if over {
		_ = sub.Close()
		return true
	}
	if len(left) > 0 {
		if w.isSharded() {
			_ = sub.SUnsubscribe(context.Background(), left...)
		} else {
			_ = sub.Unsubscribe(context.Background(), left...)
		}
	}
	return false
}

func (w *wakes) close() error {
	w.mu.Lock()
	sub := w.sub
	w.closed = true
	for _, c := range w.channels {
		c.settle(errWakesClosed)
		c.signal()
	}
	w.mu.Unlock()
	if sub == nil {
		return nil
	}
	closed := make(chan struct{})
	go func() { // it waits while the client connects, and fails when listen has closed it
		_ = sub.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(closeGrace):
	}
	return nil
}

// unused says that nobody listens, and that the connection is gone.
func (w *wakes) unused() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sub == nil
}
