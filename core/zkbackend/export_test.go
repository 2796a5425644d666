package zkbackend

import (
	"context"
	"errors"

	"github.com/onelane/onelane/core"
)

// Sweep makes a round of the sweep at once.
func Sweep(ctx context.Context, b core.Backend) error {
	var errs []error
	for shard := range shards {
		errs = append(errs, b.(*backend).sweepShard(ctx, shard))
	}
	return errors.Join(errs...)
}

// LimitSightings sets how many nodes that nobody waits for a backend remembers.
func LimitSightings(b core.Backend, n int) { b.(*backend).sightings.limit = n }
