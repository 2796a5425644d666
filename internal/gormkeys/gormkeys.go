// Package gormkeys has what gormlock, gormlock/stock and gormlock/optimistic tell each other.
package gormkeys

import (
	"context"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/onelane/onelane/internal/sqltable"
)

// The errors of gormlock that gormlock/optimistic or gormlock/stock returns, too.
var (
	ErrDialect       = errors.New("this works on MySQL, MariaDB, PostgreSQL and SQLite only")
	ErrNotRegistered = errors.New("the plugin is not registered: " +
		"call db.Use(gormlock.New(locker)) when the database is opened")
	ErrNoTransaction        = errors.New("not in a transaction")
	ErrUnmanagedTransaction = errors.New("the transaction was not begun through the plugin: " +
		"begin it with GORM, on a *gorm.DB made after db.Use; inside db.Connection use gormlock.Transaction")
)

// DialectOf returns the dialect of a database, or an error that matches ErrDialect.
func DialectOf(db *gorm.DB) (sqltable.Dialect, error) {
	name := ""
	if db.Dialector != nil {
		name = db.Dialector.Name()
	}
	d, ok := sqltable.Of(name)
	if !ok {
		return d, fmt.Errorf("%w, not on %q", ErrDialect, name)
	}
	return d, nil
}

// WriteWrapper is a clause among the UpdateClauses of a schema. gormlock calls it around the writes
// of the model.
type WriteWrapper interface {
	// WrapWrite runs instead of a callback of GORM: "gorm:create", "gorm:update" or "gorm:delete".
	// It calls next, which is that callback.
	WrapWrite(db *gorm.DB, step string, next func(*gorm.DB))
}

// Transaction is a transaction of gormlock in Statement.ConnPool.
type Transaction interface {
	// OnRollback calls undo if what was written until now is rolled back, or may be. It forgets undo
	// if needed returns false: then nobody could see what undo does.
	OnRollback(undo func(), needed func() bool)
}

// Prepared is a transaction of gormlock in Statement.ConnPool, whose statements may be prepared.
type Prepared interface {
	// Unprepared returns the same transaction for statements that are not prepared.
	Unprepared() gorm.ConnPool
}

// AnyVersion is a setting of a statement that is right on any version of its row. The value is the
// column that the statement writes, which must not be the version itself.
const AnyVersion = "gormlock:any version"

// Child is a setting of a statement by which GORM saves the associations of another one.
const Child = "gormlock:child"

type transactionKey struct{}

// WithTransaction returns ctx for the statements of an open transaction of gormlock.
func WithTransaction(ctx context.Context, t any) context.Context {
	return context.WithValue(ctx, transactionKey{}, t)
}

// TransactionOf returns the innermost transaction of gormlock that ctx belongs to, or nil.
func TransactionOf(ctx context.Context) any { return ctx.Value(transactionKey{}) }
