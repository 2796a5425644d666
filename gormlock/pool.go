package gormlock

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/internal/gormkeys"
	"github.com/onelane/onelane/internal/sqltable"
)

// pool is the connection pool of a database with the plugin. Its transactions begin in the inner
// pool when their first statement runs. Use its pointer, as dbresolver has a map of pools.
type pool struct {
	gorm.ConnPool
	plugin  *plugin
	log     logger.Interface
	dialect sqltable.Dialect // zero if the package does not know it
}

// shares reports whether two pools have the same connections.
func (p *pool) shares(q *pool) bool {
	return p == q || reflect.ValueOf(p.ConnPool).Comparable() && p.ConnPool == q.ConnPool
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

// begin begins a transaction in the inner pool. One that is guarded is not committed after it failed.
func (p *pool) begin(ctx context.Context, opts *sql.TxOptions, guarded bool) (gorm.Tx, error) {
	// The drivers of PostgreSQL close a connection that comes back with an open transaction.
	if sqlite := p.dialect.Name == "sqlite"; guarded && (sqlite || p.dialect.Name == "mysql") {
		switch inner := p.ConnPool.(type) {
		case *sql.DB:
			return pin(ctx, inner, opts, sqlite)
		case *sql.Conn: // of gorm's Connection, which closes it
			return pinOn(ctx, inner, opts, sqlite, func() error { return nil })
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
		if tx, ok := tx.(gorm.TxCommitter); ok {
			_ = tx.Rollback() // it would keep its connection
		}
	}
	return nil, fmt.Errorf("gormlock: a connection pool of type %T cannot begin transactions: %w", p.ConnPool, gorm.ErrInvalidTransaction)
}

// WrapPool returns the pool that begins transactions under guards. Package stock calls it, too.
func (p *plugin) WrapPool(db *gorm.DB, inner gorm.ConnPool) (gorm.ConnPool, error) {
	switch inner := inner.(type) {
	case *pool:
		return inner, nil
	case *gorm.PreparedStmtDB: // of a session; the statements stay shared
		wrapped, err := p.WrapPool(db, inner.ConnPool)
		if wrapped == inner.ConnPool {
			return inner, err
		}
		session := *inner // with the fields of later versions
		session.ConnPool = wrapped
		return &session, err
	case gorm.TxCommitter:
		return nil, fmt.Errorf("gormlock: %w", ErrUnmanagedTransaction)
	case gorm.TxBeginner, gorm.ConnPoolBeginner:
		d, err := gormkeys.DialectOf(db)
		if err != nil {
			return nil, fmt.Errorf("gormlock: %w", err)
		}
		return &pool{ConnPool: inner, plugin: p, log: db.Logger, dialect: d}, nil
	}
	return nil, fmt.Errorf("gormlock: a connection pool of type %T cannot begin transactions: %w", inner, gorm.ErrInvalidTransaction)
}

// poolOf returns the pool in what WrapPool returned.
func poolOf(c gorm.ConnPool) *pool {
	if prepared, ok := c.(*gorm.PreparedStmtDB); ok {
		return poolOf(prepared.ConnPool)
	}
	p, _ := c.(*pool)
	return p
}
