package gormlock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"sync/atomic"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// pool is the connection pool of a database with the plugin. Its transactions begin in the inner
// pool when their first statement runs. It is used by its pointer, as dbresolver has a map of pools.
type pool struct {
	gorm.ConnPool
	plugin  *plugin
	log     logger.Interface
	dialect dialect // zero if the package does not know it

	oneByOne atomic.Bool // groups send savepoint statements one by one
}

// BeginTx implements gorm.ConnPoolBeginner. It locks the keys that ctx guards with, and leaves BEGIN
// to the first statement.
func (p *pool) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	t := &transaction{pool: p, ctx: ctx, opts: opts}
	d := demandOf(ctx)
	err := ctx.Err()
	switch {
	case err != nil:
	case d.group > 1 && !p.plugin.carries(ctx, d.keys):
		t, err = p.join(ctx, p.plugin.complete(d))
	case len(d.keys) > 0:
		err = t.guard(ctx, p.plugin.complete(d))
	}
	if err != nil {
		// Rollback of GORM ignores a nil of a type, as that of *sql.Tx.
		return (*transaction)(nil), err
	}
	return t, nil
}

// opened is a pool whose next transaction is t.
type opened struct {
	*pool
	t *transaction
}

// BeginTx implements gorm.ConnPoolBeginner.
func (o opened) BeginTx(_ context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	o.t.opts = opts
	return o.t, nil
}

// open returns the pool that wrap returned as one that begins t, which holds its locks already.
func (t *transaction) open(wrapped gorm.ConnPool) gorm.ConnPool {
	if prepared, ok := wrapped.(*gorm.PreparedStmtDB); ok {
		return &gorm.PreparedStmtDB{ConnPool: opened{t.pool, t}, Mux: prepared.Mux, Stmts: prepared.Stmts}
	}
	return opened{t.pool, t}
}

// GetDBConn is what gorm's DB() calls.
func (p *pool) GetDBConn() (*sql.DB, error) {
	switch inner := p.ConnPool.(type) {
	case *sql.DB:
		return inner, nil
	case gorm.GetDBConnector:
		return inner.GetDBConn()
	}
	return nil, gorm.ErrInvalidDB
}

// begin begins a transaction in the database.
func (p *pool) begin(ctx context.Context, opts *sql.TxOptions, guarded bool) (gorm.Tx, error) {
	if guarded && p.dialect.name == "sqlite" {
		switch inner := p.ConnPool.(type) {
		case *sql.DB:
			return pin(ctx, inner, opts)
		case *sql.Conn: // of gorm's Connection, which closes it
			return pinOn(ctx, inner, opts, func() error { return nil })
		}
	}
	switch inner := p.ConnPool.(type) {
	case gorm.TxBeginner:
		tx, err := inner.BeginTx(ctx, opts)
		if err != nil {
			return nil, err
		}
		return tx, nil
	case gorm.ConnPoolBeginner:
		tx, err := inner.BeginTx(ctx, opts)
		if err != nil {
			return nil, err
		}
		if tx, ok := tx.(gorm.Tx); ok {
			return tx, nil
		}
	}
	return nil, fmt.Errorf("gormlock: a connection pool of type %T cannot begin transactions: %w", p.ConnPool, gorm.ErrInvalidTransaction)
}

// pinnedTx is a transaction on SQLite that keeps its connection until its outcome is known: SQLite
// leaves a transaction whose COMMIT it rejects (a deferred constraint, a busy file) open on its
// connection, and database/sql would give that to the next one.
type pinnedTx struct {
	*sql.Tx
	conn       *sql.Conn
	free       func() error // gives the connection back
	rolledBack bool         // after a COMMIT that failed
}

func pin(ctx context.Context, db *sql.DB, opts *sql.TxOptions) (gorm.Tx, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return pinOn(ctx, conn, opts, conn.Close)
}

func pinOn(ctx context.Context, conn *sql.Conn, opts *sql.TxOptions, free func() error) (gorm.Tx, error) {
	tx, err := conn.BeginTx(ctx, opts)
	if err != nil {
		_ = free()
		return nil, err
	}
	return &pinnedTx{Tx: tx, conn: conn, free: free}, nil
}

func (t *pinnedTx) Commit() error {
	defer func() { _ = t.free() }()
	err := t.Tx.Commit()
	if err != nil {
		_, rollback := t.conn.ExecContext(context.Background(), "ROLLBACK")
		if t.rolledBack = rollback == nil; !t.rolledBack {
			_ = t.conn.Raw(func(any) error { return driver.ErrBadConn }) // closes it
		}
	}
	return err
}

func (t *pinnedTx) Rollback() error {
	defer func() { _ = t.free() }()
	return t.Tx.Rollback()
}
