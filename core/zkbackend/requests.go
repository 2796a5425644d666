package zkbackend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/onelane/onelane/core"
)

const (
	// pieceSize is how much of a seal's value fits into a node. ZooKeeper takes requests of almost
	// 1 MiB (jute.maxbuffer).
	pieceSize = 512 << 10
	maxValue  = 16 << 20
)

// read returns the node of a key, or nil if there is none. If a waiter of this process waits for
// the key, the answer also sets ZooKeeper's watch.
func (b *backend) read(ctx context.Context, path string) (*node, error) {
	watched := b.watches.set(path)
	n, err := b.get(ctx, path, watched)
	if watched {
		b.watches.answered(path, n)
	}
	return n, err
}

func (b *backend) get(ctx context.Context, path string, watched bool) (*node, error) {
	n, err := b.fetch(ctx, path, watched)
	if n == nil {
		return nil, err
	}
	return b.note(ctx, n, watched)
}

// note remembers the time since which a node that was read is unchanged. If this process knows
// already that the node has changed since, note reads it once more.
func (b *backend) note(ctx context.Context, n *node, watched bool) (*node, error) {
	seen, _, late := b.sightings.See(n.path, n.zxid, n.seen)
	if late {
		again, err := b.fetch(ctx, n.path, watched)
		if again == nil {
			return nil, err
		}
		n = again
		seen, _, _ = b.sightings.See(n.path, n.zxid, n.seen)
	}
	n.seen = seen
	if n.state == stateHeld && n.orphan == 0 {
		return n, nil
	}
	return n, b.askTime(ctx, n.path)
}

// content is what a node has.
type content struct {
	text []byte
	stat *zk.Stat
}

// fetch is get without remembering the node.
func (b *backend) fetch(ctx context.Context, path string, watched bool) (*node, error) {
	a, err := do(ctx, b, func(c *zk.Conn) (a content, err error) {
		if watched {
			a.text, a.stat, _, err = c.GetW(path)
		} else {
			a.text, a.stat, err = c.Get(path)
		}
		return a, err
	}, nil)
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	h, ok := parse(a.text)
	if !ok {
		return nil, fmt.Errorf("zkbackend: node %s is not a key of this format; use another root: %w", path, core.ErrInvalidKey)
	}
	return newNode(path, h, a.stat, time.Now()), nil
}

// fresh reads the node of a key as the leader has it: a follower may lag behind.
func (b *backend) fresh(ctx context.Context, path string) (*node, error) {
	if _, err := do(ctx, b, func(c *zk.Conn) (string, error) { return c.Sync(path) }, nil); err != nil {
		return nil, err
	}
	return b.get(ctx, path, false)
}

// multi makes several changes, all or none, and returns the state of the node that the last of them
// set.
func (b *backend) multi(ctx context.Context, unsure func(), changes ...any) (*zk.Stat, error) {
	return do(ctx, b, func(c *zk.Conn) (*zk.Stat, error) {
		answers, err := c.Multi(changes...)
		if err != nil || len(answers) == 0 {
			return nil, err
		}
		return answers[len(answers)-1].Stat, nil
	}, unsure)
}

var errNoState = errors.New("zkbackend: ZooKeeper's answer has no state of the node; check whether a proxy changes answers")

// write makes changes in one transaction. The last of them sets the text of the key's node. write
// returns the node as it is then.
func (b *backend) write(ctx context.Context, unsure func(), path string, version int32, h header, changes ...any) (*node, error) {
	changes = append(changes, &zk.SetDataRequest{Path: path, Data: h.text(), Version: version})
	stat, err := b.multi(ctx, unsure, changes...)
	if err != nil {
		return nil, err
	}
	if stat == nil {
		if unsure != nil {
			unsure()
		}
		return nil, errNoState
	}
	n := newNode(path, h, stat, time.Time{})
	now := time.Now()
	b.clock.set(n.changed, now)
	n.seen, _, _ = b.sightings.See(path, n.zxid, now)
	return n, nil
}

// create makes the node of a key and its guard.
func (b *backend) create(ctx context.Context, unsure func(), path string, h header) (*node, error) {
	for {
		n, err := b.write(ctx, unsure, path, 0, h, b.made(path, nil), b.made(guardOf(path, h.owner), nil))
		if !errors.Is(err, zk.ErrNoNode) {
			return n, err
		}
		if err := b.parents(ctx, path); err != nil {
			return nil, err
		}
	}
}

