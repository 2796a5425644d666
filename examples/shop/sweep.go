package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onelane/onelane/core"
)

const sweepBatch = 100

// sweepEvery settles what expired, in one instance at a time, until ctx ends.
func (s *shop) sweepEvery(ctx context.Context, interval time.Duration) error {
	return core.Every(ctx, s.locker, "shop:sweep", interval, s.sweep)
}

// sweep settles reservations whose time is over: their buyers never came back, or their process died.
// sweep asks the provider first. If the buyer was charged, the order is confirmed. Otherwise the
// provider will never charge it, and its units go back on sale. If the provider does not answer,
// the reservation stays for the next sweep.
func (s *shop) sweep(ctx context.Context) error {
	var late []Order
	err := s.db.WithContext(ctx).Where("state = ? AND until <= ?", reserved, s.now().UnixMilli()).
		Order("until").Limit(sweepBatch).Find(&late).Error
	for i := range late {
		o := &late[i]
		state, failed := s.provider.stop(ctx, o.ID)
		if failed == nil {
			failed = s.settle(ctx, o, state)
		}
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("sweep order %s: %w", o.ID, failed))
		}
	}
	return err
}
