package core

import (
	"context"
	"strings"
	"time"
)

// evictionDelay is how long after New a node is asked: New does not talk to the backend, and the first locks go first.
const evictionDelay = time.Second

// warnOfEviction logs once if a Redis may evict locks when its memory is full. Where it may not be asked nobody is bothered.
func (b *redisBackend) warnOfEviction() (stop func() bool) {
	n, ok := b.node.(interface {
		info(ctx context.Context, section string) (string, error)
	})
	if !ok {
		return func() bool { return false }
	}
	return time.AfterFunc(evictionDelay, func() {
		ctx, cancel := context.WithTimeout(b.done, b.timeout)
		defer cancel()
		info, err := n.info(ctx, "memory")
		if err != nil {
			return
		}
		for line := range strings.Lines(info) {
			policy, found := strings.CutPrefix(strings.TrimSpace(line), "maxmemory_policy:")
			if found && policy != "noeviction" {
				b.logger.Warn("core: this Redis may evict locks that are held, so that two hold one: set its maxmemory-policy to noeviction", "policy", policy)
			}
		}
	}).Stop
}

func (n *clientNode) info(ctx context.Context, section string) (string, error) {
	if n.direct != nil {
		return n.direct.Info(ctx, section).Result()
	}
	v, _, err := giveUp(ctx, &n.stuck, func() (any, error) { return n.client.Info(ctx, section).Result() })
	if err != nil {
		return "", err
	}
	return v.(string), nil
}