func (b *backend) made(path string, data []byte) *zk.CreateRequest {
	return &zk.CreateRequest{Path: path, Data: data, Acl: b.acl}
}

// parents makes the missing nodes above a key. It makes no node above one that exists: ZooKeeper
// may forbid such a request, and would report this before it reports that the node exists.
func (b *backend) parents(ctx context.Context, path string) error {
	parent := parentOf(path)
	for {
		_, err := do(ctx, b, func(c *zk.Conn) (string, error) { return c.Create(parent, nil, 0, b.acl) }, nil)
		switch {
		case errors.Is(err, zk.ErrNodeExists):
			return nil
		case !errors.Is(err, zk.ErrNoNode) || parentOf(parent) == "":
			return err
		}
		if err := b.parents(ctx, parent); err != nil {
			return err
		}
	}
}

// change sets the text of a node that is still as it was.
func (b *backend) change(ctx context.Context, n *node, h header) (*node, error) {
	return b.write(ctx, nil, n.path, n.version, h, &zk.CheckVersionRequest{Path: n.guard(), Version: -1})
}

// takeOver gives the node to another owner.
func (b *backend) takeOver(ctx context.Context, unsure func(), n *node, h header) (taken *node, err error) {
	err = b.without(ctx, n, func(drop []any) error {
		taken, err = b.write(ctx, unsure, n.path, n.version, h, append(drop, b.made(guardOf(n.path, h.owner), nil))...)
		return err
	})
	return taken, err
}

// remove deletes a node that is still as it was.
func (b *backend) remove(ctx context.Context, n *node) error {
	return b.without(ctx, n, func(drop []any) error {
		_, err := b.multi(ctx, nil, append(drop, &zk.DeleteRequest{Path: n.path, Version: n.version})...)
		return err
	})
}

// without calls fn with the changes that delete a node's guard. If pieces of a value are below the
// guard, without calls fn again with changes that delete those, too. They may be the pieces of a
// Seal that did not come to its end.
func (b *backend) without(ctx context.Context, n *node, fn func(drop []any) error) error {
	var pieces []string
	for {
		drop := make([]any, 0, len(pieces)+1)
		for _, path := range append(pieces, n.guard()) {
			drop = append(drop, &zk.DeleteRequest{Path: path, Version: -1})
		}
		err := fn(drop)
		if !errors.Is(err, zk.ErrNotEmpty) {
			return err
		}
		names, err := b.children(ctx, n.guard())
		if err != nil {
			return err
		}
		if len(names) == 0 { // the key's node has nodes below it that are not ours
			return zk.ErrNotEmpty
		}
		pieces = nil
		for _, name := range names {
			pieces = append(pieces, n.guard()+"/"+name)
		}
	}
}

// children lists the names of the nodes below path.
func (b *backend) children(ctx context.Context, path string) ([]string, error) {
	return do(ctx, b, func(c *zk.Conn) ([]string, error) { names, _, err := c.Children(path); return names, err }, nil)
}

func piece(guard string, i int) string { return fmt.Sprintf("%s/%d", guard, i) }

// value reads what a key was sealed with.
func (b *backend) value(ctx context.Context, n *node) ([]byte, error) {
	var value []byte
	for i := range n.pieces + 1 {
		path := n.guard()
		if i > 0 {
			path = piece(path, i)
		}
		part, err := do(ctx, b, func(c *zk.Conn) ([]byte, error) { part, _, err := c.Get(path); return part, err }, nil)
		if err != nil {
			return nil, err
		}
		value = append(value, part...)
	}
	return value, nil
}

// token returns the fencing token of the lease that has the node: the transaction that made its
// guard.
func (b *backend) token(ctx context.Context, n *node) (uint64, error) {
	return do(ctx, b, func(c *zk.Conn) (uint64, error) {
		there, stat, err := c.Exists(n.guard())
		if err == nil && !there {
			err = zk.ErrNoNode
		}
		if err != nil {
			return 0, err
		}
		return tokenOf(stat.Czxid), nil
	}, nil)
}

// tokens is how many fencing tokens a lease has.
const tokens = 64

func tokenOf(zxid int64) uint64 { return uint64(zxid) * tokens }
