package gormlock_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glebarez/sqlite"
	"gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/internal/ownertext"
	"github.com/onelane/onelane/testutil"
)

// relay is a driver between Table and a database. With a replica it is a proxy that splits reads
// from writes. With exec it is a network that loses or delays answers.
type relay struct {
	primary, replica *sql.DB
	untilWrite       bool         // as Pgpool, which reads at the replica until a transaction writes
	statements       atomic.Int32 // that were sent
	sent             func(ctx context.Context, query string)
	exec             func(query string, args []any, run func() (driver.Result, error)) (driver.Result, error)
}

// open returns a database of db's kind whose connections go through r.
func (r *relay) open(t *testing.T, db *gorm.DB) *gorm.DB {
	t.Helper()
	conns := sql.OpenDB(r)
	t.Cleanup(func() { _ = conns.Close() })
	dialector := map[string]gorm.Dialector{
		"sqlite":   &sqlite.Dialector{Conn: conns},
		"mysql":    mysql.New(mysql.Config{Conn: conns}),
		"postgres": postgres.New(postgres.Config{Conn: conns}),
	}[db.Name()]
	through, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard})
	ok(t, "Open", err)
	return through
}

func (r *relay) Driver() driver.Driver { return r.primary.Driver() }

func (r *relay) Connect(ctx context.Context) (driver.Conn, error) {
	c := &relayConn{relay: r}
	var err error
	if c.primary, err = r.primary.Conn(ctx); err == nil && r.replica != nil {
		c.replica, err = r.replica.Conn(ctx)
	}
	return c, err
}

type relayConn struct {
	relay            *relay
	primary, replica *sql.Conn
	begun            bool // until the transaction ends, all statements go to the primary
	wrote            bool // in the transaction, or before it
}

func (c *relayConn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

func (c *relayConn) BeginTx(ctx context.Context, opts driver.TxOptions) (tx driver.Tx, err error) {
	if opts.ReadOnly && c.replica != nil {
		return nil, errors.New("a read-only transaction goes to the replica")
	}
	err = c.primary.Raw(func(raw any) (err error) {
		tx, err = raw.(driver.ConnBeginTx).BeginTx(ctx, opts)
		return err
	})
	c.begun, c.wrote = err == nil, false
	return &relayTx{tx, c}, err
}

type relayTx struct {
	driver.Tx
	conn *relayConn
}

func (t *relayTx) Commit() error   { t.conn.begun = false; return t.Tx.Commit() }
func (t *relayTx) Rollback() error { t.conn.begun = false; return t.Tx.Rollback() }

func (c *relayConn) Close() error {
	err := c.primary.Close()
	if c.replica != nil {
		err = errors.Join(err, c.replica.Close())
	}
	return err
}

func (c *relayConn) Prepare(query string) (driver.Stmt, error) {
	c.relay.statements.Add(1)
	conn := c.primary
	reads := strings.HasPrefix(query, "SELECT") && !strings.Contains(query, "FOR UPDATE")
	c.wrote = c.wrote || !reads
	pinned := c.begun && (c.wrote || !c.relay.untilWrite)
	if c.replica != nil && !pinned && reads {
		conn = c.replica
	}
	var stmt driver.Stmt
	err := conn.Raw(func(raw any) (err error) {
		stmt, err = raw.(driver.Conn).Prepare(query)
		return err
	})
	return &relayStmt{stmt, query, c.relay}, err
}

// ExecContext passes several statements on, which cannot be prepared.
func (c *relayConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (result driver.Result, err error) {
	if len(args) > 0 {
		return nil, driver.ErrSkip
	}
	c.relay.statements.Add(1)
	err = c.primary.Raw(func(raw any) (err error) {
		result, err = raw.(driver.ExecerContext).ExecContext(ctx, query, nil)
		return err
	})
	return result, err
}

type relayStmt struct {
	driver.Stmt
	query string
	relay *relay
}

func (s *relayStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if s.relay.sent != nil {
		s.relay.sent(ctx, s.query)
	}
	return s.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args)
}

func (s *relayStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if s.relay.sent != nil {
		s.relay.sent(ctx, s.query)
	}
	run := func() (driver.Result, error) { return s.Stmt.(driver.StmtExecContext).ExecContext(ctx, args) }
	if s.relay.exec == nil {
		return run()
	}
	values := make([]any, len(args))
	for i, a := range args {
		values[i] = a.Value
	}
	return s.relay.exec(s.query, values, run)
}

// The replica knows nothing, and later it knows only what was long ago.
func TestTable_ReadWriteSplit(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() == "sqlite" { // has no replicas
			return
		}
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
		replica := beside(t, db, "replica", 1)
		ok(t, "Migrate", gormlock.Migrate(replica))
		ok(t, "Migrate", gormlock.Migrate(db))
		split := &relay{primary: pool(t, db), replica: pool(t, replica)}
		b := opened(t, gormlock.Table(split.open(t, db), gormlock.WithTimeout(time.Minute)))

		g, err := b.Acquire(t.Context(), request("k", "first/1", time.Minute))
		ok(t, "Acquire", err)
		_, err = b.Acquire(t.Context(), request("k", "second/1", time.Minute))
		want(t, "Acquire of a held key", err, core.ErrTaken)
		g, err = b.Extend(t.Context(), g, 2*time.Minute)
		ok(t, "Extend", err)

		old := opened(t, gormlock.Table(replica, gormlock.WithTimeout(time.Minute)))
		_, err = old.Acquire(t.Context(), request("k", "first/1", time.Minute))
		ok(t, "Acquire on the replica", err)
		ok(t, "Release", b.release(t.Context(), g))
		second, err := opened(t, gormlock.Table(db, gormlock.WithTimeout(time.Minute))).Acquire(t.Context(), request("k", "second/1", time.Minute))
		ok(t, "Acquire on the primary", err)
		_, err = b.Extend(t.Context(), g, time.Minute)
		want(t, "Extend of a lost lease", err, core.ErrLost)
		want(t, "Release of a lost lease", b.release(t.Context(), g), core.ErrLost)
		want(t, "Seal of a lost lease", b.Seal(t.Context(), g, nil, time.Minute), core.ErrLost)
		ok(t, "Seal", b.Seal(t.Context(), second, []byte("v"), time.Minute))
		ok(t, "Seal again", b.Seal(t.Context(), second, []byte("v"), time.Minute))
		ok(t, "Release of a sealed key", b.release(t.Context(), second))
	})
}

