package main

import (
	"context"
	"database/sql/driver"
	"sync"
	"sync/atomic"
)

// statements counts what is sent to a database and waited for: statements, their preparation, and
// the begins and ends of transactions.
type statements struct {
	n     atomic.Int64
	texts sync.Map // of the statements with parameters, each of which a connection may keep prepared
}

// note counts a statement with so many parameters. Without any, no driver here prepares it.
func (s *statements) note(query string, parameters int) {
	s.n.Add(1)
	if parameters == 0 {
		return
	}
	if _, known := s.texts.Load(query); !known {
		s.texts.Store(query, true)
	}
}

// different counts the statements whose text differs.
func (s *statements) different() (n int) {
	s.texts.Range(func(any, any) bool { n++; return true })
	return n
}

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
	c.count.note(query, 1)
	stmt, err := c.fullConn.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	return countedStmt{stmt.(fullStmt), c.count}, nil
}

// fullStmt is what the statements of both drivers have.
type fullStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

type countedStmt struct {
	fullStmt
	count *statements
}

func (s countedStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	s.count.n.Add(1)
	return s.fullStmt.ExecContext(ctx, args)
}

func (s countedStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	s.count.n.Add(1)
	return s.fullStmt.QueryContext(ctx, args)
}

func (c countedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	r, err := c.fullConn.ExecContext(ctx, query, args)
	if err != driver.ErrSkip { // which sends nothing: database/sql prepares it then
		c.count.note(query, len(args))
	}
	return r, err
}

func (c countedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	rows, err := c.fullConn.QueryContext(ctx, query, args)
	if err != driver.ErrSkip {
		c.count.note(query, len(args))
	}
	return rows, err
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
