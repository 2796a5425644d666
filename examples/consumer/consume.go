package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
)

const (
	group = "payments"

	// leaseTTL is short, so that the show is. With the default, a message whose consumer died waits
	// for 10 s.
	leaseTTL = 2 * time.Second
	// redeliverAfter is how long a message that was not acknowledged waits for its next delivery.
	redeliverAfter = 500 * time.Millisecond
)

// consumer takes orders from a stream of Redis.
type consumer struct {
	client   *redis.Client
	locker   *core.Locker
	provider provider
	name     string
	act
}

// consume handles messages until ctx ends.
func (c *consumer) consume(ctx context.Context) error {
	for ctx.Err() == nil {
		messages, err := c.next(ctx)
		if err != nil {
			return err
		}
		for _, m := range messages {
			if err := c.handle(ctx, m); err != nil {
				return err
			}
		}
	}
	return nil
}

// next returns a message that was not acknowledged for a while, or a new one.
func (c *consumer) next(ctx context.Context) ([]redis.XMessage, error) {
	again, _, err := c.client.XAutoClaim(ctx, &redis.XAutoClaimArgs{
		Stream: c.stream(), Group: group, Consumer: c.name, MinIdle: redeliverAfter, Start: "0", Count: 1,
	}).Result()
	if err != nil || len(again) > 0 {
		return again, c.unless(ctx, err)
	}
	fresh, err := c.client.XReadGroup(ctx, &redis.XReadGroupArgs{
		Group: group, Consumer: c.name, Streams: []string{c.stream(), ">"}, Count: 1, Block: 50 * time.Millisecond,
	}).Result()
	if err != nil || len(fresh) == 0 {
		return nil, c.unless(ctx, err)
	}
	return fresh[0].Messages, nil
}

// unless returns err, unless it means an empty queue or the end of ctx.
func (c *consumer) unless(ctx context.Context, err error) error {
	if errors.Is(err, redis.Nil) || ctx.Err() != nil {
		return nil
	}
	return err
}

// handle charges an order, and then acknowledges its message. It returns an error if the queue does
// not answer.
func (c *consumer) handle(ctx context.Context, m redis.XMessage) error {
	order, _ := m.Values["order"].(string)
	charge, err := c.charge(ctx, order)
	switch {
	case err == nil, errors.Is(err, idempotency.ErrNotKept): // it is done
		c.reached(beforeAck)
		return c.finish(ctx, m, "done", order, charge)
	case errors.Is(err, idempotency.ErrUnknown), errors.Is(err, idempotency.ErrMismatch), errors.Is(err, idempotency.ErrUnreadable):
		// Running it again might charge twice. A human, or a job that asks the provider, must look.
		slog.ErrorContext(ctx, "an order needs a human", "order", order, "error", err)
		return c.finish(ctx, m, "parked", order, Charge{})
	case errors.Is(err, core.ErrUnavailable), errors.Is(err, core.ErrClosed): // nothing ran
		time.Sleep(redeliverAfter)
	}
	return nil // in flight, or nothing was done: it comes again
}

// charge charges an order once, however often its message comes.
func (c *consumer) charge(ctx context.Context, order string) (Charge, error) {
	key := ""
	pay := func(ctx context.Context) (Charge, error) {
		charge, err := c.provider.charge(ctx, order, key)
		c.reached(afterCharge)
		return charge, err
	}
	opts := []idempotency.DoOption{
		idempotency.Retain(24 * time.Hour), // longer than a message may come again
		idempotency.Payload([]byte(order)),
	}
	switch c.Mode {
	case modeUnprotected:
		return pay(ctx)
	case modeAsk:
		key = order // even if this process stood still while another one took its order over
		opts = append(opts, idempotency.RecoverWith(func(ctx context.Context, _ idempotency.Run) (Charge, idempotency.Recovery, error) {
			charge, err := c.provider.find(ctx, order)
			c.reached(whileAsking)
			if errors.Is(err, errNoCharge) {
				return Charge{}, idempotency.RunHandler, nil
			}
			return charge, idempotency.Answered, err
		}))
	}
	return idempotency.Do(ctx, c.locker, core.Join("charge", order), pay, opts...)
}

// finish stores what became of an order, and acknowledges its message.
func (c *consumer) finish(ctx context.Context, m redis.XMessage, state, order string, charge Charge) error {
	text, err := json.Marshal(charge)
	if err != nil {
		return err
	}
	pipe := c.client.TxPipeline()
	pipe.HSet(ctx, c.key(state), order, text)
	pipe.XAck(ctx, c.stream(), group, m.ID)
	_, err = pipe.Exec(ctx)
	return c.unless(ctx, err)
}
