package gormlock

import (
	"context"
	"database/sql"
	"sync/atomic"

	"gorm.io/gorm"
)

// implicit is the transaction that GORM makes around a single statement without a guard. It begins at once, as nothing
// can be locked before it any more, and costs less than a [transaction]; it becomes one for hooks and associations,
// whose statements may ask for a guard.
type implicit struct {
	tx   gorm.Tx
	pool *pool
	ctx  context.Context
	full atomic.Pointer[transaction]
}

// beginImplicit lets begin, GORM's callback, begin in the database.
func beginImplicit(db *gorm.DB, p *pool, begin func(*gorm.DB)) {
	s := db.Statement
	s.ConnPool = p.ConnPool
	begin(db)
	if tx, ok := s.ConnPool.(gorm.Tx); ok {
		s.ConnPool = &implicit{tx: tx, pool: p, ctx: s.Context}
	} else {
		s.ConnPool = p
	}
}

// transaction is what guards are asked of.
func (i *implicit) transaction() *transaction {
	if t := i.full.Load(); t != nil {
		return t
	}
	i.full.CompareAndSwap(nil, &transaction{pool: i.pool, ctx: i.ctx, real: i.tx})
	return i.full.Load()
}

func (i *implicit) conn() gorm.Tx {
	if t := i.full.Load(); t != nil {
		return t
	}
	return i.tx
}

// PrepareContext implements gorm.ConnPool.
func (i *implicit) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	return i.conn().PrepareContext(ctx, query)
}

// ExecContext implements gorm.ConnPool.
func (i *implicit) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return i.conn().ExecContext(ctx, query, args...)
}

// QueryContext implements gorm.ConnPool.
func (i *implicit) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return i.conn().QueryContext(ctx, query, args...)
}

// QueryRowContext implements gorm.ConnPool.
func (i *implicit) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return i.conn().QueryRowContext(ctx, query, args...)
}

// StmtContext implements gorm.Tx.
func (i *implicit) StmtContext(ctx context.Context, stmt *sql.Stmt) *sql.Stmt {
	return i.conn().StmtContext(ctx, stmt)
}

// Commit implements gorm.TxCommitter.
func (i *implicit) Commit() error { return i.conn().Commit() }

// Rollback implements gorm.TxCommitter.
func (i *implicit) Rollback() error { return i.conn().Rollback() }

// GetDBConn is what gorm's DB() calls.
func (i *implicit) GetDBConn() (*sql.DB, error) { return i.pool.GetDBConn() }
