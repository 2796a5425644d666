package gormlock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/cleanup"
)

const (
	tableTimeout = 3 * time.Second
	tableTokens  = 64 // fencing tokens reserved for a lease
	takeTries    = 5
)

// TableOption configures one [Table]. A nil option is ignored; the later of two wins.
type TableOption interface{ applyTable(*tableOpener) }

type tableOption func(*tableOpener)

func (o tableOption) applyTable(t *tableOpener) { o(t) }

// WithTimeout bounds each call of a [Table], unless the call's context ends sooner. The default is
// 3 s.
func WithTimeout(d time.Duration) TableOption {
	return tableOption(func(t *tableOpener) { t.timeout = d })
}

// Table is the backend whose locks live in the table onelane_locks of a database (see [Migrate]),
// so that a service needs no Redis:
//
//	locker, err := core.New(gormlock.Table(db))
//
// A lock is a row with the binary key, its owner and when the lease ends, by the database's clock.
// Each change is one statement that compares and sets one row; a deadlock or a serialization
// failure is tried again. Fencing tokens are microseconds of the database's clock. They go on
// increasing after [Purge]. Waiters poll. Acquire takes three round trips instead of one on Redis,
// so Table is not for hot keys.
//
// If transactions can use up all connections, give Table a gorm.DB of its own. Otherwise renewals
// wait for a connection, and locks are lost. Also do so if the application changes search_path or
// the database (USE) of its connections, or may leave a transaction open on one. Otherwise Table
// may use another onelane_locks, or commit nothing, and two may hold a lock. On SQLite, always do
// so, with a file of its own, because a transaction there blocks all other writers. A database that
// fails over to a replica may lose locks unless it replicates synchronously. So may one whose
// machine crashes, if it answers COMMIT before the data is on disk. Leases end early if the clock
// of the replica is ahead, or if the database's clock steps forward: two may hold a lock then. On a
// multi-master cluster, write to one master. Behind a proxy that sends SELECT to replicas, Table
// reads at the writer. With dbresolver it uses the source of onelane_locks, as [Migrate] does; of
// several sources each process takes one, so configure exactly one.
//
// Errors of the database match core.ErrUnavailable. MySQL and MariaDB must not have autocommit=0,
// because an uncommitted lock excludes nobody: every call fails then. core.New returns an error if
// db is a transaction or not MySQL, MariaDB, PostgreSQL or SQLite.
func Table(db *gorm.DB, opts ...TableOption) core.Opener {
	t := &tableOpener{db: db, timeout: tableTimeout}
	for _, o := range opts {
		if o != nil {
			o.applyTable(t)
		}
	}
	return t
}

// tableOpener is what Table was called with.
type tableOpener struct {
	db      *gorm.DB
	timeout time.Duration
}

// Open implements core.Opener.
func (t *tableOpener) Open(env core.Environment) (core.Backend, error) {
	if t.db == nil {
		return nil, errors.New("gormlock: Table needs a database, got nil")
	}
	if t.timeout <= 0 {
		return nil, fmt.Errorf("gormlock: Table: time-out %v must be positive", t.timeout)
	}
	d, err := dialectOf(t.db)
	if err != nil {
		return nil, fmt.Errorf("gormlock: Table: %w", err)
	}
	if _, open := transactionOf(t.db.Statement.ConnPool); open {
		return nil, errors.New("gormlock: Table: the database is in a transaction, so that nobody else would see a lock; pass the gorm.DB that the transaction was begun on")
	}
	if _, err := t.db.DB(); err != nil {
		return nil, fmt.Errorf("gormlock: Table: %w", err)
	}
	logger := cmp.Or(env.Logger, slog.Default())
	b := &table{dialect: d, timeout: t.timeout}
	// dbresolver is often registered after the Locker was made, but before it is used.
	b.writer = sync.OnceValues(func() (*sql.DB, error) { return writerOf(t.db, "onelane_locks") })
	b.cleaning = cleanup.NewQueue(cleanup.Config{Logger: func() *slog.Logger { return logger }},
		"gormlock: too many clean-ups wait, so that keys of failed attempts may stay held until their leases end; look at the database",
		"gormlock: clean-up of a failed attempt failed; the key is free when its lease and its orphan end")
	return b, nil
}

// table is the core.Backend on onelane_locks. Its verbs are in table_verbs.go.
type table struct {
	writer   func() (*sql.DB, error)
	dialect  dialect
	timeout  time.Duration
	commits  atomic.Bool // the database was seen to commit each statement
	cleaning *cleanup.Queue
}

// Close implements core.Backend. It gives clean-ups a second, also of calls that are still under
// way, and then ends them.
func (b *table) Close() error {
	b.cleaning.Close(cleanup.CloseGrace)
	return nil
}

// call runs fn with a context of its own and returns when ctx ends. A statement that is canceled in
// the middle costs its connection and may still have its effect at any time. If fn succeeds after
// that, late is called. Close waits for that.
func call[T any](ctx context.Context, b *table, key string, fn func(context.Context) (T, error), late func()) (T, error) {
	type answer struct {
		value T
		err   error
	}
	if ctx.Err() != nil {
		return answer{}.value, unavailable(key, ctx.Err())
	}
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.timeout)
	answers, left := make(chan answer), make(chan struct{})
	done := func() {}
	if late != nil {
		done = b.cleaning.Expect()
	}
	go func() {
		defer cancel()
		defer done()
		var a answer
		if err := b.committing(own); err != nil {
			a.err = unavailable(key, err)
		} else {
			a.value, a.err = fn(own)
		}
		select {
		case answers <- a:
		case <-left:
			if a.err == nil && late != nil {
				late()
			}
		}
	}()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		close(left)
		return answer{}.value, unavailable(key, ctx.Err())
	case <-own.Done(): // and the driver did not notice
		close(left)
		return answer{}.value, unavailable(key, fmt.Errorf("the database did not answer within %v: %w", b.timeout, own.Err()))
	}
}

var errAutocommit = errors.New("gormlock: Table: autocommit is off on its connections, so that nobody else would see a lock; " +
	"take autocommit=0 out of the DSN or the server's settings, or give Table a gorm.DB of its own")

// committing checks, once, that MySQL commits each statement.
func (b *table) committing(ctx context.Context) error {
	if b.dialect.name != "mysql" || b.commits.Load() {
		return nil
	}
	conns, err := b.writer()
	if err != nil {
		return err
	}
	var on bool
	if err := conns.QueryRowContext(ctx, "SELECT @@autocommit").Scan(&on); err != nil {
		return err
	}
	if !on {
		return errAutocommit
	}
	b.commits.Store(true)
	return nil
}

// cleanUp frees, in the background, what an attempt may hold that failed. An adopted key stays, as
// it is an orphan again when the lease ends: to free it would forget the orphan.
func (b *table) cleanUp(q core.Request) {
	if q.Adopt != "" && q.Orphan > 0 {
		return
	}
	b.cleaning.Add(q.Key, q.TTL+q.Orphan, func(ctx context.Context) error {
		_, err := call(ctx, b, q.Key, func(ctx context.Context) (int64, error) {
			return b.exec(ctx, releaseRow, []byte(q.Key), []byte(q.Owner))
		}, nil)
		return err
	})
}
