package etcdbackend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/leases"
	"github.com/onelane/onelane/internal/ownertext"
)

// Mint implements core.Backend. Every grant has its token.
func (b *backend) Mint(_ context.Context, g core.Grant) (core.Grant, error) { return g, nil }

// Extend implements core.Backend.
func (b *backend) Extend(ctx context.Context, g core.Grant, ttl time.Duration) (core.Grant, error) {
	notLonger := !leases.Deadline(time.Now(), ttl).After(g.Deadline)
	own := g
	if notLonger {
		own.Backend = nil // nothing is written, so etcd has to be read
	}
	e, sent, err := b.changeOwn(ctx, own, func(e entry) (step, error) {
		s, left := e.status()
		if s != core.Held || e.Owner != g.Owner {
			return step{}, e.lost()
		}
		if notLonger {
			return step{}, nil
		}
		r := e.record
		r.TTL, r.Token = ownertext.Millis(max(ttl, left)), g.Token // g may be older than another Extend
		r.Adopted, r.AdoptedFor = "", 0
		return step{write: &r}, nil
	})
	if err != nil || notLonger {
		return g, err
	}
	g.Deadline, g.Backend = leases.Deadline(sent, ttl), &e
	return g, nil
}

// Release implements core.Backend. It does not know how many others wait.
func (b *backend) Release(ctx context.Context, g core.Grant) (core.Waiters, error) {
	_, _, err := b.changeOwn(ctx, g, func(e entry) (step, error) {
		s, _ := e.status()
		switch {
		case e.Owner != g.Owner && e.repeated && time.Now().Before(g.Deadline):
			return step{}, nil // the try before did it
		case e.Owner != g.Owner || s == core.Free:
			return step{}, e.lost()
		case s == core.Sealed:
			return step{}, nil
		}
		return step{delete: true}, nil
	})
	return core.Waiters{Others: -1}, err
}

// Seal implements core.Backend.
func (b *backend) Seal(
	ctx context.Context, g core.Grant, value []byte, retention time.Duration,
) error {
	if len(value) > maxValue {
		return fmt.Errorf("etcdbackend: seal key %q: the value has %d bytes, at most %d fit into etcd's "+
			"requests; store it elsewhere and seal a reference", g.Key, len(value), maxValue)
	}
	_, _, err := b.changeOwn(ctx, g, func(e entry) (step, error) {
		s, _ := e.status()
		switch {
		case e.Owner != g.Owner || s == core.Free, s == core.Sealed && !bytes.Equal(e.value, value):
			return step{}, e.lost()
		case s == core.Sealed:
			return step{}, nil
		}
		r := record{State: stateSealed, Owner: g.Owner, TTL: ownertext.Millis(retention), Token: g.Token, value: value}
		return step{write: &r}, nil
	})
	return err
}

// Orphan implements core.Sealer.
func (b *backend) Orphan(ctx context.Context, g core.Grant) error {
	_, _, err := b.changeOwn(ctx, g, func(e entry) (step, error) {
		s, _ := e.status()
		switch {
		case e.Owner != g.Owner || s != core.Held && s != core.Orphaned:
			return step{}, e.lost()
		case s == core.Orphaned:
			return step{}, nil
		}
		r := e.record
		r.TTL, r.Token = 0, g.Token
		r.Adopted, r.AdoptedFor = "", 0
		return step{write: &r}, nil
	})
	return err
}

// Unseal implements core.Backend. If a reply was lost, a repeated try does not free what another
// owner wrote later.
func (b *backend) Unseal(ctx context.Context, key string) error {
	owner := ""
	_, _, err := b.changeOwn(ctx, core.Grant{Key: key}, func(e entry) (step, error) {
		if e.repeated && e.Owner != owner {
			return step{}, nil // the try before may have freed the key
		}
		owner = e.Owner
		s, _ := e.status()
		return step{delete: s == core.Sealed || s == core.Orphaned}, nil
	})
	return err
}

// changeOwn is change for the key of a grant. The grant may also have no owner and only name the
// key.
func (b *backend) changeOwn(
	ctx context.Context, g core.Grant, decide func(entry) (step, error),
) (e entry, sent time.Time, err error) {
	if ctx.Err() != nil {
		return e, sent, unavailable(g.Key, ctx.Err())
	}
	ctx, cancel := b.bound(ctx)
	defer cancel()
	if e, err = b.known(ctx, g); err != nil {
		return e, sent, err
	}
	return b.change(ctx, e, "", decide)
}

// Inspect implements core.Backend.
func (b *backend) Inspect(ctx context.Context, key string) (core.State, error) {
	if ctx.Err() != nil {
		return core.State{}, unavailable(key, ctx.Err())
	}
	ctx, cancel := b.bound(ctx)
	defer cancel()
	e, err := b.read(ctx, key, exact)
	if err != nil {
		return core.State{}, err
	}
	s, left := e.status()
	st := core.State{Status: s, ExpiresIn: left}
	switch s {
	case core.Sealed:
		st.Value, st.Token = e.value, e.Token
	case core.Held:
		st.Owner, st.Token = e.Owner, e.token()
	case core.Orphaned:
		st.Owner, st.Token, st.Since = e.Owner, e.token(), e.orphaned()
	}
	return st, nil
}

// Ping implements core.Backend. The read needs a majority of the members. If this user may not read
// the key, that is an answer as well.
func (b *backend) Ping(ctx context.Context) error {
	if ctx.Err() != nil {
		return unavailable("", ctx.Err())
	}
	ctx, cancel := b.bound(ctx)
	defer cancel()
	return b.retry(ctx, "", func(ctx context.Context) error {
		_, err := b.client.Get(ctx, "onelane:ping", clientv3.WithCountOnly())
		if errors.Is(err, rpctypes.ErrPermissionDenied) {
			return nil
		}
		return err
	})
}
