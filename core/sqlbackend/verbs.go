package sqlbackend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/leases"
	"github.com/onelane/onelane/internal/sqlerr"
	"github.com/onelane/onelane/internal/sqltable"
)

// Acquire implements core.Backend. Every lease gets its fencing token unasked: it costs nothing
// here.
func (b *backend) Acquire(ctx context.Context, q core.Request) (core.Grant, error) {
	if len(q.Key) > maxKey || len(q.Owner) > maxOwner {
		return core.Grant{}, fmt.Errorf("sqlbackend: key %q… has %d bytes and its owner %d; at most %d and %d fit into onelane_locks: %w",
			q.Key[:min(len(q.Key), 32)], len(q.Key), len(q.Owner), maxKey, maxOwner, core.ErrInvalidKey)
	}
	return call(ctx, b, q.Key, func(ctx context.Context) (core.Grant, error) {
		g, wrote, err := b.acquire(ctx, q)
		if wrote && errors.Is(err, core.ErrUnavailable) {
			b.cleanUp(q)
		}
		return g, err
	}, func() { b.cleanUp(q) })
}

// acquire reads the row and writes it until the row says who has the key. wrote reports whether
// something may be held if there is an error.
func (b *backend) acquire(ctx context.Context, q core.Request) (g core.Grant, wrote bool, err error) {
	var sent time.Time
	var r row
	for try := 0; ; try++ {
		if r, err = b.row(ctx, q.Key); err != nil {
			return g, wrote, err
		}
		mine := r.ownedBy(q.Owner, core.Held)
		switch {
		case mine && wrote:
			g, err = r.granted(q, sent)
			return g, true, err
		case r.status == core.Sealed:
			return g, false, &core.SealedError{Key: q.Key, Value: r.value, Token: uint64(r.token)}
		case r.ownedBy(q.Owner, core.Orphaned):
			return g, true, unavailable(q.Key, errors.New("the answer came when the lease had ended; try again, or use a longer TTL"))
		case r.status == core.Orphaned && r.owner != q.Adopt:
			return g, false, &core.OrphanedError{Key: q.Key, Owner: r.owner, Since: r.since}
		case r.status == core.Held && !mine && q.Waiter != "" && q.Needs > 0 && !r.waited && b.listener.hearing() && try < takeTries:
			// It listens, and this lease is a new one.
			n, err := b.exec(ctx, q.Key, markRow, []byte(q.Key))
			if err != nil {
				return g, wrote, unavailable(q.Key, err)
			}
			if n > 0 {
				return g, wrote, leases.Taken(q.Key, r.owner, r.left)
			}
			continue // it may be free
		case r.status == core.Held && !mine, try == takeTries: // others are always faster
			return g, false, leases.Taken(q.Key, r.owner, r.left)
		}
		sent, wrote = time.Now(), true
		switch {
		case mine:
			_, err = b.exec(ctx, q.Key, extendRow, sqltable.Micros(q.TTL), []byte(q.Key), []byte(q.Owner))
		case r.missing:
			_, err = b.exec(ctx, q.Key, insertRow, []byte(q.Key), []byte(q.Owner), sqltable.Micros(q.TTL), sqltable.Micros(q.Orphan))
		default:
			_, err = b.exec(ctx, q.Key, takeRow, []byte(q.Owner), sqltable.Micros(q.TTL), sqltable.Micros(q.Orphan), []byte(q.Key), []byte(q.Adopt))
		}
		if err != nil {
			return g, true, unavailable(q.Key, err)
		}
	}
}

// granted returns the grant of a statement that was sent at a time.
func (r row) granted(q core.Request, sent time.Time) (core.Grant, error) {
	g := core.Grant{Key: q.Key, Owner: q.Owner, Token: uint64(r.token), Tokens: tokens,
		Deadline: leases.Deadline(sent, q.TTL), Orphan: q.Orphan}
	if d := r.deadline(); d.Before(g.Deadline) { // see change
		g.Deadline = d
	}
	if !time.Now().Before(g.Deadline) {
		return core.Grant{}, unavailable(q.Key, errors.New("the answer came when the lease was about to end; try again, or use a longer TTL"))
	}
	return g, nil
}

// Mint implements core.Backend. Each grant has its token from Acquire.
func (b *backend) Mint(_ context.Context, g core.Grant) (core.Grant, error) { return g, nil }

// Extend implements core.Backend.
func (b *backend) Extend(ctx context.Context, g core.Grant, ttl time.Duration) (core.Grant, error) {
	deadline := leases.Deadline(time.Now(), ttl)
	err := b.change(ctx, g.Key, func(r row) (done, again bool) {
		held := r.ownedBy(g.Owner, core.Held)
		return held && !r.deadline().Before(deadline), held // done: it lasts longer already
	}, extendRow, sqltable.Micros(ttl), []byte(g.Key), []byte(g.Owner))
	if err == nil && deadline.After(g.Deadline) {
		g.Deadline = deadline
	}
	return g, err
}

