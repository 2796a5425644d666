// Package leases has the code for leases that all backends share.
package leases

import (
	"fmt"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/ownertext"
)

// Deadline returns the time until which a lease is certain to be valid, if the request that granted
// it was sent at sent. It leaves 1 % and 2 ms for clocks that run at different speeds (Redlock).
func Deadline(sent time.Time, ttl time.Duration) time.Time {
	return sent.Add(ttl - ttl/100 - 2*time.Millisecond)
}

// Taken returns the error for a key that owner holds for the time that is left.
func Taken(key, owner string, left time.Duration) *core.TakenError {
	holder, tag := ownertext.Split(owner)
	return &core.TakenError{Key: key, Holder: holder, Tag: tag, RetryAfter: left}
}

// Lost returns the error for a lease that no longer has its key. If the key is held, owner is its
// holder now.
func Lost(s core.Status, owner string) error {
	if s == core.Held {
		holder, _ := ownertext.Split(owner)
		return fmt.Errorf("%w: the key is held by %s", core.ErrLost, holder)
	}
	return fmt.Errorf("%w: the key is %v", core.ErrLost, s)
}
