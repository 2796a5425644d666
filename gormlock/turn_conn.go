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

// keepTurn takes away what a session with prepared statements put around a turn's transaction: the
// group prepares each statement once.
func keepTurn(db *gorm.DB) {
	if session, ok := db.Statement.ConnPool.(*gorm.PreparedStmtTX); ok {
		if t, ok := session.Tx.(*transaction); ok && t.turn != nil {
			t.turn.prepares.Store(true)
			db.Statement.ConnPool = t
		}
	}
}

var _ gorm.Tx = (*turn)(nil)

// ExecContext implements gorm.ConnPool.
func (s *turn) ExecContext(ctx context.Context, query string, args ...any) (result sql.Result, err error) {
	ctx, err = s.enter(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { s.leave(err, nil) }() // also when an argument panics
	stmt, err := s.prepared(ctx, query, args)
	switch {
	case err != nil:
		return nil, err
	case stmt != nil:
		return stmt.ExecContext(ctx, args...)
	}
	return s.group.t.ExecContext(ctx, query, args...)
}

// QueryContext implements gorm.ConnPool.
func (s *turn) QueryContext(ctx context.Context, query string, args ...any) (rows *sql.Rows, err error) {
	ctx, err = s.enter(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { s.leave(err, rows) }()
	stmt, err := s.prepared(ctx, query, args)
	switch {
	case err != nil:
		return nil, err
	case stmt != nil:
		return stmt.QueryContext(ctx, args...)
	}
	return s.group.t.QueryContext(ctx, query, args...)
}

// QueryRowContext implements gorm.ConnPool. It reads the row at once: an unread one would block the
// connection.
func (s *turn) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	rows, err := s.QueryContext(ctx, query, args...)
	if err != nil {
		return failedRow(err)
	}
	defer rows.Close()
	return firstRow(rows)
}

// PrepareContext implements gorm.ConnPool.
func (*turn) PrepareContext(context.Context, string) (*sql.Stmt, error) {
	return nil, errPrepareInGroup
}

// StmtContext implements gorm.Tx.
func (*turn) StmtContext(context.Context, *sql.Stmt) *sql.Stmt {
	return failedStmt(errPrepareInGroup)
}

// prepared are the statements that a group has prepared. They end with its transaction.
type prepared struct {
	mu  sync.Mutex
	all map[string]*sql.Stmt
}

// prepared returns the group's prepared statement. MySQL's driver prepares all that have arguments
// each time they run, so the group does it once. prepared returns nil for a statement that runs
// unprepared: without arguments, of a text with several statements, or when there are too many.
func (s *turn) prepared(ctx context.Context, query string, args []any) (*sql.Stmt, error) {
	if !s.prepares.Load() && s.t.pool.dialect.name != "mysql" || len(args) == 0 || several(query) {
		return nil, nil
	}
	tryValuers(args)
	p := &s.group.statements
	p.mu.Lock()
	defer p.mu.Unlock()
	if stmt := p.all[query]; stmt != nil || len(p.all) == maxPrepared {
		return stmt, nil
	}
	stmt, err := s.group.t.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	if p.all == nil {
		p.all = make(map[string]*sql.Stmt)
	}
	p.all[query] = stmt
	return stmt, nil
}
