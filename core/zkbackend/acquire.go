package zkbackend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/leases"
)

// tries is how often a call looks again if others are faster.
const tries = 5

// maxOwner bounds the owner text, so that a request stays small.
const maxOwner = 4096

// Acquire implements core.Backend. Every lease has its fencing token: it costs nothing here.
func (b *backend) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	path, err := b.pathOf(r.Key)
	if err != nil {
		return core.Grant{}, err
	}
	if len(r.Owner) > maxOwner {
		return core.Grant{}, fmt.Errorf("zkbackend: the owner of key %q has %d bytes, at most %d are allowed: %w",
			r.Key, len(r.Owner), maxOwner, core.ErrInvalidKey)
	}
	ctx, cancel := b.begin(ctx)
	defer cancel()
	defer b.cleaning.Expect()() // Close waits for what may need a clean-up
	a := &attempt{backend: b, Request: r, path: path}
	g, err := a.run(ctx)
	if err == nil || isAnswer(err) {
		return g, err
	}
	return g, unavailable(r.Key, err)
}

// isAnswer reports whether an error is a decision about the key.
func isAnswer(err error) bool {
	return errors.Is(err, core.ErrTaken) || errors.Is(err, core.ErrSealed) || errors.Is(err, core.ErrOrphaned) ||
		errors.Is(err, core.ErrLost)
}

// attempt is one call of Acquire.
type attempt struct {
	*backend
	core.Request
	path     string
	adopting bool // what the latest write takes is an orphan, which must be one again
}

// run makes the key's node, or looks who has it. While ZooKeeper's watch says that the node is as
// it was, run looks first: it answers a waiter without a write.
func (a *attempt) run(ctx context.Context) (g core.Grant, err error) {
	var n *node
	if a.watches.isSet(a.path) {
		if n, err = a.read(ctx, a.path); err != nil {
			return g, err
		}
	}
	for range tries {
		if n == nil {
			a.adopting = false
			g, err = a.granted(ctx, func(h header) (*node, error) { return a.create(ctx, a.undo, a.path, h) })
		} else {
			g, err = a.decide(ctx, n)
		}
		if err == nil || !conflict(err) {
			return g, err
		}
		if n, err = a.read(ctx, a.path); err != nil {
			return g, err
		}
	}
	if n != nil {
		if status, left := a.status(n); status == core.Held {
			return g, leases.Taken(a.Key, n.owner, left)
		}
	}
	return g, &core.TakenError{Key: a.Key, Contested: true} // others are always faster
}

// decide answers from the node of the key, or takes it over.
func (a *attempt) decide(ctx context.Context, n *node) (g core.Grant, err error) {
	status, left := a.status(n)
	switch {
	case status == core.Held && n.owner == a.Owner:
		return a.again(ctx, n, left)
	case status == core.Held:
		return g, leases.Taken(a.Key, n.owner, left)
	case status == core.Sealed:
		value, err := a.value(ctx, n)
		if err != nil {
			return g, err
		}
		return g, &core.SealedError{Key: a.Key, Value: value, Token: n.token}
	case status == core.Orphaned && n.owner == a.Owner:
		a.undo()
		return g, errTooLate
	case status == core.Orphaned && n.owner != a.Adopt:
		if n, err = a.orphaned(ctx, n, left); err != nil {
			return g, err
		}
		return g, &core.OrphanedError{Key: a.Key, Owner: n.owner, Since: a.since(n)}
	}
	a.adopting = status == core.Orphaned && a.Request.Orphan > 0
	return a.granted(ctx, func(h header) (*node, error) { return a.takeOver(ctx, a.undo, n, h) })
}

var errTooLate = errors.New("zkbackend: the answer came when the lease had ended or was about to; try again, or use a longer TTL")

// granted returns the grant of a write that makes the key the attempt's.
func (a *attempt) granted(ctx context.Context, write func(header) (*node, error)) (core.Grant, error) {
	sent := time.Now()
	n, err := write(header{state: stateHeld, lasts: a.TTL, orphan: a.Request.Orphan, owner: a.Owner})
	if err != nil {
		return core.Grant{}, err
	}
	return a.grant(n, tokenOf(n.zxid), sent)
}

func (a *attempt) grant(n *node, token uint64, sent time.Time) (core.Grant, error) {
	g := core.Grant{Key: a.Key, Owner: a.Owner, Token: token, Tokens: tokens,
		Deadline: leases.Deadline(sent, a.TTL), Orphan: n.orphan, Backend: n}
	if !time.Now().Before(g.Deadline) {
		a.undo()
		return core.Grant{}, errTooLate
	}
	return g, nil
}

// again extends the lease of an attempt that is made a second time.
func (a *attempt) again(ctx context.Context, n *node, left time.Duration) (g core.Grant, err error) {
	token, err := a.token(ctx, n)
	if err != nil {
		return g, err
	}
	h := n.header
	h.lasts = max(a.TTL, left)
	sent := time.Now()
	if n, err = a.change(ctx, n, h); err != nil {
		return g, err
	}
	return a.grant(n, token, sent)
}

// undo frees, in the background, what the attempt may have set. An adoption stays: when its lease
// ends, the key is an orphan again. To free it would end an orphan that nobody dealt with.
func (a *attempt) undo() {
	if a.adopting {
		return
	}
	a.cleanUp(a.Key, a.path, a.Owner, a.TTL+a.Request.Orphan)
}

// orphaned writes into a node that its lease has ended. After that the holder cannot extend the
// lease, and other processes need not see the node for a whole lease first.
func (b *backend) orphaned(ctx context.Context, n *node, left time.Duration) (*node, error) {
	if n.state == stateOrphaned {
		return n, nil
	}
	return b.change(ctx, n, header{state: stateOrphaned, lasts: left, since: n.ended(), owner: n.owner})
}
