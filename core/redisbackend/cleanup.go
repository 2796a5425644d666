package redisbackend

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/cleanup"
)

func newCleaning(n *node) *cleanup.Queue {
	return cleanup.NewQueue(cleanup.Config{
		Logger: func() *slog.Logger { return n.logger.With("redis", n.conn.Address()) },
	},
		"redisbackend: too many clean-ups wait, so that keys of failed calls may stay held until their leases end; look at this Redis",
		"redisbackend: clean-up given up, so that the key of a failed call may stay held until its lease ends; look at this Redis")
}

// cleanUp releases in the background what a call of unknown outcome may have left under key in the
// name of owner until then. If late is not nil, the call is still under way until late is closed.
func (n *node) cleanUp(key, owner string, until time.Time, late <-chan struct{}) {
	free := func(ctx context.Context) error {
		_, _, err := send(ctx, n.router, key, n.freeing(key, owner))
		if errors.Is(err, core.ErrUnavailable) {
			return err
		}
		return nil // Redis answered
	}
	if late == nil {
		n.cleaning.Add(key, time.Until(until), free)
		return
	}
	// The call may have its effect at any time until then. There are few of them: calls are bounded.
	n.cleaning.AddAfter(late, key, time.Until(until), free)
}
