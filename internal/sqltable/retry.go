package sqltable

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/onelane/onelane/internal/sqlerr"
)

// ConflictTries is how often a statement is run that meets conflicts.
const ConflictTries = 10

const (
	firstPause   = 2 * time.Millisecond
	longestPause = 250 * time.Millisecond
)

// Retry runs fn again if the database resolved a conflict against it: at most ten times, with
// growing pauses, until ctx ends.
func Retry(ctx context.Context, fn func() error) error {
	return Repeat(ctx, ConflictTries, sqlerr.Conflict, fn)
}

// Repeat runs fn until it succeeds, fails for good, or was tried so many times. The pauses grow and
// are random, so that two callers who met in a conflict do not meet again. It stops when ctx ends.
func Repeat(ctx context.Context, tries int, again func(error) bool, fn func() error) error {
	pause := firstPause
	for try := 1; ; try++ {
		err := fn()
		if err == nil || try >= tries || !again(err) {
			return err
		}
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(ctx.Err(), err)
		}
		pause = min(2*pause, longestPause)
	}
}
