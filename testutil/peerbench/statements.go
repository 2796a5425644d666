package main

import (
	"context"
	"database/sql/driver"
	"sync/atomic"
)

// statements counts what is sent to a database: statements, and the begins and ends of transactions.
type statements struct{ n atomic.Int64 }

// counted is a driver that counts.
type counted struct {
	driver.Connector
	count *statements
}

func (c counted) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return countedConn{conn.(fullConn), c.count}, nil
}

// fullConn is what both drivers have.
type fullConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.NamedValueChecker
	driver.SessionResetter
	driver.Pinger
}

type countedConn struct {
	fullConn
	count *statements
}

func (c countedConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	c.count.n.Add(1)
	tx, err := c.fullConn.BeginTx(ctx, opts)
	return countedTx{tx, c.count}, err
}

func (c countedConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	c.count.n.Add(1) // and once more, or more often, when it is executed
	return c.fullConn.PrepareContext(ctx, query)
}

func (c countedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	c.count.n.Add(1)
	return c.fullConn.ExecContext(ctx, query, args)
}

func (c countedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	c.count.n.Add(1)
	return c.fullConn.QueryContext(ctx, query, args)
}

type countedTx struct {
	driver.Tx
	count *statements
}

func (t countedTx) Commit() error {
	t.count.n.Add(1)
	return t.Tx.Commit()
}

func (t countedTx) Rollback() error {
	t.count.n.Add(1)
	return t.Tx.Rollback()
}
