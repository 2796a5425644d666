package redisbackend

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/onelane/onelane/core"
)

// waiterLife is how long a waiter is known that does not ask again. One that waits asks every 1.5 s
// at least.
const waiterLife = 2 * time.Second

// unknown are the waiters if nobody counted them.
var unknown = core.Waiters{Others: -1}

// waiting returns the name of the set of those that asked for key in vain since it was taken.
func waiting(key string) string { return companion(key, "wait") }

// waiterText is what the backend id adds to the waiters of q's key, or empty.
func waiterText(id string, q core.Request) string {
	if q.Waiter == "" {
		return ""
	}
	return fmt.Sprintf("%s %d", id, q.Needs.Microseconds())
}

// waiters reads the set that a release found. It leaves out the backend's own.
func waiters(own string, n *node, set any) (w core.Waiters) {
	if heard, ok := set.(int64); ok && heard < 0 || n.wakes == nil {
		return unknown // they poll
	}
	members, _ := set.([]any)
	ids := make(map[string]bool, len(members))
	for _, m := range members {
		id, needs, _ := strings.Cut(fmt.Sprintf("%s", m), " ")
		if id == own {
			continue
		}
		ids[id] = true
		if us, err := strconv.ParseInt(needs, 10, 64); err == nil {
			w.Need = max(w.Need, time.Duration(us)*time.Microsecond)
		}
	}
	w.Others = len(ids)
	return w
}
