package gormlock

import (
	"context"
	"database/sql"

	"gorm.io/gorm"
)

// own is the transaction of a guarded single statement.
type own struct {
	tx      gorm.TxCommitter
	outside gorm.ConnPool
	context context.Context // of the statement, outside
	guards  []guard
	timeOut context.CancelFunc
}

// ownKey is where a statement's own transaction is in its settings, which GORM copies to those of associations.
type ownKey struct{ *gorm.Statement }

// openOwn puts a single statement into a transaction of its own: GORM finds one begun then, and begins none.
func (p *plugin) openOwn(db *gorm.DB, d demand) error {
	s := db.Statement
	wrapped, err := p.wrap(db, s.ConnPool)
	if err != nil {
		return guardError(d.keys, err)
	}
	beginner, ok := wrapped.(gorm.ConnPoolBeginner)
	if !ok {
		return guardError(d.keys, gorm.ErrInvalidTransaction)
	}
	ctx, cancel := context.WithValue(s.Context, demandKey{}, d), context.CancelFunc(func() {})
	if _, ok := ctx.Deadline(); !ok && db.DefaultTransactionTimeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, db.DefaultTransactionTimeout)
	}
	tx, err := beginner.BeginTx(ctx, nil)
	if err != nil {
		cancel()
		return err
	}
	committer, ok := tx.(gorm.TxCommitter)
	t, _ := transactionOf(tx)
	if t == nil || !ok {
		cancel()
		return guardError(d.keys, ErrUnmanagedTransaction)
	}
	guards := guardsOf(s)
	s.Settings.Store(ownKey{s}, &own{committer, s.ConnPool, s.Context, guards, cancel})
	s.Context = t.carry(s.Context) // interrupts the statement when the lock is lost
	if len(guards) > 0 {           // associations inherit it, and must not fill the template anew
		s.Settings.Store(guardsKey, d.literal())
	}
	s.ConnPool = tx
	return nil
}

// takeOwn takes the statement's own transaction out of it, and puts back what was there; nil if it has none.
func takeOwn(db *gorm.DB) *own {
	v, _ := db.Statement.Settings.LoadAndDelete(ownKey{db.Statement})
	o, _ := v.(*own)
	if o == nil {
		return nil
	}
	db.Statement.ConnPool, db.Statement.Context = o.outside, o.context
	if len(o.guards) > 0 {
		db.Statement.Settings.Store(guardsKey, o.guards)
	}
	return o
}

// after says why a statement under a lost lock failed, and ends the transaction of a guarded single statement.
func (p *plugin) after(db *gorm.DB) {
	if _, outside := db.Statement.ConnPool.(*pool); outside { // or in GORM's own transaction, which has ended: there is no guard
		return
	}
	if unset(db.Statement) {
		p.afterRead(db)
		return
	}
	switch t, _ := transactionOf(db.Statement.ConnPool); {
	case t == nil:
	case db.Error != nil:
		db.Error = t.explain(db.Error)
	case db.RowsAffected == 0:
		if s := sellOutOf(db.Statement); s != nil {
			t.sellsOut(s)
		}
	}
	o := takeOwn(db)
	if o == nil {
		return
	}
	if db.Error != nil {
		o.rollback()
		return
	}
	defer o.timeOut()
	_ = db.AddError(o.tx.Commit())
}

// afterRead is for statements that have no transaction of their own.
func (p *plugin) afterRead(db *gorm.DB) {
	t, _ := transactionOf(db.Statement.ConnPool)
	if t == nil {
		return
	}
	if db.Error != nil {
		db.Error = t.explain(db.Error)
		return
	}
	switch rows := db.Statement.Dest.(type) {
	case *sql.Rows:
		t.handedOut(rows)
	case *sql.Row:
		if rows != nil && rows.Err() != nil { // which GORM does not look at
			_ = t.explain(rows.Err())
		}
	}
}

// rollback does not tell of its error, which would hide the one that led to it.
func (o *own) rollback() {
	defer o.timeOut()
	_ = o.tx.Rollback()
}

// giveUpOnPanic rolls a guarded single statement back when fn does not return. It does not recover: the stack stays.
func giveUpOnPanic(fn func(*gorm.DB)) func(*gorm.DB) {
	return func(db *gorm.DB) {
		returned := false
		defer func() {
			if returned {
				return
			}
			if o := takeOwn(db); o != nil {
				o.rollback()
			}
		}()
		fn(db)
		returned = true
	}
}