// An INSERT whose connection broke has its effect after the first clean-up. Without the second one
// the key would be held, and then orphaned for an hour.
func TestTable_LateInsertIsCleanedUp(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Migrate", gormlock.Migrate(db))
		var mu sync.Mutex
		var late func() error
		released := make(chan error, 1)
		network := &relay{primary: pool(t, db)}
		network.exec = func(query string, args []any, run func() (driver.Result, error)) (driver.Result, error) {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case strings.HasPrefix(query, "INSERT"):
				late = func() error { _, err := network.primary.Exec(query, args...); return err }
				return nil, errors.New("the connection broke")
			case late != nil && strings.Contains(query, "SET state = 0"):
				result, err := run()
				released <- errors.Join(err, late())
				late = nil
				return result, err
			}
			return run()
		}
		through := network.open(t, db)
		b, err := gormlock.Table(through, gormlock.WithTimeout(time.Minute)).Open(core.Environment{Logger: slog.New(slog.DiscardHandler)})
		ok(t, "Open", err)
		r := core.Request{Key: "k", Owner: ownertext.New("i", "", time.Hour), TTL: time.Hour, Orphan: time.Hour}
		_, err = b.Acquire(t.Context(), r)
		want(t, "Acquire", err, core.ErrUnavailable)
		ok(t, "the INSERT", <-released)
		eventually(t, "the key is free", func() bool {
			st, err := b.Inspect(t.Context(), "k")
			return err == nil && st.Status == core.Free
		})
		ok(t, "Close", b.Close())
	})
}

// The answer to the INSERT comes when the lease is over. The orphan is the attempt's own.
func TestTable_LateAnswerLeavesNoOrphan(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Migrate", gormlock.Migrate(db))
		b := opened(t, gormlock.Table(db))
		network := &relay{primary: pool(t, db)}
		network.exec = func(query string, _ []any, run func() (driver.Result, error)) (driver.Result, error) {
			result, err := run()
			if strings.HasPrefix(query, "INSERT") {
				eventually(t, "the lease ended", func() bool {
					st, err := b.Inspect(context.Background(), "k")
					return err == nil && st.Status == core.Orphaned
				})
			}
			return result, err
		}
		slow := opened(t, gormlock.Table(network.open(t, db), gormlock.WithTimeout(time.Minute)))
		r := core.Request{Key: "k", Owner: ownertext.New("i", "", time.Hour), TTL: 50 * time.Millisecond, Orphan: time.Hour}
		_, err := slow.Acquire(t.Context(), r)
		want(t, "Acquire", err, core.ErrUnavailable)
		eventually(t, "the key is free", func() bool {
			st, err := b.Inspect(t.Context(), "k")
			return err == nil && st.Status == core.Free
		})
	})
}

