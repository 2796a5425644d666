package zkbackend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/leases"
)

// held runs fn with the node of a grant's key. The first time, the node is as the grant's last
// write left it. If the node in ZooKeeper turns out to differ, held runs fn again with the node as
// it is now.
func (b *backend) held(ctx context.Context, g core.Grant, fn func(context.Context, *node, core.Status) error) error {
	path, err := b.pathOf(g.Key)
	if err != nil {
		return err
	}
	ctx, cancel := b.begin(ctx)
	defer cancel()
	n, _ := g.Backend.(*node)
	if n != nil && (n.path != path || n.owner != g.Owner) {
		n = nil
	}
	for range tries {
		if n != nil {
			if status, _ := b.status(n); status == core.Held {
				if err = fn(ctx, n, status); !conflict(err) {
					break
				}
			}
		}
		if n, err = b.fresh(ctx, path); err != nil {
			break
		}
		if n == nil {
			return errLostFree
		}
		status, _ := b.status(n)
		if n.owner != g.Owner {
			return n.lost(status)
		}
		if err = fn(ctx, n, status); !conflict(err) {
			break
		}
		n = nil
	}
	if err == nil || isAnswer(err) {
		return err
	}
	return unavailable(g.Key, err)
}

// Mint implements core.Backend. Every grant has its token.
func (b *backend) Mint(_ context.Context, g core.Grant) (core.Grant, error) { return g, nil }

// Extend implements core.Backend.
func (b *backend) Extend(ctx context.Context, g core.Grant, ttl time.Duration) (core.Grant, error) {
	longer := g
	err := b.held(ctx, g, func(ctx context.Context, n *node, status core.Status) error {
		if status != core.Held {
			return n.lost(status)
		}
		sent := time.Now()
		h := n.header
		// Other processes count the TTL from this write on. So the write must not shorten a lease
		// that was granted before. A later Extend than that of g may have granted it.
		_, left := b.status(n)
		h.lasts = max(ttl, left)
		n, err := b.change(ctx, n, h)
		if err != nil {
			return err
		}
		longer.Backend = n
		if d := leases.Deadline(sent, ttl); d.After(g.Deadline) {
			longer.Deadline = d
		}
		return nil
	})
	if err != nil {
		return g, err
	}
	return longer, nil
}

// Release implements core.Backend.
func (b *backend) Release(ctx context.Context, g core.Grant) (core.Waiters, error) {
	b, done := b.last()
	defer done(ctx)
	return core.Waiters{Others: -1}, b.held(ctx, g, func(ctx context.Context, n *node, status core.Status) error {
		if status == core.Sealed {
			return nil
		}
		err := b.remove(ctx, n)
		switch {
		case err == nil && status == core.Held:
			b.sightings.Forget(n.path)
		case err == nil && status == core.Free: // its lease had ended
			return n.lost(status)
		}
		return err
	})
}

// Seal implements core.Backend.
func (b *backend) Seal(ctx context.Context, g core.Grant, value []byte, retention time.Duration) error {
	if len(value) > maxValue {
		return fmt.Errorf("zkbackend: seal key %q: the value has %d bytes, at most %d are allowed; store it elsewhere and seal a reference", g.Key, len(value), maxValue)
	}
	b, done := b.last()
	defer done(ctx)
	return b.held(ctx, g, func(ctx context.Context, n *node, status core.Status) error {
		switch status {
		case core.Held, core.Orphaned:
			return b.seal(ctx, n, g.Token, value, retention)
		case core.Sealed:
			before, err := b.value(ctx, n)
			if err == nil && !bytes.Equal(before, value) {
				err = fmt.Errorf("%w: the key is sealed with another value", core.ErrLost)
			}
			return err
		}
		return n.lost(status)
	})
}

