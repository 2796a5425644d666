package gormlock

import (
	"context"
	"log/slog"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/cleanup"
)

func newCleaning(logger *slog.Logger) *cleanup.Queue {
	return cleanup.NewQueue(cleanup.Config{Logger: func() *slog.Logger { return logger }},
		"gormlock: too many clean-ups wait, so that keys of failed attempts may stay held until their leases end; look at the database",
		"gormlock: clean-up of a failed attempt failed; the key is free when its lease and its orphan end")
}

// cleanUp frees, in the background, what an attempt may hold that failed. An adopted key stays, as
// it is an orphan again when the lease ends: to free it would forget the orphan.
func (b *table) cleanUp(q core.Request) {
	if q.Adopt != "" && q.Orphan > 0 {
		return
	}
	b.cleaning.Add(q.Key, q.TTL+q.Orphan, func(ctx context.Context) error {
		_, err := call(ctx, b, q.Key, func(ctx context.Context) (int64, error) {
			return b.exec(ctx, releaseRow, []byte(q.Key), []byte(q.Owner))
		}, nil)
		return err
	})
}