// Close lets a clean-up that is under way end first.
func TestTable_CloseCleansUp(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Migrate", gormlock.Migrate(db))
		freesOnClose(t, db, func(key string) (began time.Time) {
			network := &relay{primary: pool(t, db)}
			network.exec = func(query string, _ []any, run func() (driver.Result, error)) (driver.Result, error) {
				result, err := run()
				if strings.HasPrefix(query, "INSERT") {
					return nil, errors.Join(err, errors.New("the answer was lost"))
				}
				return result, err
			}
			l := locker(t, gormlock.Table(network.open(t, db)), core.WithOutageWait(0), core.WithOrphan(time.Hour))
			_, err := l.Acquire(t.Context(), key)
			want(t, "Acquire", err, core.ErrUnavailable)
			began = time.Now()
			ok(t, "Close", l.Close())
			return began
		})
	})
}

// Close lets a call go on that its caller has given up, and then cleans up after it.
func TestTable_CloseAwaitsLateCalls(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Migrate", gormlock.Migrate(db))
		freesOnClose(t, db, func(key string) (began time.Time) {
			ctx, cancel := context.WithCancel(t.Context())
			inserted := make(chan struct{})
			network := &relay{primary: pool(t, db)}
			network.exec = func(query string, _ []any, run func() (driver.Result, error)) (driver.Result, error) {
				if strings.HasPrefix(query, "INSERT") {
					defer close(inserted)
					cancel()
					time.Sleep(200 * time.Millisecond)
				}
				return run()
			}
			l := locker(t, gormlock.Table(network.open(t, db)), core.WithTTL(time.Hour))
			_, err := l.Acquire(ctx, key)
			want(t, "Acquire", err, context.Canceled)
			began = time.Now()
			ok(t, "Close", l.Close())
			<-inserted
			return began
		})
	})
}

// freesOnClose checks that nobody has a key after a Close, which began then. Close waits for a
// second. On a busy machine that may be too short, so there are ten tries.
func freesOnClose(t *testing.T, db *gorm.DB, closes func(key string) (began time.Time)) {
	t.Helper()
	for try := range 10 {
		key := fmt.Sprint("k", try)
		began := closes(key)
		took := time.Since(began)
		k, err := locker(t, gormlock.Table(db, gormlock.WithTimeout(time.Minute))).TryAcquire(t.Context(), key)
		if took >= time.Second && errors.Is(err, core.ErrTaken) {
			continue
		}
		ok(t, "Acquire after Close", err)
		ok(t, "Release", k.Release(t.Context()))
		return
	}
	t.Error("Close did not clean up, ten times")
}

// A driver that ignores contexts does not hold up Close.
func TestTable_CloseWhileCleanUpsHang(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Migrate", gormlock.Migrate(db))
		hangs := make(chan struct{})
		network := &relay{primary: pool(t, db)}
		network.exec = func(query string, _ []any, run func() (driver.Result, error)) (driver.Result, error) {
			if strings.Contains(query, "SET state = 0") {
				<-hangs
			}
			result, err := run()
			if strings.HasPrefix(query, "INSERT") {
				return nil, errors.Join(err, errors.New("the answer was lost"))
			}
			return result, err
		}
		l := locker(t, gormlock.Table(network.open(t, db)), core.WithOutageWait(0))
		t.Cleanup(func() { close(hangs) })
		_, err := l.Acquire(t.Context(), "k")
		want(t, "Acquire", err, core.ErrUnavailable)
		closed := make(chan error, 1)
		go func() { closed <- l.Close() }()
		select {
		case err := <-closed:
			ok(t, "Close", err)
		case <-time.After(10 * time.Second):
			t.Error("Close has not returned after 10s, and its grace is 1s")
		}
	})
}
