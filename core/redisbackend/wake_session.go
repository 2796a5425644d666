package redisbackend

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

const (
	// A connection that was silent for pingEvery is tested. If nothing comes within pongWait, it is
	// replaced: its other end may be gone without a word.
	pingEvery = 750 * time.Millisecond
	pongWait  = 750 * time.Millisecond
	wakeTick  = 125 * time.Millisecond
	writeWait = time.Second
	// sessionLinger is how long a connection without channels stays for the next waiter.
	sessionLinger = 45 * time.Second

	firstSessionPause   = 10 * time.Millisecond
	longestSessionPause = time.Second
)

// session is one pub/sub connection from its first subscription to its end.
type session struct {
	wakes  *wakes
	began  time.Time
	kicked chan struct{} // the channels changed
	ended  chan struct{}
	cancel context.CancelFunc
	ctx    context.Context

	// Guarded by wakes.mu.
	heard   time.Time // the last message
	awaited time.Time // since when an answer is due, or zero
	unused  time.Time // since when there are no channels, or zero
}

func newSession(w *wakes) *session {
	s := &session{wakes: w, kicked: make(chan struct{}, 1), ended: make(chan struct{}), began: time.Now(), heard: time.Now()}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// run subscribes and listens until the connection ends, nobody waits any more, or the backend is
// closed. If it is still needed then, another session follows.
func (s *session) run(wait time.Duration) {
	if wait > 0 {
		pause(s.ctx, wait)
	}
	defer s.wakes.over()
	defer s.cancel()
	sub, err := s.wakes.connect(s.ctx, s.hear)
	if err != nil {
		return
	}
	s.write(sub)
	sub.Close()
	<-s.ended
}

// over replaces a session that ended.
func (w *wakes) over() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.awaited() {
		w.failed = time.Now()
	}
	w.interrupted()
	w.session = nil
	if w.closed || len(w.channels) == 0 {
		w.pause = 0
		return
	}
	w.pause = min(max(2*w.pause, firstSessionPause), longestSessionPause)
	w.session = newSession(w)
	signal(w.session.kicked)
	go w.session.run(w.pause)
}

// hear passes on what the server sends, and ends the session with the connection.
func (s *session) hear(e driver.Event) {
	if e.Err != nil {
		s.failed(e.Err)
		s.cancel()
		close(s.ended)
		return
	}
	s.wakes.mu.Lock()
	s.heard, s.awaited = time.Now(), time.Time{}
	if s.heard.Sub(s.began) > longestSessionPause {
		s.wakes.pause = 0
	}
	s.wakes.mu.Unlock()
	s.wakes.heard(e)
}

// failed notes why a connection ended.
func (s *session) failed(err error) {
	w := s.wakes
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !isServerReply(err):
	case w.sharded && isUnknownCommand(err):
		w.sharded = false // before Redis 7
	default:
		w.refused(err)
	}
}

// write subscribes to new channels, leaves old ones and tests the connection.
func (s *session) write(sub driver.PubSub) {
	tick := time.NewTicker(wakeTick)
	defer tick.Stop()
	for {
		select {
		case <-s.kicked:
		case <-tick.C:
		case <-s.ctx.Done():
			return
		}
		if err := s.update(sub); err != nil {
			s.failed(err)
			return
		}
	}
}

var (
	errSessionOver = errors.New("redisbackend: the connection is not needed any more")
	errSilent      = errors.New("redisbackend: the connection is silent")
)

// update sends what is due now.
func (s *session) update(sub driver.PubSub) error {
	join, leave, sharded, ping, err := s.due(time.Now())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.ctx, writeWait)
	defer cancel()
	most := len(leave) + len(join) + 1
	if sharded { // the channels may be of different slots
		most = 1
	}
	for part := range slices.Chunk(leave, most) {
		if err := sub.Unsubscribe(ctx, sharded, part...); err != nil {
			return err
		}
	}
	for part := range slices.Chunk(join, most) {
		if err := sub.Subscribe(ctx, sharded, part...); err != nil {
			return err
		}
	}
	if ping {
		return sub.Ping(ctx)
	}
	return nil
}

// due returns what the session has to send, or an error if it is over.
func (s *session) due(now time.Time) (join, leave []string, sharded, ping bool, err error) {
	w := s.wakes
	w.mu.Lock()
	defer w.mu.Unlock()
	watched := false
	for name, c := range w.channels {
		switch {
		case len(c.watchers) > 0:
			watched = true
			if !c.sent {
				c.sent = true
				join = append(join, name)
			}
		case c.sent && now.Sub(c.idle) > channelLinger:
			// The channel stays known until the server has confirmed that.
			c.sent, c.confirmed = false, false
			c.leaving++
			leave = append(leave, name)
		case !c.sent && c.leaving == 0:
			delete(w.channels, name)
		}
	}
	switch {
	case !s.awaited.IsZero() && now.Sub(s.awaited) > pongWait:
		return nil, nil, false, false, errSilent
	case len(w.channels) > 0:
		s.unused = time.Time{}
	case s.unused.IsZero():
		s.unused = now
	case now.Sub(s.unused) > sessionLinger:
		return nil, nil, false, false, errSessionOver
	}
	ping = watched && s.awaited.IsZero() && now.Sub(s.heard) > pingEvery && len(join) == 0
	if (ping || len(join) > 0) && s.awaited.IsZero() {
		s.awaited = now
	}
	return join, leave, w.sharded, ping, nil
}
