package gormlock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"sync"

	"gorm.io/gorm"
)

// tracked is what the function of a turn has for a connection pool: it knows each statement from its beginning to its
// end, prepared or not, so that none runs in the turn of somebody else.
type tracked struct {
	turn    *turn
	prepare bool // statements are prepared, once for all turns
}

// track puts a tracked pool in the place of a turn's transaction. The statements that a session prepares in a
// transaction are prepared again each time they run, and MySQL's driver prepares all that have arguments: a group
// prepares each once.
func track(s *turn, below gorm.ConnPool) *tracked {
	_, prepare := below.(*gorm.PreparedStmtTX)
	return &tracked{s, prepare || s.group.t.pool.dialect.name == "mysql"}
}

// retrack does the same for a session with prepared statements that was made in the function.
func retrack(db *gorm.DB) {
	if session, ok := db.Statement.ConnPool.(*gorm.PreparedStmtTX); ok {
		if c, ok := session.Tx.(*tracked); ok {
			db.Statement.ConnPool = track(c.turn, session)
		}
	}
}

// ExecContext implements gorm.ConnPool.
func (c *tracked) ExecContext(ctx context.Context, query string, args ...any) (result sql.Result, err error) {
	ctx, err = c.turn.enter(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { c.turn.leave(err, nil) }() // also when an argument panics
	return c.turn.exec(ctx, c.prepare, query, args)
}

// QueryContext implements gorm.ConnPool.
func (c *tracked) QueryContext(ctx context.Context, query string, args ...any) (rows *sql.Rows, err error) {
	ctx, err = c.turn.enter(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { c.turn.leave(err, rows) }()
	return c.turn.query(ctx, c.prepare, query, args)
}

// QueryRowContext implements gorm.ConnPool. It reads the row at once: one that nobody scans would block the connection.
func (c *tracked) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	rows, err := c.QueryContext(ctx, query, args...)
	if err != nil {
		return failedRow(err)
	}
	defer rows.Close()
	return firstRow(rows)
}

var errPrepareInGroup = errors.New("gormlock: in a group statements are prepared by a session, tx.Session(&gorm.Session{PrepareStmt: true}), and not by hand")

// PrepareContext implements gorm.ConnPool.
func (c *tracked) PrepareContext(context.Context, string) (*sql.Stmt, error) {
	return nil, errPrepareInGroup
}

// StmtContext implements gorm.Tx.
func (c *tracked) StmtContext(context.Context, *sql.Stmt) *sql.Stmt {
	return failedStmt(errPrepareInGroup)
}

// Commit implements gorm.TxCommitter.
func (c *tracked) Commit() error { return c.turn.t.Commit() }

// Rollback implements gorm.TxCommitter.
func (c *tracked) Rollback() error { return c.turn.t.Rollback() }

// GetDBConn is what gorm's DB() calls.
func (c *tracked) GetDBConn() (*sql.DB, error) { return c.turn.t.GetDBConn() }

// firstRow is the first of rows, read already.
func firstRow(rows *sql.Rows) *sql.Row {
	columns, err := rows.Columns()
	if err != nil {
		return failedRow(err)
	}
	r := oneRow{columns: columns}
	if rows.Next() {
		r.values = make([]any, len(columns))
		into := make([]any, len(columns))
		for i := range into {
			into[i] = &r.values[i]
		}
		err = rows.Scan(into...)
	}
	if err = errors.Join(err, rows.Err()); err != nil {
		return failedRow(err)
	}
	db := sql.OpenDB(r)
	defer db.Close()
	return db.QueryRowContext(context.Background(), "")
}

// oneRow is a driver that answers everything with one row, or none.
type oneRow struct {
	failing
	columns []string
	values  []any // nil: there is no row
}

func (r oneRow) Connect(context.Context) (driver.Conn, error) { return r, nil }
func (r oneRow) Prepare(string) (driver.Stmt, error)          { return r, nil }
func (r oneRow) Query([]driver.Value) (driver.Rows, error)    { return &cursor{oneRow: r}, nil }

type cursor struct {
	oneRow
	read bool
}

func (c *cursor) Columns() []string { return c.columns }

func (c *cursor) Next(into []driver.Value) error {
	if c.read || c.values == nil {
		return io.EOF
	}
	c.read = true
	for i, v := range c.values {
		into[i] = v
	}
	return nil
}

// prepared are the statements that a group has prepared; they end with its transaction.
type prepared struct {
	mu  sync.Mutex
	all map[string]*sql.Stmt
}

const maxPrepared = 64

// statement returns the prepared statement; nil if it runs unprepared: without arguments, when there
// are too many, or if the text holds several statements, which no server prepares.
func (s *turn) statement(ctx context.Context, prepare bool, query string, args []any) (*sql.Stmt, error) {
	if !prepare || len(args) == 0 || several(query) {
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

func (s *turn) exec(ctx context.Context, prepare bool, query string, args []any) (sql.Result, error) {
	switch stmt, err := s.statement(ctx, prepare, query, args); {
	case err != nil:
		return nil, err
	case stmt != nil:
		return stmt.ExecContext(ctx, args...)
	}
	return s.group.t.ExecContext(ctx, query, args...)
}

func (s *turn) query(ctx context.Context, prepare bool, query string, args []any) (*sql.Rows, error) {
	switch stmt, err := s.statement(ctx, prepare, query, args); {
	case err != nil:
		return nil, err
	case stmt != nil:
		return stmt.QueryContext(ctx, args...)
	}
	return s.group.t.QueryContext(ctx, query, args...)
}
