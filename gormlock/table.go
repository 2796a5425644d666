package gormlock

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
)

const (
	tableTimeout = 3 * time.Second
	tableTokens  = 64 // reserved by each lease
	takeTries    = 5
)

// TableOption configures one [Table]. A nil one is ignored, the later of two wins.
type TableOption interface{ applyTable(*table) }

type tableOption func(*table)

func (o tableOption) applyTable(b *table) { o(b) }

// WithTimeout bounds each call of a [Table] that no context ends sooner. Default 3 s; it must be positive.
func WithTimeout(d time.Duration) TableOption {
	return tableOption(func(b *table) { b.timeout = d })
}

// table is a core.Backend on the table onelane_locks.
type table struct {
	db      *sql.DB
	dialect dialect
	timeout time.Duration
	commits atomic.Bool // each statement, as was seen
}

// Table returns a core.Backend whose locks live in the table onelane_locks (see [Migrate]) of a database: no Redis is
// needed then, for any adapter of this kit.
//
//	locker, err := core.New(gormlock.Table(db))
//
// A lock is a row with the binary key, its holder, when it was taken and when it ends, both by the database's clock. A
// row that has ended is taken over by whoever comes next. Each verb is one statement that changes one row, and reads
// around it; a deadlock or a serialization failure is tried again. Fencing tokens are microseconds of the database's
// clock, and go on increasing when rows are purged. Waiters poll. What Redis does in one round trip takes two or three
// here: it is for where there is no Redis, not for hot keys.
//
// It has the connections of db to itself only if nothing else does: with all of them in transactions renewals wait, and
// locks are lost. Give it a gorm.DB of its own where that may happen, and always on SQLite, in a file of its own, as a
// transaction there keeps all others from writing. A database that fails over to a replica may lose locks, as Redis
// does, unless it replicates synchronously; on a multi-master cluster use one writer.
//
// Errors of the database are core.ErrUnavailable, and so is autocommit=0 of MySQL and MariaDB, as it is at the first call: what
// no statement commits would be no lock. Table panics where db is a transaction, or of another kind than
// MySQL, MariaDB, PostgreSQL and SQLite. It is safe for concurrent use.
func Table(db *gorm.DB, opts ...TableOption) core.Backend {
	d, err := dialectOf(db)
	if err != nil {
		panic(fmt.Sprintf("gormlock: Table: %v", err))
	}
	if _, open := transactionOf(db.Statement.ConnPool); open {
		panic("gormlock: Table: the database is in a transaction, in which locks would be seen by nobody else: pass the gorm.DB that it was begun on")
	}
	conns, err := db.DB()
	if err != nil {
		panic(fmt.Sprintf("gormlock: Table: %v", err))
	}
	b := &table{db: conns, dialect: d, timeout: tableTimeout}
	for _, o := range opts {
		if o != nil {
			o.applyTable(b)
		}
	}
	if b.timeout <= 0 {
		panic(fmt.Sprintf("gormlock: Table: WithTimeout(%v): it must be positive", b.timeout))
	}
	return b
}

// Acquire implements core.Backend.
func (b *table) Acquire(ctx context.Context, key, owner string, ttl time.Duration) (core.Grant, error) {
	if len(key) > maxTableKey || len(owner) > maxOwner {
		return core.Grant{}, fmt.Errorf("gormlock: key %q… has %d bytes, and its owner %d: at most %d and %d fit into onelane_locks: %w",
			key[:min(len(key), 32)], len(key), len(owner), maxTableKey, maxOwner, core.ErrInvalidKey)
	}
	cleanUp := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.timeout)
		defer cancel()
		_, _ = b.exec(ctx, releaseRow, []byte(key), []byte(owner)) // else it lapses with its TTL
	}
	return call(ctx, b, key, func(ctx context.Context) (core.Grant, error) {
		g, err := b.acquire(ctx, key, owner, ttl)
		if errors.Is(err, core.ErrUnavailable) {
			go cleanUp()
		}
		return g, err
	}, cleanUp)
}

func (b *table) acquire(ctx context.Context, key, owner string, ttl time.Duration) (core.Grant, error) {
	var sent time.Time
	var r row
	for range takeTries {
		var err error
		if r, err = b.row(ctx, key); err != nil {
			return core.Grant{}, err
		}
		mine := r.status == core.Held && r.owner == owner
		switch {
		case mine && !sent.IsZero():
			g := core.Grant{Key: key, Owner: owner, Token: uint64(r.token), Tokens: tableTokens, Deadline: deadline(sent, ttl)}
			if !time.Now().Before(g.Deadline) {
				return g, unavailable(key, fmt.Errorf("the answer came when the lease was about to end: %w", context.DeadlineExceeded))
			}
			return g, nil
		case r.status == core.Sealed:
			return core.Grant{}, &core.SealedError{Key: key, Value: r.value, Token: uint64(r.token), ExpiresIn: r.left}
		case r.status == core.Held && !mine:
			return core.Grant{}, r.taken(key)
		}
		sent = time.Now()
		switch {
		case mine:
			_, err = b.exec(ctx, extendRow, micros(ttl), []byte(key), []byte(owner))
		case r.missing:
			_, err = b.exec(ctx, insertRow, []byte(key), []byte(owner), micros(ttl))
		default:
			_, err = b.exec(ctx, takeRow, []byte(owner), micros(ttl), []byte(key))
		}
		if err != nil {
			return core.Grant{}, unavailable(key, err)
		}
	}
	return core.Grant{}, r.taken(key) // others are always faster
}

