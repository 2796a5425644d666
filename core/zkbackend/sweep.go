package zkbackend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/onelane/onelane/core"
)

const (
	// sweepPause is between two shards: a process looks at all keys within about a minute.
	sweepPause = time.Second
	// sweepNodes bounds how many nodes of a shard are read at a time.
	sweepNodes = 500
)

// sweep removes what nobody uses any more, until Close: expired leases of processes that have died,
// and seals and orphans whose retention is over.
func (b *backend) sweep() {
	timer := time.NewTicker(sweepPause)
	defer timer.Stop()
	for shard := rand.IntN(shards); ; shard = (shard + 1) % shards {
		select {
		case <-b.open.Done():
			return
		case <-timer.C:
			_ = b.sweepShard(b.open, shard) // the next round tries again
		}
	}
}

func (b *backend) sweepShard(ctx context.Context, shard int) error {
	parent := fmt.Sprintf("%s/%02x", b.root, shard)
	var names []string
	err := b.bounded(ctx, func(ctx context.Context) (err error) {
		names, err = b.children(ctx, parent)
		return err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	if len(names) > sweepNodes { // the others have their turn by chance
		rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		names = names[:sweepNodes]
	}
	for _, name := range names {
		if err != nil {
			break
		}
		err = b.bounded(ctx, func(ctx context.Context) error { return b.sweepNode(ctx, parent+"/"+name) })
	}
	return err
}

func (b *backend) bounded(ctx context.Context, fn func(context.Context) error) error {
	ctx, cancel := b.begin(ctx)
	defer cancel()
	return fn(ctx)
}

// sweepNode removes a node that is over, and writes down that a lease ended which leaves an orphan.
func (b *backend) sweepNode(ctx context.Context, path string) error {
	n, err := b.fetch(ctx, path, false)
	if errors.Is(err, core.ErrInvalidKey) {
		return nil // not ours
	}
	if err != nil || n == nil {
		return err
	}
	if n.state == stateHeld {
		n.seen, _, _ = b.sightings.See(path, n.zxid, n.seen)
	} else { // there may be many, and the clock tells of them
		n.seen = b.sightings.Known(path, n.zxid, n.seen)
	}
	if err := b.askTime(ctx, path); err != nil {
		return err
	}
	switch status, left := b.status(n); status {
	case core.Free:
		err = b.remove(ctx, n)
	case core.Orphaned:
		_, err = b.orphaned(ctx, n, left)
	}
	if conflict(err) {
		return nil // somebody uses it
	}
	return err
}
