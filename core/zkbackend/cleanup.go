package zkbackend

import (
	"context"
	"log/slog"
	"time"

	"github.com/onelane/onelane/internal/loglimit"
)

const (
	maxCleaning         = 4096 // clean-ups at a time
	firstCleanUpPause   = 50 * time.Millisecond
	longestCleanUpPause = 5 * time.Second
	// cleanUpTime bounds the clean-up of an attempt, in addition to its lease: what leaves no orphan
	// ends by itself.
	cleanUpTime = time.Minute
)

// cleanUp frees in the background what a call of unknown outcome may have left under a key in the name
// of owner.
func (b *backend) cleanUp(key, path, owner string, length time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	if b.cleaning >= maxCleaning {
		loglimit.Later(b.logger, slog.LevelWarn,
			"zkbackend: too many clean-ups wait, so that keys of failed calls may stay held until their leases end; look at ZooKeeper",
			"waiting", b.cleaning, "key", key)
		return
	}
	b.cleaning++
	b.cleaned.Go(func() {
		ctx, cancel := context.WithTimeout(b.open, length+cleanUpTime)
		defer cancel()
		if err := b.free(ctx, path, owner); err != nil && b.open.Err() == nil {
			b.logger.Warn("zkbackend: clean-up of a failed attempt failed; the key is free when its lease and its orphan end",
				"key", key, "owner", owner, "error", err)
		}
		b.settle(&b.cleaning)
	})
}

// free looks until ZooKeeper has answered, and then once more. If a connection broke, a request on
// it may take effect after a request on the next one.
func (b *backend) free(ctx context.Context, path, owner string) error {
	pause := firstCleanUpPause
	for answers := 0; ; pause = min(2*pause, longestCleanUpPause) {
		err := b.freeOnce(ctx, path, owner)
		if err == nil {
			if answers++; answers == 2 {
				return nil
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}

func (b *backend) freeOnce(ctx context.Context, path, owner string) error {
	ctx, cancel := b.begin(ctx)
	defer cancel()
	n, err := b.fresh(ctx, path)
	if err != nil || n == nil || n.owner != owner || n.state == stateSealed {
		return err
	}
	return b.remove(ctx, n)
}
