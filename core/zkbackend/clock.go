package zkbackend

import (
	"context"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// clockAllowance is by how much the clocks of two servers may differ. It delays the end of a seal
// or an orphan that this process has not seen for long.
const clockAllowance = time.Minute

// clockKept is for how long what the leader said is used. Then clock asks again.
const clockKept = 10 * time.Minute

// clock is what ZooKeeper's leader says about the time with each write. The clock of this process
// only counts from there: one that is wrong ends no seal.
type clock struct {
	mu   sync.Mutex
	said time.Time // by the leader
	at   time.Time // by this process
}

func (c *clock) set(said, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said, c.at = said, at
}

// age returns how long ago the leader's clock said t, or 0 if that is not known.
func (c *clock) age(t time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.said.IsZero() {
		return 0
	}
	passed := time.Since(c.at)
	return max(c.said.Sub(t)+passed-passed/100, 0) // this process's clock may run 1 % faster
}

func (c *clock) known() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.said.IsZero() && time.Since(c.at) < clockKept
}

// askTime learns the leader's time if it is not known, or not any more: it writes the node above a
// key's, which has no text.
func (b *backend) askTime(ctx context.Context, path string) error {
	if b.clock.known() {
		return nil
	}
	stat, err := do(ctx, b, func(c *zk.Conn) (*zk.Stat, error) { return c.Set(parentOf(path), nil, -1) }, nil)
	if err == nil {
		b.clock.set(time.UnixMilli(stat.Mtime), time.Now())
	}
	return err
}
