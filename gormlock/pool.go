package gormlock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/internal/sqlerr"
	"github.com/onelane/onelane/internal/sqltable"
)

// pool is the connection pool of a database with the plugin. Its transactions begin in the inner
// pool when their first statement runs. It is used by its pointer, as dbresolver has a map of
// pools.
type pool struct {
	gorm.ConnPool
	plugin  *plugin
	log     logger.Interface
	dialect sqltable.Dialect // zero if the package does not know it
}

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

// shares reports whether two pools have the same connections.
func (p *pool) shares(q *pool) bool {
	return p == q || reflect.ValueOf(p.ConnPool).Comparable() && p.ConnPool == q.ConnPool
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

// SetMaxOpenConns and the three after it are what dbresolver calls.
func (p *pool) SetMaxOpenConns(n int) { p.set(func(db *sql.DB) { db.SetMaxOpenConns(n) }) }
func (p *pool) SetMaxIdleConns(n int) { p.set(func(db *sql.DB) { db.SetMaxIdleConns(n) }) }
func (p *pool) SetConnMaxLifetime(d time.Duration) {
	p.set(func(db *sql.DB) { db.SetConnMaxLifetime(d) })
}
func (p *pool) SetConnMaxIdleTime(d time.Duration) {
	p.set(func(db *sql.DB) { db.SetConnMaxIdleTime(d) })
}

func (p *pool) set(setting func(*sql.DB)) {
	db, err := p.GetDBConn()
	if err != nil {
		p.log.Error(context.Background(), "gormlock: a connection pool of type %s cannot get a limit: %v", fmt.Sprintf("%T", p.ConnPool), err)
		return
	}
	setting(db)
}

// begin begins a transaction in the inner pool.
func (p *pool) begin(ctx context.Context, opts *sql.TxOptions, guarded bool) (gorm.Tx, error) {
	return begin(ctx, p.ConnPool, p.dialect, opts, guarded)
}

// begin begins a transaction on conns. One that is guarded is not committed after it failed.
func begin(ctx context.Context, conns gorm.ConnPool, d sqltable.Dialect, opts *sql.TxOptions, guarded bool) (gorm.Tx, error) {
	// The drivers of PostgreSQL close a connection that comes back with an open transaction.
	if sqlite := d.Name == "sqlite"; guarded && (sqlite || d.Name == "mysql") {
		switch inner := conns.(type) {
		case *sql.DB:
			return pin(ctx, inner, opts, sqlite)
		case *sql.Conn: // of gorm's Connection, which closes it
			return pinOn(ctx, inner, opts, sqlite, func() error { return nil })
		}
	}
	switch inner := conns.(type) {
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
		if tx, ok := tx.(gorm.TxCommitter); ok {
			_ = tx.Rollback() // it would keep its connection
		}
	}
	return nil, fmt.Errorf("gormlock: a connection pool of type %T cannot begin transactions: %w", conns, gorm.ErrInvalidTransaction)
}

// pinnedTx is a transaction that keeps its connection until its outcome is known. SQLite may reject
// a COMMIT (a deferred constraint, a busy file), and MySQL's KILL QUERY may end a COMMIT or
// ROLLBACK. The transaction stays open on its connection then. Without this type, database/sql
// would give that connection to the next caller. On MySQL, the next BEGIN commits an open
// transaction.
type pinnedTx struct {
	*sql.Tx
	conn       *sql.Conn
	sqlite     bool
	free       func() error // gives the connection back
	rolledBack bool         // after a COMMIT that failed
	ending     bool         // COMMIT or ROLLBACK is in the driver, or it panicked there
}

// pin begins a transaction on a connection of db. As database/sql does, it takes another connection
// if the driver says that this one is bad. All that are idle may be bad, and each bad one leaves
// the pool.
func pin(ctx context.Context, db *sql.DB, opts *sql.TxOptions, sqlite bool) (gorm.Tx, error) {
	for tries := 3 + db.Stats().Idle; ; tries-- {
		conn, err := db.Conn(ctx)
		if err != nil {
			return nil, err
		}
		tx, err := pinOn(ctx, conn, opts, sqlite, conn.Close)
		if !errors.Is(err, driver.ErrBadConn) || tries <= 1 {
			return tx, err
		}
	}
}

func pinOn(ctx context.Context, conn *sql.Conn, opts *sql.TxOptions, sqlite bool, free func() error) (gorm.Tx, error) {
	tx, err := conn.BeginTx(ctx, opts)
	if err != nil {
		_ = free()
		return nil, err
	}
	return &pinnedTx{Tx: tx, conn: conn, sqlite: sqlite, free: free}, nil
}

func (t *pinnedTx) Commit() error {
	t.ending = true
	err := t.Tx.Commit()
	t.ending = false
	if err != nil && t.sqlite {
		_, rollback := t.conn.ExecContext(context.Background(), "ROLLBACK")
		// mattn's driver has rolled back by itself, so that there is nothing left to roll back.
		t.rolledBack = rollback == nil || sqlerr.SQLiteRefuses(err) && t.ended()
	}
	if err != nil && !rejected(t, err) {
		t.close()
	}
	_ = t.free()
	return err
}

func (t *pinnedTx) Rollback() error {
	if t.ending { // the driver panicked: database/sql keeps the connection, and free would wait for ever
		return t.Tx.Rollback()
	}
	t.ending = true
	err := t.Tx.Rollback()
	t.ending = false
	if err != nil && !t.ended() {
		t.close()
	}
	_ = t.free()
	return err
}

// ended reports whether SQLite has rolled back by itself, as it does after some errors. Only BEGIN
// tells.
func (t *pinnedTx) ended() bool {
	if !t.sqlite {
		return false
	}
	if _, err := t.conn.ExecContext(context.Background(), "BEGIN"); err != nil {
		return false
	}
	_, err := t.conn.ExecContext(context.Background(), "ROLLBACK")
	return err == nil
}

// close closes the connection, so that nothing stays open on it. In gorm's Connection, rows that
// were opened before BEGIN keep the connection open until they are closed. Their owner may close
// them only after this transaction, so close waits for a second at most.
func (t *pinnedTx) close() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = t.conn.Raw(func(any) error { return driver.ErrBadConn })
	}()
	select {
	case <-closed:
	case <-time.After(time.Second):
	}
}
