package gormlock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"

	"gorm.io/gorm"
)

// connection is a transaction as GORM sees it. All its statements pass it, so that each answer is
// judged before the next statement is sent.
type connection struct {
	*transaction
	cache *gorm.PreparedStmtDB // prepares the statements; may be nil
}

var (
	_ gorm.ConnPoolBeginner = (*pool)(nil)
	// If it were not, Session(PrepareStmt) would leave the transaction.
	_ gorm.Tx = (*connection)(nil)
)

// BeginTx implements gorm.ConnPoolBeginner. It locks the keys that ctx guards with, and leaves
// BEGIN to the first statement.
func (p *pool) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	err := ctx.Err()
	if err == nil {
		var t *transaction
		if t, err = p.start(ctx, opts, demandOf(ctx)); err == nil {
			return &t.direct, nil
		}
	}
	// Rollback of GORM ignores a nil of a type, as that of *sql.Tx.
	return (*connection)(nil), err
}

// start returns a transaction that holds the locks of d.
func (p *pool) start(ctx context.Context, opts *sql.TxOptions, d demand) (*transaction, error) {
	t := newTransaction(ctx, p, opts)
	if len(d.keys) == 0 {
		return t, nil
	}
	return t, t.guard(ctx, p.plugin.complete(d))
}

// in returns t as the connection pool of a statement that had c. Statements stay prepared, and no
// PreparedStmtTX of GORM keeps their answers from t.
func (t *transaction) in(c gorm.ConnPool) gorm.ConnPool {
	switch c := c.(type) {
	case *connection:
		return c
	case *gorm.PreparedStmtDB:
		return &connection{t, c}
	case *gorm.PreparedStmtTX:
		return &connection{t, c.PreparedStmtDB}
	}
	return &t.direct
}

// Unprepared implements gormkeys.Prepared.
func (c *connection) Unprepared() gorm.ConnPool { return &c.direct }

// conn is where a statement runs: the transaction in the database, begun if it has not been.
func (t *transaction) conn(statement context.Context) (gorm.Tx, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.standsLocked(); err != nil {
		return nil, err
	}
	if s := t.state(); s == stateIdle || s == stateLocked {
		if err := t.beginLocked(statement); err != nil {
			t.failLocked(err)
			return nil, err
		}
	}
	return t.real, nil
}

// send returns where to send a query. BEGIN comes first, as it may wait for callers that have the
// connection or the fence. GORM prepares each statement once for all callers. They would wait for the
// caller that prepares, and get its error.
func (c *connection) send(ctx context.Context, query string) (gorm.Tx, error) {
	tx, err := c.conn(ctx)
	if err != nil || c.cache == nil {
		return tx, err
	}
	if verb, _ := savepointIn(query); verb != "" {
		return tx, nil // MySQL cannot prepare it
	}
	return &gorm.PreparedStmtTX{Tx: tx, PreparedStmtDB: c.cache}, nil
}

// PrepareContext implements gorm.ConnPool.
func (c *connection) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	tx, err := c.conn(ctx)
	if err != nil {
		return nil, err
	}
	stmt, err := tx.PrepareContext(ctx, query)
	return stmt, c.answered("", nil, err) // a savepoint is not made yet
}

// ExecContext implements gorm.ConnPool.
func (c *connection) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	tx, err := c.send(ctx, query)
	if err != nil {
		return nil, err
	}
	if c.cache != nil {
		c.tryValuers(args)
	}
	done, err := tx.ExecContext(ctx, query, args...)
	return done, c.answered(query, nil, err)
}

// QueryContext implements gorm.ConnPool.
func (c *connection) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	tx, err := c.send(ctx, query)
	if err != nil {
		return nil, err
	}
	c.tryValuers(args)
	rows, err := tx.QueryContext(ctx, query, args...)
	return rows, c.answered(query, rows, err)
}

// QueryRowContext implements gorm.ConnPool. A *sql.Row shows its error to its reader alone. If that
// may be the end of the transaction, the row is read at once.
func (c *connection) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	tx, err := c.send(ctx, query)
	if err != nil {
		return failedRow(err)
	}
	if c.watchesRow() {
		rows, err := c.QueryContext(ctx, query, args...)
		if err != nil {
			return failedRow(err)
		}
		return firstRow(rows)
	}
	row := tx.QueryRowContext(ctx, query, args...)
	_ = c.answered(query, nil, row.Err())
	return row
}

