package redisbackend

import (
	"context"
	"errors"
	"time"

	"github.com/onelane/onelane/core"
)

// Until core.Backend is split.
func (q *quorum) Seal(context.Context, core.Grant, []byte, time.Duration) error {
	return errors.ErrUnsupported
}
func (q *quorum) Unseal(context.Context, string) error { return errors.ErrUnsupported }