// Extend implements core.Backend.
func (b *table) Extend(ctx context.Context, g core.Grant, ttl time.Duration) (core.Grant, error) {
	sent := time.Now()
	_, err := b.change(ctx, g.Key, func(r row) error {
		if r.status == core.Held && r.owner == g.Owner { // it lasts longer already
			return nil
		}
		return r.lost()
	}, extendRow, micros(ttl), []byte(g.Key), []byte(g.Owner))
	if d := deadline(sent, ttl); err == nil && d.After(g.Deadline) {
		g.Deadline = d
	}
	return g, err
}

// Release implements core.Backend.
func (b *table) Release(ctx context.Context, g core.Grant) error {
	_, err := b.change(ctx, g.Key, func(r row) error {
		if token := uint64(r.token); r.status == core.Sealed && token >= g.Token && token < g.Token+max(g.Tokens, 1) {
			return nil // by us
		}
		return r.lost()
	}, releaseRow, []byte(g.Key), []byte(g.Owner))
	return err
}

// Seal implements core.Backend.
func (b *table) Seal(ctx context.Context, g core.Grant, token uint64, value []byte, retention time.Duration) error {
	if token > math.MaxInt64 {
		return fmt.Errorf("gormlock: seal key %q: token %d is larger than a database's numbers", g.Key, token)
	}
	if value == nil {
		value = []byte{}
	}
	_, err := b.change(ctx, g.Key, func(r row) error {
		if r.status == core.Sealed && uint64(r.token) == token && bytes.Equal(r.value, value) {
			return nil
		}
		return r.lost()
	}, sealRow, int64(token), value, micros(retention), []byte(g.Key), []byte(g.Owner))
	return err
}

// Unseal implements core.Backend.
func (b *table) Unseal(ctx context.Context, key string) error {
	_, err := b.change(ctx, key, func(row) error { return nil }, unsealRow, []byte(key))
	return err
}

// Inspect implements core.Backend.
func (b *table) Inspect(ctx context.Context, key string) (core.State, error) {
	r, err := call(ctx, b, key, func(ctx context.Context) (row, error) { return b.row(ctx, key) }, nil)
	if err != nil || r.status == core.Free {
		return core.State{}, err
	}
	return core.State{Status: r.status, Owner: r.owner, Token: uint64(r.token), Value: r.value, ExpiresIn: r.left}, nil
}

// change runs a statement that changes the key's row, if it is in the state that the statement wants, and has otherwise
// say what it means that it is not.
func (b *table) change(ctx context.Context, key string, otherwise func(row) error, statement string, args ...any) (row, error) {
	return call(ctx, b, key, func(ctx context.Context) (row, error) {
		n, err := b.exec(ctx, statement, args...)
		if err != nil {
			return row{}, unavailable(key, err)
		}
		if n > 0 {
			return row{}, nil
		}
		r, err := b.row(ctx, key)
		if err != nil {
			return r, err
		}
		return r, otherwise(r)
	}, nil)
}

// call runs fn on a context of its own, and returns when ctx ends: a statement that is given up in its middle, with its
// connection, may still have its effect at any time. If fn succeeds after that, late is called.
func call[T any](ctx context.Context, b *table, key string, fn func(context.Context) (T, error), late func()) (T, error) {
	type answer struct {
		value T
		err   error
	}
	if ctx.Err() != nil {
		return answer{}.value, unavailable(key, context.Cause(ctx))
	}
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.timeout)
	answers, left := make(chan answer), make(chan struct{})
	go func() {
		defer cancel()
		var value T
		err := b.committing(own)
		if err == nil {
			value, err = fn(own)
		} else {
			err = unavailable(key, err)
		}
		select {
		case answers <- answer{value, err}:
		case <-left:
			if err == nil && late != nil {
				late()
			}
		}
	}()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		close(left)
		return answer{}.value, unavailable(key, context.Cause(ctx))
	case <-own.Done(): // and the driver did not notice
		close(left)
		return answer{}.value, unavailable(key, fmt.Errorf("the database did not answer within %v: %w", b.timeout, context.Cause(own)))
	}
}

var errAutocommit = errors.New("gormlock: Table: autocommit is off on its connections, so that nobody else would see a lock, and it would be gone with its connection: " +
	"take autocommit=0 out of the DSN or the server's settings, or give Table a gorm.DB of its own")

// committing looks, once, whether MySQL commits each statement.
func (b *table) committing(ctx context.Context) error {
	if b.dialect.name != "mysql" || b.commits.Load() {
		return nil
	}
	var on bool
	if err := b.db.QueryRowContext(ctx, "SELECT @@autocommit").Scan(&on); err != nil {
		return err
	}
	if !on {
		return errAutocommit
	}
	b.commits.Store(true)
	return nil
}

// taken says by whom. The row may have become free again.
func (r row) taken(key string) *core.TakenError {
	holder, tag, _ := strings.Cut(r.owner, "#")
	return &core.TakenError{Key: key, Holder: holder, Tag: tag, RetryAfter: r.left}
}

// lost says how a lease is gone.
func (r row) lost() error {
	switch r.status {
	case core.Sealed:
		return fmt.Errorf("%w: the key is sealed", core.ErrLost)
	case core.Held:
		return fmt.Errorf("%w: the key is held by %s", core.ErrLost, r.owner)
	default:
		return fmt.Errorf("%w: the key is free, or the lease ran out", core.ErrLost)
	}
}
