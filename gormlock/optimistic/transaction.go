package optimistic

import (
	"fmt"
	"reflect"
	"weak"

	"gorm.io/gorm"

	"github.com/onelane/onelane/internal/gormkeys"
)

// transaction returns the statement's transaction; it is nil if gormlock did not begin it.
func (w *write) transaction() (t gormkeys.Transaction, open bool) {
	conns := gormkeys.InnerTx(w.s.ConnPool)
	t, _ = conns.(gormkeys.Transaction)
	_, open = conns.(gorm.TxCommitter)
	return t, open
}

// requireManaged refuses to give models their versions in a transaction that is not gormlock's, as
// nothing would take them back if it is rolled back.
func (w *write) requireManaged() {
	if t, open := w.transaction(); open && t == nil && !w.db.DryRun {
		w.refuse(gormkeys.ErrUnmanagedTransaction, "its rollback would leave new versions in the models")
	}
}

// setVersion gives a model its version. What is rolled back is taken out of the model, as others
// may raise the row to the same number.
func (w *write) setVersion(model reflect.Value, was, now int64) {
	f, ctx := w.field, w.s.Context
	_ = w.db.AddError(set(ctx, f, model, now))
	t, _ := w.transaction()
	if t == nil || was == now {
		return
	}
	// A transaction may write a million models, and must not keep them all.
	kind, kept := model.Type(), weak.Make((*byte)(model.Addr().UnsafePointer()))
	t.OnRollback(func() {
		address := kept.Value()
		if address == nil {
			return
		}
		model := reflect.NewAt(kind, reflect.ValueOf(address).UnsafePointer()).Elem()
		value, _ := f.ValueOf(ctx, model)
		if version, _ := integer(value); version == now {
			_ = set(ctx, f, model, was)
		}
	}, func() bool { return kept.Value() != nil })
}

// allOrNothing runs fn, which writes rows. If it fails, a savepoint undoes what it wrote of several
// rows, so that the transaction can go on.
func (w *write) allOrNothing(rows int, fn func()) {
	if _, open := w.transaction(); rows > 1 && !open && !w.db.DryRun {
		w.refuse(gormkeys.ErrNoTransaction, "several rows with a Version are written all or none, "+
			"which needs a transaction")
	}
	// GORM rolls back the transaction that it began for this statement.
	if rows < 2 || gormkeys.StartedByGORM(w.db) || w.db.DryRun || w.db.Error != nil {
		fn()
		return
	}
	name := fmt.Sprintf("optimistic_%p", w.s)
	if w.db.AddError(w.exec("SAVEPOINT "+name)) != nil {
		return
	}
	fn()
	if w.db.Error != nil && w.exec("ROLLBACK TO SAVEPOINT "+name) != nil {
		return // and gormlock gives up the transaction
	}
	if err := w.exec("RELEASE SAVEPOINT " + name); w.db.Error == nil {
		_ = w.db.AddError(err)
	}
}

// exec runs a statement of savepoints, even if the write failed.
func (w *write) exec(sql string) error {
	tx := gormkeys.Unprepared(w.db)
	tx.Error = nil
	return tx.Exec(sql).Error
}
