package gormlock

import (
	"context"
	"runtime"
	"weak"

	"gorm.io/gorm"

	"github.com/onelane/onelane/internal/gormkeys"
)

// singleTx is what the transaction of a guarded single statement knows of that statement.
type singleTx struct {
	statement weak.Pointer[gorm.Statement] // Those of its associations have the transaction, too.
	outside   gorm.ConnPool
	context   context.Context    // of the statement, outside
	carried   context.Context    // of the statement, inside
	cancel    context.CancelFunc // ends DefaultTransactionTimeout
	abandoned runtime.Cleanup
}

// openSingle locks the keys of a single statement and puts it into its own transaction. GORM finds
// an open one then, and begins none.
func (p *plugin) openSingle(db *gorm.DB, d demand) error {
	s := db.Statement
	wrapped, err := p.WrapPool(db, s.ConnPool)
	if err != nil {
		return guardError(d.keys, err)
	}
	ctx, cancel := limited(db)
	t, err := poolOf(wrapped).start(ctx, nil, d)
	if err != nil {
		cancel()
		return err
	}
	// The contexts of the statement end when the lock is lost.
	carried, _ := t.carry(s.Context)
	t.single = &singleTx{statement: weak.Make(s), outside: s.ConnPool, context: s.Context, carried: carried, cancel: cancel}
	// A panic in a callback of another plugin passes no code of ours. It leaves the statement to
	// the collector.
	t.single.abandoned = runtime.AddCleanup(s, func(t *transaction) { go t.rollbackSingle() }, t)
	s.Context, s.ConnPool = carried, t.in(wrapped)
	return nil
}

// isOf reports whether s is the statement of a singleTx, which may be nil.
func (single *singleTx) isOf(s *gorm.Statement) bool {
	return single != nil && single.statement == weak.Make(s)
}

// takeSingle takes the statement's own transaction out of it, and puts back what was there. It
// returns nil if the statement has none.
func takeSingle(db *gorm.DB) *transaction {
	s := db.Statement
	t, _ := transactionOf(s.ConnPool)
	if t == nil || !t.single.isOf(s) {
		return nil
	}
	single := t.single
	single.abandoned.Stop()
	runtime.KeepAlive(s) // until then the clean-up may run
	s.ConnPool = single.outside
	if s.Context == single.carried {
		s.Context = single.context
	} else { // a tracer put its span in, and looks for it after COMMIT
		s.Context = statementContext{single.context, context.WithoutCancel(s.Context)}
	}
	return t
}

// abandonSingle ends the transaction that a panic left in a statement which is used again.
func abandonSingle(db *gorm.DB) {
	if t := takeSingle(db); t != nil {
		t.rollbackSingle()
	}
}

// rollbackSingle drops its error, which would hide the one that led to it.
func (t *transaction) rollbackSingle() {
	defer t.single.cancel()
	_ = t.Rollback()
}

// endSingle commits a guarded single statement, or rolls it back if it failed.
func endSingle(db *gorm.DB) {
	explainError(db)
	t := takeSingle(db)
	switch {
	case t == nil:
	case db.Error != nil:
		t.rollbackSingle()
		db.Error = t.marked(db.Error)
	default:
		defer t.single.cancel()
		_ = db.AddError(t.Commit())
	}
}

// afterWrite runs after writes. A tracer that puts back, after COMMIT, the context that it found
// has put back that of the transaction, which has ended. The statement may be used again.
func afterWrite(db *gorm.DB) {
	endSingle(db)
	s := db.Statement
	if s.Context.Err() == nil {
		return
	}
	if t, _ := gormkeys.TransactionOf(s.Context).(*transaction); t != nil && t.single.isOf(s) {
		s.Context = t.single.context
	}
}

// singleEnded wraps GORM's callback that ends a transaction around a single statement. A guarded
// one ends there too, so that the callbacks after it see what was committed.
func singleEnded(fn func(*gorm.DB)) func(*gorm.DB) {
	return func(db *gorm.DB) {
		if t, _ := transactionOf(db.Statement.ConnPool); t != nil && t.single != nil {
			endSingle(db)
		}
		fn(db)
	}
}

// explainError adds to the error of a statement why its transaction ended.
func explainError(db *gorm.DB) {
	if db.Error == nil {
		return
	}
	if t, _ := transactionOf(db.Statement.ConnPool); t != nil {
		db.Error = t.explain(db.Error)
	}
}

// rollbackOnPanic rolls a single statement back when fn does not return. GORM would leave its own
// transaction open forever. rollbackOnPanic does not recover, so the stack stays.
func rollbackOnPanic(fn func(*gorm.DB)) func(*gorm.DB) {
	return func(db *gorm.DB) {
		returned := false
		defer func() {
			if returned {
				return
			}
			abandonSingle(db)
			t, _ := transactionOf(db.Statement.ConnPool)
			if t != nil && gormkeys.StartedByGORM(db) {
				_ = t.Rollback()
				db.Statement.ConnPool = db.ConnPool // as GORM does
			}
		}()
		fn(db)
		returned = true
	}
}

// statementContext ends with one context and has the values of another one.
type statementContext struct {
	context.Context
	values context.Context
}

func (c statementContext) Value(key any) any { return c.values.Value(key) }
