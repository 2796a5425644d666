// Package gormkeys has what gormlock and gormlock/stock tell each other in a statement or a context.
package gormkeys

import "context"

// AnyVersion is a setting of a statement that is right on any version of its row. The value is the
// column that the statement writes, which must not be the version itself.
const AnyVersion = "gormlock:any version"

type transactionKey struct{}

// WithTransaction returns ctx for the statements of an open transaction of gormlock.
func WithTransaction(ctx context.Context, t any) context.Context {
	return context.WithValue(ctx, transactionKey{}, t)
}

// TransactionOf returns the innermost transaction of gormlock that ctx belongs to, or nil.
func TransactionOf(ctx context.Context) any { return ctx.Value(transactionKey{}) }
