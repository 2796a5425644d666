package gormlock

import (
	"context"
	"runtime"

	"gorm.io/gorm"

	"github.com/onelane/onelane/internal/gormkeys"
)

// singleTx is the transaction of a guarded single statement.
type singleTx struct {
	tx        *transaction
	outside   gorm.ConnPool
	context   context.Context    // of the statement, outside
	carried   context.Context    // of the statement, inside
	cancel    context.CancelFunc // ends DefaultTransactionTimeout
	abandoned runtime.Cleanup
}

// singleKey is the key of a statement's singleTx in its settings, which GORM copies to those of
// associations.
type singleKey struct{ *gorm.Statement }

// endedKey is the key of the context outside of a singleTx that has ended, until the statement's
// last callback.
type endedKey struct{ *gorm.Statement }

// openSingle locks the keys of a single statement and puts it into a transaction of its own. GORM
// finds an open one then, and begins none.
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
	single := &singleTx{tx: t, outside: s.ConnPool, context: s.Context, cancel: cancel}
	// A panic in a callback of another plugin passes no code of this one. It leaves the statement
	// to the collector.
	single.abandoned = runtime.AddCleanup(s, func(single *singleTx) { go single.rollback() }, single)
	s.Settings.Store(singleKey{s}, single)
	s.Context, _ = t.carry(s.Context) // interrupts the statement when the lock is lost
	single.carried = s.Context
	s.ConnPool = t.in(wrapped)
	return nil
}

// takeSingle takes the statement's own transaction out of it, and puts back what was there. It
// returns nil if the statement has none.
func takeSingle(db *gorm.DB) *singleTx {
	s := db.Statement
	v, _ := s.Settings.LoadAndDelete(singleKey{s})
	single, _ := v.(*singleTx)
	if single == nil {
		return nil
	}
	single.abandoned.Stop()
	runtime.KeepAlive(s) // until then the clean-up may run
	s.ConnPool = single.outside
	if s.Context == single.carried {
		s.Context = single.context
	} else { // a tracer put its span in, and looks for it after COMMIT
		s.Context = statementContext{single.context, context.WithoutCancel(s.Context)}
		s.Settings.Store(endedKey{s}, single.context)
	}
	return single
}

// abandonSingle ends the transaction that a panic left in a statement which is used again.
func abandonSingle(db *gorm.DB) {
	if single := takeSingle(db); single != nil {
		single.rollback()
	}
}

// rollback drops its error, which would hide the one that led to it.
func (single *singleTx) rollback() {
	defer single.cancel()
	_ = single.tx.Rollback()
}

// endSingle commits a guarded single statement, or rolls it back if it failed.
func endSingle(db *gorm.DB) {
	explainError(db)
	single := takeSingle(db)
	switch {
	case single == nil:
	case db.Error != nil:
		single.rollback()
		db.Error = single.tx.marked(db.Error)
	default:
		defer single.cancel()
		_ = db.AddError(single.tx.Commit())
	}
}

// afterWrite runs after writes. A tracer that puts back, after COMMIT, the context that it found
// has put back that of the transaction, which has ended. The statement may be used again.
func afterWrite(db *gorm.DB) {
	endSingle(db)
	s := db.Statement
	v, _ := s.Settings.LoadAndDelete(endedKey{s})
	if outside, _ := v.(context.Context); outside != nil && s.Context.Err() != nil {
		s.Context = outside
	}
}

// singleEnded wraps GORM's callback that ends a transaction around a single statement. A guarded
// one ends there too, so that the callbacks after it see what was committed.
func singleEnded(fn func(*gorm.DB)) func(*gorm.DB) {
	return func(db *gorm.DB) {
		if _, ok := db.Statement.Settings.Load(singleKey{db.Statement}); ok {
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
