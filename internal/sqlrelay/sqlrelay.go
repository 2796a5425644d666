// Package sqlrelay is for tests. It stands between a pool of database/sql and a database, as a proxy or
// as a network that loses answers.
package sqlrelay

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
)

// Relay is a driver between a pool and a database. With a Replica it is a proxy that splits reads
// from writes. With Exec it is a network that loses or delays answers.
type Relay struct {
	Primary, Replica *sql.DB
	UntilWrite       bool         // as Pgpool, which reads at the replica until a transaction writes
	Statements       atomic.Int32 // that were sent
	Commit           func(run func() error) error
	Exec             func(query string, args []any, run func() (driver.Result, error)) (driver.Result, error)
}

// Open returns a pool whose connections go through r. It is closed with the test.
func (r *Relay) Open(t testing.TB) *sql.DB {
	t.Helper()
	db := sql.OpenDB(r)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// Driver implements driver.Connector.
func (r *Relay) Driver() driver.Driver { return r.Primary.Driver() }

// Connect implements driver.Connector.
func (r *Relay) Connect(ctx context.Context) (driver.Conn, error) {
	c := &relayConn{relay: r}
	var err error
	if c.primary, err = r.Primary.Conn(ctx); err == nil && r.Replica != nil {
		c.replica, err = r.Replica.Conn(ctx)
	}
	return c, err
}

type relayConn struct {
	relay            *Relay
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

func (t *relayTx) Commit() error {
	t.conn.begun = false
	if commit := t.conn.relay.Commit; commit != nil {
		return commit(t.Tx.Commit)
	}
	return t.Tx.Commit()
}

func (t *relayTx) Rollback() error { t.conn.begun = false; return t.Tx.Rollback() }

func (c *relayConn) Close() error {
	err := c.primary.Close()
	if c.replica != nil {
		err = errors.Join(err, c.replica.Close())
	}
	return err
}

func (c *relayConn) Prepare(query string) (driver.Stmt, error) {
	c.relay.Statements.Add(1)
	conn := c.primary
	reads := strings.HasPrefix(query, "SELECT") && !strings.Contains(query, "FOR UPDATE")
	c.wrote = c.wrote || !reads
	pinned := c.begun && (c.wrote || !c.relay.UntilWrite)
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
	c.relay.Statements.Add(1)
	err = c.primary.Raw(func(raw any) (err error) {
		result, err = raw.(driver.ExecerContext).ExecContext(ctx, query, nil)
		return err
	})
	return result, err
}

type relayStmt struct {
	driver.Stmt
	query string
	relay *Relay
}

func (s *relayStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args)
}

func (s *relayStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	run := func() (driver.Result, error) { return s.Stmt.(driver.StmtExecContext).ExecContext(ctx, args) }
	if s.relay.Exec == nil {
		return run()
	}
	values := make([]any, len(args))
	for i, a := range args {
		values[i] = a.Value
	}
	return s.relay.Exec(s.query, values, run)
}
