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
