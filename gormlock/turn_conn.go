package gormlock

import (
	"context"
	"database/sql"
	"errors"
	"sync"

	"gorm.io/gorm"
)

// maxPrepared is how many statements a group prepares.
const maxPrepared = 64

var errPrepareInGroup = errors.New("gormlock: in a group statements are prepared by a session, " +
	"tx.Session(&gorm.Session{PrepareStmt: true}), and not by hand")

// turnConn is the connection pool of a turn's function. It sees each statement begin and end, so
// that none runs in another caller's turn.
type turnConn struct {
	turn    *turn
	prepare bool // the group prepares each statement once
}

var _ gorm.Tx = (*turnConn)(nil)

// newTurnConn replaces the connection pool of a turn. In a transaction a session prepares its
// statements each time they run, and MySQL's driver prepares all that have arguments.
func newTurnConn(s *turn, below gorm.ConnPool) *turnConn {
	_, prepare := below.(*gorm.PreparedStmtTX)
	return &turnConn{s, prepare || s.t.pool.dialect.name == "mysql"}
}

// keepTurnConn takes away what a session with prepared statements put around a turnConn.
func keepTurnConn(db *gorm.DB) {
	if session, ok := db.Statement.ConnPool.(*gorm.PreparedStmtTX); ok {
		if c, ok := session.Tx.(*turnConn); ok {
			db.Statement.ConnPool = newTurnConn(c.turn, session)
		}
	}
}

// ExecContext implements gorm.ConnPool.
func (c *turnConn) ExecContext(ctx context.Context, query string, args ...any) (result sql.Result, err error) {
	ctx, err = c.turn.enter(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { c.turn.leave(err, nil) }() // also when an argument panics
	stmt, err := c.prepared(ctx, query, args)
	switch {
	case err != nil:
		return nil, err
	case stmt != nil:
		return stmt.ExecContext(ctx, args...)
	}
	return c.turn.group.t.ExecContext(ctx, query, args...)
}

// QueryContext implements gorm.ConnPool.
func (c *turnConn) QueryContext(ctx context.Context, query string, args ...any) (rows *sql.Rows, err error) {
	ctx, err = c.turn.enter(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { c.turn.leave(err, rows) }()
	stmt, err := c.prepared(ctx, query, args)
	switch {
	case err != nil:
		return nil, err
	case stmt != nil:
		return stmt.QueryContext(ctx, args...)
	}
	return c.turn.group.t.QueryContext(ctx, query, args...)
}

// QueryRowContext implements gorm.ConnPool. It reads the row at once: an unread one would block the
// connection.
func (c *turnConn) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	rows, err := c.QueryContext(ctx, query, args...)
	if err != nil {
		return failedRow(err)
	}
	defer rows.Close()
	return firstRow(rows)
}

// PrepareContext implements gorm.ConnPool.
func (c *turnConn) PrepareContext(context.Context, string) (*sql.Stmt, error) {
	return nil, errPrepareInGroup
}

// StmtContext implements gorm.Tx.
func (c *turnConn) StmtContext(context.Context, *sql.Stmt) *sql.Stmt {
	return failedStmt(errPrepareInGroup)
}

// Commit implements gorm.TxCommitter.
func (c *turnConn) Commit() error { return c.turn.t.Commit() }

// Rollback implements gorm.TxCommitter.
func (c *turnConn) Rollback() error { return c.turn.t.Rollback() }

// GetDBConn implements gorm.GetDBConnector.
func (c *turnConn) GetDBConn() (*sql.DB, error) { return c.turn.t.GetDBConn() }

// prepared are the statements that a group has prepared. They end with its transaction.
type prepared struct {
	mu  sync.Mutex
	all map[string]*sql.Stmt
}

// prepared returns the group's prepared statement. It returns nil for a statement that runs
// unprepared: without arguments, of a text with several statements, or when there are too many.
func (c *turnConn) prepared(ctx context.Context, query string, args []any) (*sql.Stmt, error) {
	if !c.prepare || len(args) == 0 || several(query) {
		return nil, nil
	}
	tryValuers(args)
	p := &c.turn.group.statements
	p.mu.Lock()
	defer p.mu.Unlock()
	if stmt := p.all[query]; stmt != nil || len(p.all) == maxPrepared {
		return stmt, nil
	}
	stmt, err := c.turn.group.t.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	if p.all == nil {
		p.all = make(map[string]*sql.Stmt)
	}
	p.all[query] = stmt
	return stmt, nil
}
