package testutil_test

import (
	"context"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
)

// The functions below are code of docs/idempotency.md and docs/consumers.md.

// Charge is what a consumer gets from its payment provider.
type Charge struct{ ID, State string }

func pay(context.Context, []byte) (Charge, error) { return Charge{}, nil }

func docsDo(ctx context.Context, locker *core.Locker, order string, body []byte) (Charge, error) {
	charge, err := idempotency.Do(ctx, locker, core.Join("charge", order), func(ctx context.Context) (Charge, error) {
		return pay(ctx, body)
	}, idempotency.Retain(14*24*time.Hour), idempotency.Payload(body))
	return charge, err
}

var _ = []any{docsDo}
