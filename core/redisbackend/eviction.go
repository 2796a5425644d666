package redisbackend

import (
	"context"
	"strings"
	"time"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

// evictionDelay is how long after its start a node is asked: the first locks go first.
const evictionDelay = time.Second

// warnOfEviction logs once if a Redis may evict locks when its memory is full. If it may not be
// asked, nothing happens.
func (n *node) warnOfEviction() {
	timer := time.AfterFunc(evictionDelay, func() {
		info, now := driver.Plain("info", "memory"), driver.Plain("time")
		r, _, err := send(n.done, n, "", info, now)
		n.noteTime(r, now)
		if err != nil {
			return
		}
		text, _ := info.Value.(string)
		for line := range strings.Lines(text) {
			policy, found := strings.CutPrefix(strings.TrimSpace(line), "maxmemory_policy:")
			if found && policy != "noeviction" {
				n.logger.Warn("redisbackend: this Redis may evict keys that are held, so that two hold one lock; set its maxmemory-policy to noeviction",
					"redis", n.conn.Address(), "policy", policy)
			}
		}
	})
	context.AfterFunc(n.done, func() { timer.Stop() })
}
