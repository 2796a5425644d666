package testutil_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
)

// The functions below are code of docs/idempotency.md and docs/consumers.md. The libraries that they
// use are no dependencies of this module, so interfaces with the methods of those stand for them.

// Charge is what a consumer gets from its payment provider.
type Charge struct{ ID, State string }

func pay(context.Context, []byte) (Charge, error) { return Charge{}, nil }

func docsDo(ctx context.Context, locker *core.Locker, order string, body []byte) (Charge, error) {
	charge, err := idempotency.Do(ctx, locker, core.Join("charge", order), func(ctx context.Context) (Charge, error) {
		return pay(ctx, body)
	}, idempotency.Retain(14*24*time.Hour), idempotency.Payload(body))
	return charge, err
}

// A consumer does one of these after Do has returned.
const (
	ack   = iota // It is done.
	park         // Store it for a human, and then acknowledge it.
	pause        // Fetch nothing for some seconds, then deliver it again.
	again        // Deliver it again, later than the lease.
)

func after(err error) int {
	switch {
	case err == nil, errors.Is(err, idempotency.ErrNotKept):
		return ack
	case errors.Is(err, idempotency.ErrUnknown), errors.Is(err, idempotency.ErrMismatch), errors.Is(err, idempotency.ErrUnreadable):
		return park
	case errors.Is(err, core.ErrUnavailable), errors.Is(err, core.ErrClosed):
		return pause
	}
	return again // in flight, lost, nothing was done, or the context has ended
}

func TestDocsConsumers_After(t *testing.T) {
	failed := errors.New("failed")
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, ack}, {idempotency.ErrNotKept, ack}, {&idempotency.UnknownError{Err: core.ErrUnavailable}, park}, {idempotency.ErrMismatch, park},
		{idempotency.ErrUnreadable, park}, {core.ErrUnavailable, pause}, {core.ErrClosed, pause}, {idempotency.ErrInFlight, again},
		{core.ErrLost, again}, {idempotency.ErrNothingDone, again}, {context.Canceled, again}, {failed, again},
	} {
		if got := after(c.err); got != c.want {
			t.Errorf("after(%v) = %d, want %d", c.err, got, c.want)
		}
	}
}

const (
	later = 15 * time.Second
	topic = "parked"
)

var locker *core.Locker

type kafkaMessage struct{ Key, Value []byte }

type kafkaReader interface {
	CommitMessages(ctx context.Context, m ...kafkaMessage) error
}

func publish(context.Context, string, []byte) error { return nil }

func docsKafka(ctx context.Context, reader kafkaReader, m kafkaMessage) error {
	for {
		_, err := docsDo(ctx, locker, string(m.Key), m.Value)
		switch after(err) {
		case park:
			if err := publish(ctx, topic, m.Value); err != nil {
				return err
			}
			fallthrough
		case ack:
			return reader.CommitMessages(ctx, m)
		}
		time.Sleep(time.Second) // a partition has no "later": it waits for this message
	}
}

type natsMessage interface {
	Data() []byte
	Ack() error
	NakWithDelay(time.Duration) error
}

func docsNATS(ctx context.Context, m natsMessage, order string) error {
	_, err := docsDo(ctx, locker, order, m.Data())
	switch after(err) {
	case park:
		if err := publish(ctx, topic, m.Data()); err != nil {
			return err
		}
		return m.Ack()
	case ack:
		return m.Ack()
	}
	return m.NakWithDelay(later)
}

type rabbitDelivery interface {
	Ack(multiple bool) error
	Nack(multiple, requeue bool) error
}

func docsRabbit(ctx context.Context, d rabbitDelivery, order string, body []byte) error {
	_, err := docsDo(ctx, locker, order, body)
	switch after(err) {
	case ack:
		return d.Ack(false)
	case park:
		return d.Nack(false, false) // to the dead-letter exchange
	}
	time.Sleep(time.Second) // a requeued message comes back at once
	return d.Nack(false, true)
}

