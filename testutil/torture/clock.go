package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// Instant is a reading of the machine's monotonic clock, which all processes share.
type Instant time.Duration

func now() Instant {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // the clock is always there
	}
	return Instant(t.Nano())
}

func (i Instant) since(start Instant) time.Duration { return time.Duration(i - start) }