// Release implements core.Backend.
func (b *backend) Release(ctx context.Context, g core.Grant) (core.Waiters, error) {
	return core.Waiters{Others: -1}, b.change(ctx, g.Key, func(r row) (done, again bool) {
		return r.ownedBy(g.Owner, core.Sealed), r.ownedBy(g.Owner, core.Held, core.Orphaned)
	}, releaseRow, []byte(g.Key), []byte(g.Owner))
}

// Seal implements core.Backend.
func (b *backend) Seal(ctx context.Context, g core.Grant, value []byte, retention time.Duration) error {
	if value == nil {
		value = []byte{}
	}
	err := b.change(ctx, g.Key, func(r row) (done, again bool) {
		return r.ownedBy(g.Owner, core.Sealed) && bytes.Equal(r.value, value),
			r.ownedBy(g.Owner, core.Held, core.Orphaned)
	}, sealRow, int64(g.Token), value, sqltable.Micros(retention), []byte(g.Key), []byte(g.Owner))
	if sqlerr.TooLarge(err) { // no outage: the caller must not try this value again
		return fmt.Errorf("sqlbackend: seal key %q: MySQL refuses a value of %d bytes; raise its max_allowed_packet, "+
			"or seal a smaller value: %v", g.Key, len(value), err)
	}
	return err
}

// Orphan implements core.Sealer.
func (b *backend) Orphan(ctx context.Context, g core.Grant) error {
	return b.change(ctx, g.Key, func(r row) (done, again bool) {
		return r.ownedBy(g.Owner, core.Orphaned), r.ownedBy(g.Owner, core.Held)
	}, orphanRow, []byte(g.Key), []byte(g.Owner))
}

// Unseal implements core.Backend.
func (b *backend) Unseal(ctx context.Context, key string) error {
	return b.change(ctx, key, func(r row) (done, again bool) {
		again = r.status == core.Sealed || r.status == core.Orphaned
		return !again, again
	}, unsealRow, []byte(key))
}

// Inspect implements core.Backend.
func (b *backend) Inspect(ctx context.Context, key string) (core.State, error) {
	r, err := call(ctx, b, key, func(ctx context.Context) (row, error) { return b.row(ctx, key) }, nil)
	if err != nil || r.status == core.Free {
		return core.State{}, err
	}
	st := core.State{Status: r.status, Owner: r.owner, Token: uint64(r.token), Value: r.value, ExpiresIn: r.left, Since: r.since}
	if r.status == core.Sealed {
		st.Owner = ""
	}
	return st, nil
}

// Ping implements core.Backend. It also finds out whether onelane_locks is there.
func (b *backend) Ping(ctx context.Context) error {
	_, err := call(ctx, b, "", func(ctx context.Context) (row, error) { return b.row(ctx, "") }, nil)
	return err
}

// Watch implements core.Backend. Waiters poll, except on PostgreSQL with pgx.
func (b *backend) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	forget := func() {} // only the call below uses it
	w, err := call(ctx, b, key, func(ctx context.Context) (watch, error) {
		w, err := b.watch(ctx, key)
		forget = w.stop
		return w, err
	}, func() { forget() })
	if err != nil {
		return nil, func() {}, err
	}
	return w.changed, w.stop, nil
}

type watch struct {
	changed <-chan struct{} // nil if waiters poll
	stop    func()
}

func (b *backend) watch(ctx context.Context, key string) (watch, error) {
	polls := watch{stop: func() {}}
	d, err := b.dialect(ctx)
	if err != nil {
		return polls, unavailable(key, err)
	}
	if d.Name != sqltable.Postgres {
		return polls, nil
	}
	signals, stop, err := b.listener.watch(ctx, key)
	if err != nil {
		return polls, unavailable(key, err)
	}
	if signals == nil {
		return polls, nil
	}
	if _, err := b.exec(ctx, key, markRow, []byte(key)); err != nil {
		stop()
		return polls, unavailable(key, err)
	}
	return watch{signals, stop}, nil
}

// change runs a statement that changes the key's row. If no row was changed, judge reports whether
// that is a success, and whether the row is as the statement wants it. Then the statement is sent
// again: MariaDB may report success for an UPDATE that KILL QUERY ended before it changed its row.
// Otherwise change returns ErrLost.
func (b *backend) change(
	ctx context.Context, key string, judge func(row) (done, again bool), statement string, args ...any,
) error {
	_, err := call(ctx, b, key, func(ctx context.Context) (struct{}, error) {
		for try := 0; ; try++ {
			n, err := b.exec(ctx, key, statement, args...)
			if err != nil {
				return struct{}{}, unavailable(key, err)
			}
			if n > 0 {
				return struct{}{}, nil
			}
			r, err := b.row(ctx, key)
			done, again := judge(r)
			switch {
			case err != nil || done:
				return struct{}{}, err
			case !again:
				return struct{}{}, leases.Lost(r.status, r.owner)
			case try == takeTries:
				return struct{}{}, unavailable(key, errInterrupted)
			}
		}
	}, nil)
	return err
}

var errInterrupted = errors.New("an UPDATE of onelane_locks changed nothing, although the row was there: " +
	"KILL QUERY may have ended it")
