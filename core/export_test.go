package core

import "time"

// BackendKey returns the backend's name of a key.
var BackendKey = backendKey

// WithClocks replaces how far the wall clock and the monotonic clock went.
func WithClocks(clocks func(began, now time.Time) (wall, monotonic time.Duration)) Option {
	return lockerOption(func(c *config) { c.chance.clocks = clocks })
}

// Keys returns how many keys l remembers.
func (l *Locker) Keys() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queues) + len(l.anys)
}
