package backendtest

import (
	"fmt"
	"time"

	"github.com/onelane/onelane/core"
)

// memoryTokens is how many fencing tokens are reserved for a lease.
const memoryTokens = 64

// memoryKey is a key of Memory, guarded by MemoryBackend.mu.
type memoryKey struct {
	status   core.Status
	owner    string        // of the lease, the orphan or the seal.
	orphan   time.Duration // how long the lease's orphan stays.
	value    []byte        // of a seal.
	token    uint64        // the first of the lease, or that of the seal; 0 if there is none.
	fence    uint64        // the largest token reserved so far.
	until    time.Time     // when the lease, the orphan or the seal ends.
	since    time.Time     // when the orphan's lease ended
	watchers map[chan struct{}]bool
	waiters  map[string]time.Duration // what they need, by Locker
	waiter   string                   // the holder's Locker
}

// expire ends a lease, an orphan or a seal whose time is over.
func (k *memoryKey) expire(now time.Time) {
	if k.status == core.Held && k.orphan > 0 && !now.Before(k.until) {
		k.status, k.since, k.until = core.Orphaned, k.until, k.until.Add(k.orphan)
	}
	if k.status != core.Free && !now.Before(k.until) {
		k.free()
	}
}

// free frees the key. Its tokens, watchers and waiters stay.
func (k *memoryKey) free() {
	*k = memoryKey{fence: k.fence, watchers: k.watchers, waiters: k.waiters}
}

// takeWaiters returns the waiters of other Lockers and forgets them.
func (k *memoryKey) takeWaiters() (w core.Waiters) {
	delete(k.waiters, k.waiter)
	for _, need := range k.waiters {
		w.Others, w.Need = w.Others+1, max(w.Need, need)
	}
	clear(k.waiters)
	return w
}

// signal wakes all watchers.
func (k *memoryKey) signal() {
	for w := range k.watchers {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

// owned returns nil if g's owner has the key in one of the statuses, else ErrLost with the reason.
func (k *memoryKey) owned(g core.Grant, statuses ...core.Status) error {
	if k.owner != g.Owner && k.status == core.Held {
		return fmt.Errorf("%w: the key is held by %s", core.ErrLost, k.owner)
	}
	for _, s := range statuses {
		if k.status == s && k.owner == g.Owner {
			return nil
		}
	}
	return fmt.Errorf("%w: the key is %v", core.ErrLost, k.status)
}

// mint reserves tokens for the lease, unless it has some.
func (k *memoryKey) mint() {
	if k.token == 0 {
		k.token = k.fence + 1
		k.fence += memoryTokens
	}
}

// grant puts the state of the lease into g.
func (k *memoryKey) grant(g core.Grant) core.Grant {
	g.Deadline = k.until
	if g.Token == 0 && k.token != 0 {
		g.Token, g.Tokens = k.token, memoryTokens
	}
	return g
}
