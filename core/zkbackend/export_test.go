package zkbackend

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/onelane/onelane/core"
)

// Sweep makes a round of the sweep at once.
func Sweep(ctx context.Context, b core.Backend) error {
	const at = 16 // at a time: one after the other takes seconds on a busy machine
	var all sync.WaitGroup
	errs := make([]error, shards)
	for first := range at {
		all.Go(func() {
			for shard := first; shard < shards; shard += at {
				errs[shard] = b.(*backend).sweepShard(ctx, shard)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// LateAnswer reads a key, and notes the answer when between has returned.
func LateAnswer(ctx context.Context, b core.Backend, key string, between func()) (core.Status, error) {
	zb := b.(*backend)
	path, err := zb.pathOf(key)
	if err != nil {
		return 0, err
	}
	n, err := zb.fetch(ctx, path, false)
	if err != nil || n == nil {
		return core.Free, err
	}
	between()
	n.seen = time.Now()
	if n, err = zb.note(ctx, n, false); err != nil || n == nil {
		return core.Free, err
	}
	s, _ := zb.status(n)
	return s, nil
}

// Idle makes b a process that has written nothing for d by its own clock, which is so many percent
// too fast. It returns how long ago it is now for b that the leader's clock said now.
func Idle(b core.Backend, d time.Duration, percent float64) time.Duration {
	c := &b.(*backend).clock
	c.mu.Lock()
	now := c.said.Add(time.Since(c.at))
	c.at, c.said = c.at.Add(-d), c.said.Add(-time.Duration(float64(d)/(1+percent/100)))
	c.mu.Unlock()
	return c.age(now)
}

// CleanUps returns how many keys wait to be freed.
func CleanUps(b core.Backend) int { return b.(*backend).cleaning.Waiting() }
