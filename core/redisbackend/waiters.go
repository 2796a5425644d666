package redisbackend

import (
	"fmt"
	"time"

	"github.com/onelane/onelane/core"
)

// waiterLife is how long a waiter is known that does not ask again. One that waits asks every 1.5 s
// at least.
const waiterLife = 2 * time.Second

// unknownWaiters says that nobody counted them.
var unknownWaiters = core.Waiters{Others: -1}

// waiting returns the name of the set of those that wait for key. A release empties it, so that no
// process stands back twice for a waiter that is gone.
func waiting(key string) string { return companion(key, "wait") }

// waiterText is what the backend id adds to the waiters of q's key, or empty.
func waiterText(id string, q core.Request) string {
	if q.Needs == 0 {
		return ""
	}
	return fmt.Sprintf("%s %d", id, q.Needs.Microseconds())
}

// waiters reads the set that a release found. It leaves out the backend's own.
func waiters(own string, n *node, set any) (w core.Waiters) {
	if heard, ok := set.(int64); ok && heard < 0 || n.wakes == nil {
		return unknownWaiters // they poll
	}
	members, _ := set.([]any)
	ids := make(map[string]bool, len(members))
	for _, m := range members {
		var id string
		var needs int64
		if n, _ := fmt.Sscan(fmt.Sprintf("%s", m), &id, &needs); n == 2 && id != own {
			ids[id], w.Need = true, max(w.Need, time.Duration(needs)*time.Microsecond)
		}
	}
	w.Others = len(ids)
	return w
}
