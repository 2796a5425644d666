package sqlbackend

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/cleanup"
	"github.com/onelane/onelane/internal/sqltable"
)

const defaultTimeout = 3 * time.Second

// Option configures the backend. A nil Option is ignored; the later of two wins.
type Option interface{ apply(*opener) }

type option func(*opener)

func (o option) apply(p *opener) { o(p) }

// WithTimeout bounds each call, unless the call's context ends sooner. The default is 3 s.
func WithTimeout(d time.Duration) Option {
	return option(func(p *opener) { p.timeout = d })
}

// New returns the backend on the table onelane_locks of a database, which [Migrate] makes. It never
// closes db. With GORM, db is what its method DB returns. Several Lockers may share one db. On PostgreSQL
// with pgx, a Locker keeps one connection of db from its first waiter on, until Close.
//
// Errors of the database match core.ErrUnavailable. core.New returns an error if db is nil or the
// time-out is not positive.
func New(db *sql.DB, opts ...Option) core.Opener {
	p := &opener{db: db, timeout: defaultTimeout}
	for _, o := range opts {
		if o != nil {
			o.apply(p)
		}
	}
	return p
}

// opener is what New was called with.
type opener struct {
	db      *sql.DB
	timeout time.Duration
}

// Open implements core.Opener.
func (p *opener) Open(env core.Environment) (core.Backend, error) {
	if p.db == nil {
		return nil, errors.New("sqlbackend: New needs a database, got nil")
	}
	if p.timeout <= 0 {
		return nil, fmt.Errorf("sqlbackend: time-out %v must be positive", p.timeout)
	}
	logger := cmp.Or(env.Logger, slog.Default())
	b := &backend{db: p.db, timeout: p.timeout, listener: newListener(p.db, p.timeout)}
	b.cleaning = cleanup.NewQueue(cleanup.Config{Logger: func() *slog.Logger { return logger }},
		"sqlbackend: too many clean-ups wait, so that keys of failed attempts may stay held until their leases end; look at the database",
		"sqlbackend: clean-up of a failed attempt failed; the key is free when its lease and its orphan end")
	return b, nil
}

// backend is the core.Backend on onelane_locks. Its verbs are in verbs.go.
type backend struct {
	db       *sql.DB
	timeout  time.Duration
	cleaning *cleanup.Queue
	listener *listener // used on PostgreSQL

	mu    sync.Mutex
	known *sqltable.Dialect // nil until the server has said what it is
}

// dialect returns the kind of database, for which it asks the server once.
func (b *backend) dialect(ctx context.Context) (sqltable.Dialect, error) {
	b.mu.Lock()
	known := b.known
	b.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	s, err := ask(ctx, b.db)
	if err == nil && s.uncommitted {
		err = errAutocommit
	}
	if err != nil {
		return sqltable.Dialect{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.known = &s.Dialect
	return s.Dialect, nil
}

// Close implements core.Backend. It gives clean-ups a second, and those of calls that are still
// under way, too. Then it ends them.
func (b *backend) Close() error {
	b.listener.close() // calls that wait for it end
	b.cleaning.Close(cleanup.CloseGrace)
	return nil
}
