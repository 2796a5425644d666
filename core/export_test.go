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

// JoinAndQuit returns two functions: n callers join the queue of a key; they quit it again, the last
// one first.
func (l *Locker) JoinAndQuit(n int) (join, quit func()) {
	var q *queue
	waiters := make([]*waiter, n)
	return func() {
			for i := range waiters {
				waiters[i] = &waiter{locker: l, name: "hot"}
				q, _, _ = l.join(waiters[i], true)
			}
		}, func() {
			for i := range waiters {
				l.quit(q, waiters[n-1-i])
			}
			l.leave(q, waiters[0])
		}
}

// Alarms returns how many leases of l are to be renewed or watched.
func (l *Locker) Alarms() (n int) {
	for i := range l.alarms {
		a := &l.alarms[i]
		a.mu.Lock()
		n += len(a.due)
		a.mu.Unlock()
	}
	return n
}

// Detach is the context of a clean-up.
var Detach = detach