type sqsMessage struct{ Body, ReceiptHandle string }

type sqsQueue interface {
	remove(ctx context.Context, receipt string) error
	send(ctx context.Context, queue, body string) error
	visibility(ctx context.Context, receipt string, timeout time.Duration) error
}

func docsSQS(ctx context.Context, queue sqsQueue, m sqsMessage, order string) error {
	_, err := docsDo(ctx, locker, order, []byte(m.Body))
	switch after(err) {
	case park:
		if err := queue.send(ctx, topic, m.Body); err != nil {
			return err
		}
		fallthrough
	case ack:
		return queue.remove(ctx, m.ReceiptHandle) // DeleteMessage
	}
	return queue.visibility(ctx, m.ReceiptHandle, later) // ChangeMessageVisibility
}

type watermillMessage struct{ Payload []byte }

func docsWatermill(ctx context.Context, m watermillMessage, order string) error {
	_, err := docsDo(ctx, locker, order, m.Payload)
	switch after(err) {
	case ack:
		return nil
	case park:
		return publish(ctx, topic, m.Payload) // and then it is acknowledged
	}
	return err // it comes again; put middleware.Retry with a pause around the handler
}

var river struct {
	JobSnooze func(time.Duration) error
	JobCancel func(error) error
}

func docsRiver(ctx context.Context, args []byte, order string) error {
	_, err := docsDo(ctx, locker, order, args)
	switch after(err) {
	case ack:
		return nil
	case park:
		return river.JobCancel(err)
	}
	return river.JobSnooze(later) // does not count as an attempt
}

var asynq struct{ SkipRetry error }

func docsAsynq(ctx context.Context, payload []byte, order string) error {
	_, err := docsDo(ctx, locker, order, payload)
	switch after(err) {
	case ack:
		return nil
	case park:
		return fmt.Errorf("%w: %w", err, asynq.SkipRetry) // archived
	}
	return err
}

type fiberCtx interface {
	Context() context.Context
	Get(key string, defaultValue ...string) string
	Body() []byte
	Status(int) fiberCtx
	JSON(v any, contentType ...string) error
	SendStatus(int) error
}

func docsFiber(c fiberCtx, user string) error {
	key := core.Join("POST /payments", user, c.Get("Idempotency-Key"))
	charge, err := idempotency.Do(c.Context(), locker, key, func(ctx context.Context) (Charge, error) {
		return pay(ctx, c.Body())
	}, idempotency.Retain(24*time.Hour), idempotency.Payload(c.Body()))
	if err != nil {
		return c.SendStatus(statusOf(err))
	}
	return c.Status(http.StatusCreated).JSON(charge)
}

func statusOf(err error) int {
	switch {
	case errors.Is(err, idempotency.ErrUnknown):
		return http.StatusGatewayTimeout
	case errors.Is(err, idempotency.ErrMismatch):
		return http.StatusUnprocessableEntity
	case errors.Is(err, idempotency.ErrNotKept), errors.Is(err, idempotency.ErrInFlight):
		return http.StatusConflict
	}
	return http.StatusServiceUnavailable
}

type hertzContext interface {
	GetHeader(key string) []byte
	JSON(code int, v any)
	Status(code int)
}

func docsHertz(ctx context.Context, c hertzContext, user string, body []byte) {
	key := core.Join("POST /payments", user, string(c.GetHeader("Idempotency-Key")))
	charge, err := idempotency.Do(ctx, locker, key, func(ctx context.Context) (Charge, error) {
		return pay(ctx, body)
	}, idempotency.Retain(24*time.Hour), idempotency.Payload(body))
	if err != nil {
		c.Status(statusOf(err))
		return
	}
	c.JSON(http.StatusCreated, charge)
}

var _ = []any{docsKafka, docsNATS, docsRabbit, docsSQS, docsWatermill, docsRiver, docsAsynq, docsFiber, docsHertz}