// watchesRow reports whether the transaction must see the error of a Row: under a guard, or if
// AfterCommit waits for MySQL.
func (t *transaction) watchesRow() bool {
	if t.guarded() {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.silentLocked() && len(t.undone) > 0
}

// StmtContext implements gorm.Tx, for statements that another plugin has prepared.
func (c *connection) StmtContext(ctx context.Context, stmt *sql.Stmt) *sql.Stmt {
	tx, err := c.conn(ctx)
	if err != nil {
		return failedStmt(err)
	}
	return tx.StmtContext(ctx, stmt)
}

// GetDBConn is what gorm's DB() calls.
func (t *transaction) GetDBConn() (*sql.DB, error) { return t.pool.GetDBConn() }

// tryValuers calls the driver.Valuers under a guard only, so that nothing changes without one.
func (t *transaction) tryValuers(args []any) {
	if t.guarded() {
		tryValuers(args)
	}
}

var valuerType = reflect.TypeFor[driver.Valuer]()

// tryValuers calls the driver.Valuers that database/sql is about to call. If one panics inside
// database/sql, in a query or a prepared statement, the transaction can never end. Commit and
// Rollback wait for its connection forever.
func tryValuers(args []any) {
	for _, arg := range args {
		if named, ok := arg.(sql.NamedArg); ok {
			arg = named.Value
		}
		valuer, ok := arg.(driver.Valuer)
		if !ok {
			continue
		}
		if v := reflect.ValueOf(valuer); v.Kind() == reflect.Pointer && v.IsNil() && v.Type().Elem().Implements(valuerType) {
			continue // NULL
		}
		_, _ = valuer.Value()
	}
}

// SQLTx returns the *sql.Tx of tx's transaction. With the plugin this is not tx.Statement.ConnPool.
// If no statement has begun the transaction, SQLTx takes the locks of tx's guards and begins it.
// This may block until tx's context ends. Do not commit the *sql.Tx or roll it back: use gorm for
// that. Without a transaction the error matches [ErrNoTransaction].
func SQLTx(tx *gorm.DB) (*sql.Tx, error) {
	t, open := transactionOf(tx.Statement.ConnPool)
	if !open {
		return nil, fmt.Errorf("gormlock: SQLTx: %w", ErrNoTransaction)
	}
	if t == nil {
		if plain, ok := tx.Statement.ConnPool.(*sql.Tx); ok {
			return plain, nil
		}
		return nil, fmt.Errorf("gormlock: SQLTx: %w", ErrUnmanagedTransaction)
	}
	// Only a statement's execution runs the scopes.
	if err := tx.Session(&gorm.Session{DryRun: true}).Set(evaluateKey, true).Exec("").Error; err != nil {
		return nil, err
	}
	real, err := t.conn(tx.Statement.Context)
	if err != nil {
		return nil, err
	}
	switch real := real.(type) {
	case *sql.Tx:
		return real, nil
	case *pinnedTx:
		return real.Tx, nil
	}
	return nil, fmt.Errorf("gormlock: SQLTx: the connection pool begins a %T, which is no *sql.Tx: %w", real, gorm.ErrInvalidTransaction)
}

const evaluateKey = "gormlock:evaluate" // in Statement.Settings: a DryRun that takes the locks

// begun sends BEGIN before the first statement of a transaction and its hooks. t may be nil.
func (t *transaction) begun(db *gorm.DB) error {
	if t == nil || db.DryRun || t.state() == statePlain {
		return nil
	}
	if err := t.staysOpen(db.Statement); err != nil {
		return err
	}
	_, err := t.conn(db.Statement.Context)
	return err
}

var errEndsTransaction = errors.New("MySQL and MariaDB commit before this statement and go on with it " +
	"after its context ended, so no guard covers it: run it without one, under core.Locker's Do")

var errEndsItself = errors.New("the rest of the transaction would not be guarded: return an error to roll back, " +
	"and let the block, Commit or Rollback end it")

// staysOpen returns an error for a statement that would end a guarded transaction, as many do on
// MySQL and MariaDB.
func (t *transaction) staysOpen(s *gorm.Statement) error {
	if s.SQL.Len() == 0 || !t.guarded() {
		return nil
	}
	why := errEndsTransaction
	query := unwrapped(s.SQL.String())
	switch {
	case endsByName(query):
		why = errEndsItself
	case t.pool.dialect.Name != "mysql" || !endsTransaction(query):
		return nil
	}
	word, _ := firstWord(query)
	return guardError(t.held.demand.keys, fmt.Errorf("%s: %w", word, why))
}
