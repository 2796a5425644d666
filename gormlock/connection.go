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

var _ gorm.ConnPoolBeginner = (*pool)(nil)

// BeginTx implements gorm.ConnPoolBeginner. It locks the keys that ctx guards with, and leaves
// BEGIN to the first statement.
func (p *pool) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	err := ctx.Err()
	if err == nil {
		var t *transaction
		if t, err = p.start(ctx, opts, p.plugin.complete(demandOf(ctx))); err == nil {
			return t, nil
		}
	}
	// Rollback of GORM ignores a nil of a type, as that of *sql.Tx.
	return (*transaction)(nil), err
}

// start returns a transaction that holds the locks of d.
func (p *pool) start(ctx context.Context, opts *sql.TxOptions, d demand) (*transaction, error) {
	t := &transaction{pool: p, ctx: ctx, opts: opts}
	if len(d.keys) == 0 {
		return t, nil
	}
	return t, t.guard(ctx, d)
}

// in returns t as the connection pool of a statement whose pool was wrapped.
func (t *transaction) in(wrapped gorm.ConnPool) gorm.ConnPool {
	if prepared, ok := wrapped.(*gorm.PreparedStmtDB); ok {
		return &gorm.PreparedStmtTX{PreparedStmtDB: prepared, Tx: t}
	}
	return t
}

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

// PrepareContext implements gorm.ConnPool.
func (t *transaction) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	c, err := t.conn(ctx)
	if err != nil {
		return nil, err
	}
	stmt, err := c.PrepareContext(ctx, query)
	return stmt, t.answered(err)
}

// ExecContext implements gorm.ConnPool.
func (t *transaction) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	c, err := t.conn(ctx)
	if err != nil {
		return nil, err
	}
	done, err := c.ExecContext(ctx, query, args...)
	return done, t.answered(err)
}

// QueryContext implements gorm.ConnPool.
func (t *transaction) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	c, err := t.conn(ctx)
	if err != nil {
		return nil, err
	}
	t.tryValuers(args)
	rows, err := c.QueryContext(ctx, query, args...)
	return rows, t.answered(err)
}

// QueryRowContext implements gorm.ConnPool.
func (t *transaction) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	c, err := t.conn(ctx)
	if err != nil {
		return failedRow(err)
	}
	t.tryValuers(args)
	row := c.QueryRowContext(ctx, query, args...)
	_ = t.answered(row.Err())
	return row
}

// StmtContext implements gorm.Tx: where statements are prepared, a cached one comes here first.
func (t *transaction) StmtContext(ctx context.Context, stmt *sql.Stmt) *sql.Stmt {
	c, err := t.conn(ctx)
	if err != nil {
		return failedStmt(err)
	}
	return c.StmtContext(ctx, stmt)
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

// begun sends BEGIN before the first statement of a transaction. PrepareContext would do so, but
// GORM prepares each statement once for all callers. BEGIN may wait for callers that have the
// connection or the fence. These would wait for the caller that prepares, and get its error. If
// preparing fails, GORM also makes an empty sql.Row.
func begun(db *gorm.DB) error {
	t, _ := transactionOf(db.Statement.ConnPool)
	if t == nil || db.DryRun {
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
	return guardError(t.demand.keys, fmt.Errorf("%s: %w", word, why))
}
