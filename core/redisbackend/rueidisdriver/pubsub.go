package rueidisdriver

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"

	"github.com/redis/rueidis"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

// pubSub is a pub/sub connection.
type pubSub struct {
	*dedicated

	mu    sync.Mutex
	heard func(driver.Event) // nil after the last event
}

func newPubSub(d *dedicated, heard func(driver.Event)) *pubSub {
	s := &pubSub{dedicated: d, heard: heard}
	over := d.client.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage: func(m rueidis.PubSubMessage) {
			s.pass(driver.Event{Kind: "message", Channel: m.Channel, Payload: m.Message})
		},
		OnSubscription: func(m rueidis.PubSubSubscription) {
			s.pass(driver.Event{Kind: m.Kind, Channel: m.Channel})
		},
	})
	go func() {
		s.pass(driver.Event{Err: cmp.Or(<-over, net.ErrClosed)})
	}()
	return s
}

func (s *pubSub) pass(e driver.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.heard == nil {
		return
	}
	s.heard(e)
	if e.Err != nil {
		s.heard = nil
	}
}

func (s *pubSub) Subscribe(ctx context.Context, sharded bool, channels ...string) error {
	if sharded {
		return s.send(ctx, s.client.B().Ssubscribe().Channel(channels...).Build())
	}
	return s.send(ctx, s.client.B().Subscribe().Channel(channels...).Build())
}

func (s *pubSub) Unsubscribe(ctx context.Context, sharded bool, channels ...string) error {
	if sharded {
		return s.send(ctx, s.client.B().Sunsubscribe().Channel(channels...).Build())
	}
	return s.send(ctx, s.client.B().Unsubscribe().Channel(channels...).Build())
}

func (s *pubSub) send(ctx context.Context, c rueidis.Completed) error {
	err := s.client.Do(ctx, c).Error()
	if refused, is := rueidis.IsRedisErr(err); is && !refused.IsNil() {
		return replyError(err)
	}
	return err
}

// Ping does not send PING: for RESP2, rueidis has another connection for pub/sub, which only the
// commands of pub/sub reach. It waits for the answer to UNSUBSCRIBE, even if that is an error.
func (s *pubSub) Ping(ctx context.Context) error {
	err := s.Unsubscribe(ctx, false, "onelane:ping")
	if errors.As(err, new(driver.ReplyError)) {
		err = nil
	}
	if err == nil {
		s.pass(driver.Event{})
	}
	return err
}

func (s *pubSub) Close() { s.close() }
