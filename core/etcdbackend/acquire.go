package etcdbackend

import (
	"context"
	"errors"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/leases"
	"github.com/onelane/onelane/internal/ownertext"
)

// Acquire implements core.Backend. Every lease has a fencing token: it costs nothing here.
func (b *backend) Acquire(ctx context.Context, q core.Request) (core.Grant, error) {
	if err := fits(q.Key, q.Owner); err != nil {
		return core.Grant{}, err
	}
	if ctx.Err() != nil {
		return core.Grant{}, unavailable(q.Key, ctx.Err())
	}
	ctx, cancel := b.bound(ctx)
	defer cancel()
	defer b.cleaning.Expect()() // Close waits for what may need a clean-up
	e, sent, err := b.change(ctx, entry{key: q.Key}, q.Owner, func(e entry) (step, error) {
		r, err := e.acquire(q)
		return step{write: r}, err
	})
	if err == nil {
		if g := e.grant(q, sent); time.Now().Before(g.Deadline) {
			return g, nil
		}
		err = unavailable(q.Key, errors.New("etcdbackend: the answer came when the lease was about to end; try again, or use a longer TTL"))
	}
	// A request is under way only if one was sent, and if etcd did not refuse it.
	if u, is := errors.AsType[*core.UnavailableError](err); is && !u.Permanent && !sent.IsZero() {
		b.cleanUp(q)
	}
	return core.Grant{}, err
}

// acquire returns the record that a request writes over e.
func (e entry) acquire(q core.Request) (*record, error) {
	r := &record{State: stateHeld, Owner: q.Owner, TTL: ownertext.Millis(q.TTL), Orphan: ownertext.Millis(q.Orphan)}
	switch s, left := e.status(); {
	case s == core.Sealed:
		return nil, &core.SealedError{Key: e.key, Value: e.value, Token: e.Token}
	case s == core.Held && e.Owner == q.Owner: // after a lost reply
		r.Token, r.Adopted, r.AdoptedFor = e.token(), e.Adopted, e.AdoptedFor
	case s == core.Held:
		return nil, leases.Taken(e.key, e.Owner, left)
	case s == core.Orphaned && e.Owner == q.Owner:
		return nil, unavailable(e.key, errors.New("etcdbackend: the answer came when the lease had ended; try again, or use a longer TTL"))
	case s == core.Orphaned && e.Owner != q.Adopt:
		return nil, &core.OrphanedError{Key: e.key, Owner: e.Owner, Since: e.orphaned()}
	case s == core.Orphaned:
		r.Adopted, r.AdoptedFor = e.Owner, ownertext.Millis(left)
	}
	return r, nil
}

// grant returns the grant of a lease whose write was sent at a time, with a note of how the write
// left the key.
func (e entry) grant(q core.Request, sent time.Time) core.Grant {
	return core.Grant{Key: q.Key, Owner: q.Owner, Token: e.token(), Tokens: tokensPerLease,
		Deadline: leases.Deadline(sent, q.TTL), Orphan: q.Orphan, Backend: &e}
}

// known returns the key as g's last write left it. It reads the key if g does not say, or if the
// lease ended since: an Extend of unknown outcome may have made it longer.
func (b *backend) known(ctx context.Context, g core.Grant) (entry, error) {
	n, ok := g.Backend.(*entry)
	if !ok || n.Owner != g.Owner {
		return b.read(ctx, g.Key, lazy)
	}
	if s, _ := n.status(); s == core.Held {
		return *n, nil
	}
	e, err := b.read(ctx, g.Key, lazy)
	if err == nil && e.revision == n.revision {
		return *n, nil
	}
	return e, err
}