// seal puts the value into the guard. Further pieces go into nodes below the guard. seal writes the
// key's node last. It does so only if the key is not sealed yet and another Seal has not written
// the pieces since.
func (b *backend) seal(ctx context.Context, n *node, token uint64, value []byte, retention time.Duration) error {
	h := header{state: stateSealed, lasts: retention, token: token, owner: n.owner}
	first, rest := cut(value)
	var changes []any
	for len(rest) > 0 {
		var part []byte
		part, rest = cut(rest)
		h.pieces++
		path := piece(n.guard(), h.pieces)
		version, err := b.put(ctx, n, path, part)
		if err != nil {
			return err
		}
		changes = append(changes, &zk.CheckVersionRequest{Path: path, Version: version})
	}
	changes = append(changes, &zk.SetDataRequest{Path: n.guard(), Data: first, Version: -1})
	_, err := b.write(ctx, nil, n.path, n.version, h, changes...)
	return err
}

func cut(value []byte) (first, rest []byte) {
	n := min(len(value), pieceSize)
	return value[:n], value[n:]
}

// put makes a piece of a value, if the key's node is still as it was, and returns the piece's
// version. An earlier try may have made it.
func (b *backend) put(ctx context.Context, n *node, path string, data []byte) (version int32, err error) {
	same := &zk.CheckVersionRequest{Path: n.path, Version: n.version}
	_, err = b.multi(ctx, nil, same, b.made(path, data))
	if !errors.Is(err, zk.ErrNodeExists) {
		return 0, err
	}
	stat, err := b.multi(ctx, nil, same, &zk.SetDataRequest{Path: path, Data: data, Version: -1})
	if err != nil {
		return 0, err
	}
	if stat == nil {
		return 0, errNoState
	}
	return stat.Version, nil
}

// Orphan implements core.Sealer.
func (b *backend) Orphan(ctx context.Context, g core.Grant) error {
	b, done := b.last()
	defer done(ctx)
	return b.held(ctx, g, func(ctx context.Context, n *node, status core.Status) error {
		switch status {
		case core.Held:
			_, err := b.change(ctx, n, header{state: stateOrphaned, lasts: n.orphan, owner: n.owner})
			return err
		case core.Orphaned:
			return nil
		}
		return n.lost(status)
	})
}

// Unseal implements core.Backend.
func (b *backend) Unseal(ctx context.Context, key string) error {
	err := b.look(ctx, key, func(ctx context.Context, n *node, status core.Status, _ time.Duration) error {
		if status == core.Sealed || status == core.Orphaned {
			return b.remove(ctx, n)
		}
		return nil
	})
	return err
}

// Inspect implements core.Backend.
func (b *backend) Inspect(ctx context.Context, key string) (st core.State, err error) {
	err = b.look(ctx, key, func(ctx context.Context, n *node, status core.Status, left time.Duration) (err error) {
		st = core.State{Status: status, ExpiresIn: left}
		switch status {
		case core.Held:
			st.Owner = n.owner
			st.Token, err = b.token(ctx, n)
		case core.Sealed:
			st.Token = n.token
			st.Value, err = b.value(ctx, n)
		case core.Orphaned:
			st.Owner, st.Since = n.owner, b.since(n)
		}
		if err != nil {
			st = core.State{} // the key may be gone when look looks again
		}
		return err
	})
	if err != nil {
		return core.State{}, err
	}
	return st, nil
}

// look runs fn with the node of a key as it is now, and again if it changes in the middle.
func (b *backend) look(ctx context.Context, key string, fn func(context.Context, *node, core.Status, time.Duration) error) error {
	path, err := b.pathOf(key)
	if err != nil {
		return err
	}
	ctx, cancel := b.begin(ctx)
	defer cancel()
	for range tries {
		var n *node
		if n, err = b.fresh(ctx, path); err != nil || n == nil {
			break
		}
		status, left := b.status(n)
		if err = fn(ctx, n, status, left); !conflict(err) {
			break
		}
	}
	if err == nil {
		return nil
	}
	return unavailable(key, err)
}
