package gormlock

import (
	"context"
	"slices"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
)

// guardsKey is in Statement.Clauses, where GORM writes only names of SQL. Statement.Settings would be
// made for each statement whose guards are read.
const guardsKey = "gormlock:guards"

// guards are those of a statement, as a clause that writes nothing.
type guards []guard

// Build implements clause.Expression.
func (guards) Build(clause.Builder) {}

// Guard returns a scope that runs a write, or a whole transaction, while it holds the lock on key:
//
//	db.Scopes(gormlock.Guard("stock:42")).Transaction(func(tx *gorm.DB) error { … })
//	db.Model(&Stock{}).Scopes(gormlock.Guard("stock:42")).
//		Where("sku = ? AND remaining > 0", 42).Update("remaining", gorm.Expr("remaining - 1"))
//
// The rules of a guard:
//
//   - A single statement (a create, update, delete or Exec) runs in its own transaction. The order
//     is lock, BEGIN, the statement with its hooks and associations, COMMIT, unlock.
//   - A transaction, as a block or by hand, takes the lock when its first statement runs, before
//     BEGIN. It holds the lock until the outermost COMMIT or ROLLBACK is answered.
//   - For a block, [Transaction] promises more. Under Guard the lock does not cover what the
//     function does before its first statement, nor statements that drop scopes.
//   - The context of tx does not carry the lock. The context of each statement does, in its hooks
//     too.
//   - Guard waits at most [WithWait] (5 s), or until the context ends.
//   - The key is free text as core.Locker takes it; core.Join makes one of parts.
//   - The returned scope may be kept and used concurrently.
//
// An error of the guard is the error of the statement, and the statement is not sent:
//
//   - The error is core's if the lock is not acquired. The transaction is given up then, and its
//     later statements and its Commit return the same error.
//   - [ErrGuardTooLate]: the transaction has begun, or holds other keys. The transaction stays as
//     it was and may go on.
//   - [ErrNoTransaction]: a read outside a transaction.
//   - gorm.ErrDryRunModeUnsupported: the DryRun of a write.
//   - [ErrNotRegistered], [ErrUnmanagedTransaction].
func Guard(key string, opts ...GuardOption) func(*gorm.DB) *gorm.DB {
	var g guard
	for _, o := range opts {
		if o != nil {
			o.applyGuard(&g)
		}
	}
	g.key = key
	return func(db *gorm.DB) *gorm.DB {
		tx := db.Clauses()
		all := append(slices.Clip(guardsOf(tx.Statement)), g)
		tx.Statement.Clauses[guardsKey] = clause.Clause{Expression: all}
		if _, err := registered(db); err != nil {
			_ = tx.AddError(guardError([]string{key}, err))
		}
		return tx
	}
}

// WithGuard returns a context with these keys. It guards every transaction, and every single write,
// that gets the context:
//
//	tx := db.WithContext(gormlock.WithGuard(ctx, "stock:42")).Begin()
//
// It also works for Begin by hand and for the generics API. The keys are taken together with those
// that ctx has already. A transaction takes the locks in Begin, and the error is Begin's. Otherwise
// WithGuard works as [Guard]. If there are no keys, or a key is empty, the error is
// core.ErrInvalidKey when the context is used.
//
// A read outside a transaction takes no lock. Raw SQL that returns rows may write, so it is refused
// there with [ErrNoTransaction]. GORM hides that error in the methods of its Migrator: HasTable,
// HasColumn and HasIndex answer false. Call them without the guard.
//
// On a database without the plugin of [New] nothing is guarded, and there is no error. If a gorm.DB
// has an Error from before, GORM begins a transaction on it and leaves that open. Check the Error
// first, or the keys are held until ctx ends. [Transaction] checks it.
func WithGuard(ctx context.Context, keys ...string) context.Context {
	if len(keys) == 0 {
		keys = []string{""} // which nobody can lock
	}
	return context.WithValue(ctx, demandKey{}, demandOf(ctx).and(keys, 0, false))
}

func guardsOf(s *gorm.Statement) guards {
	all, _ := s.Clauses[guardsKey].Expression.(guards)
	return all
}

// resolve adds what a statement's guards ask for to what its context does.
func (p *plugin) resolve(d demand, all guards) (demand, error) {
	for _, g := range all {
		if g.err != nil {
			return d, guardError([]string{g.key}, g.err)
		}
		d = d.and([]string{g.key}, g.wait, g.fenced)
	}
	return p.complete(d), nil
}
