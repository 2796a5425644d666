package zkbackend

import (
	"context"
	"log/slog"
	"time"

	"github.com/onelane/onelane/internal/cleanup"
)

func newCleaning(logger *slog.Logger) *cleanup.Queue {
	return cleanup.NewQueue(cleanup.Config{Logger: func() *slog.Logger { return logger }},
		"zkbackend: too many clean-ups wait, so that keys of failed calls may stay held until their leases end; look at ZooKeeper",
		"zkbackend: clean-up of a failed attempt failed; the key is free when its lease and its orphan end")
}

// cleanUp frees in the background what a call of unknown outcome may have left under a key in the
// name of owner.
func (b *backend) cleanUp(key, path, owner string, lasts time.Duration) {
	b.cleaning.Add(key, lasts, func(ctx context.Context) error {
		ctx, cancel := b.begin(ctx)
		defer cancel()
		n, err := b.fresh(ctx, path)
		if err != nil || n == nil || n.owner != owner || n.state == stateSealed {
			return err
		}
		return b.remove(ctx, n)
	})
}
