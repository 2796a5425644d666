package gormlock

import (
	"errors"
	"fmt"
	"slices"

	"gorm.io/gorm"
	"gorm.io/gorm/schema"

	"github.com/onelane/onelane/internal/gormkeys"
	"github.com/onelane/onelane/internal/sqlerr"
)

// operation is one of GORM's processors.
type operation struct {
	name   string
	reads  bool
	writes bool // builds its SQL from a model, in a transaction that GORM begins
	steps  []string
}

// before runs before every statement. Most of them have no guard, so it does little for those.
func (p *plugin) before(db *gorm.DB, op *operation, protected map[string]bool) {
	t, open := transactionOf(db.Statement.ConnPool)
	if t != nil {
		db.Statement.ConnPool = t.in(db.Statement.ConnPool)
	}
	err := db.Error
	if err == nil {
		err = p.admit(db, op, protected, t, open)
	}
	if op.name == "raw" {
		sendSavepoint(db, err)
	}
	if err == nil || db.Error != nil {
		return
	}
	if op.name == "row" {
		if rows, _ := db.Get("rows"); rows != true {
			db.Statement.Dest = failedRow(err) // what Row returns
		}
	}
	_ = db.AddError(err)
}

// admit returns why a statement must not run. If there is no error, the locks of its guards are
// held and its transaction has begun. t is the transaction that it is in, or nil; open says that there
// is one, if not ours.
func (p *plugin) admit(db *gorm.DB, op *operation, protected map[string]bool, t *transaction, open bool) error {
	s := db.Statement
	if open && t == nil {
		if err := unsharded(db); err != nil { // registered after the plugin
			return err
		}
	}
	guards, inContext := guardsOf(s), demandOf(s.Context)
	if len(guards) > 0 || len(inContext.keys) > 0 {
		if err := p.enter(db, op, inContext, guards); err != nil {
			return err
		}
		t, _ = transactionOf(s.ConnPool)
	}
	if op.writes && len(protected) > 0 && !db.DryRun && !t.guarded() &&
		slices.ContainsFunc(tablesIn(s), func(table string) bool { return protected[table] }) {
		return fmt.Errorf("gormlock: table %q: %w", s.Table, ErrUnguarded)
	}
	if err := t.begun(db); err != nil {
		return err
	}
	if op.reads {
		return lockRows(db)
	}
	return nil
}

// unsharded refuses gorm.io/sharding. It puts its own connection pool around each statement, and
// there adds the suffix to the table. In the transaction of a single write that pool is missing.
func unsharded(db *gorm.DB) error {
	if _, sharded := db.Plugins[gormkeys.Sharding]; !sharded {
		return nil
	}
	return errors.New(`gormlock: gorm.io/sharding does not work with guards: remove it, ` +
		`and name the table yourself, as in db.Table("orders_07")`)
}

// thenBegun wraps GORM's callback that begins a transaction around a single statement. Without a
// guard BEGIN is sent at once, as nothing can be locked before it any more. Under a guard the
// transaction is open already, and GORM begins none. GORM's own callback would copy the statement to
// find that out.
func thenBegun(fn func(*gorm.DB)) func(*gorm.DB) {
	original := gormkeys.IsBegin(fn)
	return func(db *gorm.DB) {
		if t, open := transactionOf(db.Statement.ConnPool); !original || t == nil && !beginSingle(db) {
			callBegin(db, fn, open)
		}
		if db.Error != nil {
			return
		}
		_ = db.AddError(adopt(db).begun(db))
	}
}

// callBegin calls fn. In an open transaction it fails, and would leave its error in the result of
// gorm.WithResult.
func callBegin(db *gorm.DB, fn func(*gorm.DB), open bool) {
	result := db.Statement.Result
	if open {
		db.Statement.Result = nil
	}
	fn(db)
	db.Statement.Result = result
}

// beginSingle does what GORM's callback does, without its copy of the statement. It reports whether it
// did.
func beginSingle(db *gorm.DB) bool {
	s := db.Statement
	p, ok := s.ConnPool.(*pool)
	if !ok || db.Error != nil || db.SkipDefaultTransaction || db.DefaultTransactionTimeout > 0 {
		return false
	}
	c, err := p.BeginTx(s.Context, nil)
	if db.AddError(err) == nil {
		s.ConnPool = c
		gormkeys.MarkStarted(db)
	}
	return true
}

// adopt makes a transaction ours that GORM began around a single statement, and returns it. In gorm's
// Connection, and in a session that was made before db.Use, GORM does not begin it through the plugin.
func adopt(db *gorm.DB) *transaction {
	s := db.Statement
	t, open := transactionOf(s.ConnPool)
	if !open {
		return nil
	}
	if t == nil {
		if !gormkeys.StartedByGORM(db) {
			return nil
		}
		p, _ := registered(db)
		wrapped, err := p.WrapPool(db, db.ConnPool)
		real, ok := gormkeys.InnerTx(s.ConnPool).(gorm.Tx)
		if db.AddError(err) != nil || !ok {
			return nil
		}
		t = newTransaction(s.Context, poolOf(wrapped), nil)
		t.real = real
		t.moveLocked(eventBegun, nil) // nobody else has it yet
	}
	s.ConnPool = t.in(s.ConnPool)
	return t
}

// enter takes the locks that the guards of a statement and of its context ask for.
func (p *plugin) enter(db *gorm.DB, op *operation, inContext demand, guards guards) error {
	s := db.Statement
	abandonSingle(db)
	gormkeys.ForgetStarted(s)
	// A subquery is a dry run. GORM would drop the error and leave a hole in the SQL that it is
	// part of.
	if db.DryRun && op.reads {
		return nil
	}
	t, open := transactionOf(s.ConnPool)
	d, err := p.resolve(inContext, guards)
	_, evaluating := db.Get(evaluateKey)
	switch {
	case err != nil:
		return err
	case db.DryRun && !evaluating:
		return guardError(d.keys, fmt.Errorf("%w: a dry run sends nothing and locks nothing; omit the guard",
			gorm.ErrDryRunModeUnsupported))
	case open && t == nil:
		return guardError(d.keys, ErrUnmanagedTransaction)
	case open:
		if err := t.guard(s.Context, d); err != nil {
			return err
		}
		s.Context = t.withLocks(s.Context)
		return nil
	case op.reads && len(guards) == 0 && s.SQL.Len() == 0: // raw SQL may write
		return nil
	case op.reads:
		return guardError(d.keys, fmt.Errorf("%w: the lock would end before what this reads is used; "+
			"put the guard before .Transaction", ErrNoTransaction))
	}
	return p.openSingle(db, d)
}

// wrappedByField lets a field of the model wrap the write, as optimistic.Version does.
func wrappedByField(step string, fn func(*gorm.DB)) func(*gorm.DB) {
	switch step {
	case "gorm:create", "gorm:update", "gorm:delete":
	case "gorm:save_before_associations", "gorm:save_after_associations":
		return savingChildren(fn)
	default:
		return fn
	}
	return func(db *gorm.DB) {
		w := wrapperIn(db.Statement.Schema)
		if w == nil || db.Error != nil {
			fn(db)
			return
		}
		w.WrapWrite(db, step, fn)
		// A create of rows that were read consists of updates.
		if step != "gorm:create" && errors.Is(db.Error, sqlerr.ErrStale) {
			instrumentsOf(db).stale.Add(db.Statement.Context, 1)
		}
	}
}

// savingChildren marks the statements of associations, for fields that wrap their writes. GORM copies
// the settings of the parent's statement to theirs.
func savingChildren(fn func(*gorm.DB)) func(*gorm.DB) {
	return func(db *gorm.DB) {
		if s := db.Statement; childrenWrapped(s.Schema) {
			if _, child := s.Settings.LoadOrStore(gormkeys.Child, true); !child {
				defer s.Settings.Delete(gormkeys.Child)
			}
		}
		fn(db)
	}
}

func childrenWrapped(s *schema.Schema) bool {
	if s == nil {
		return false
	}
	wrapped := func(r *schema.Relationship) bool { return wrapperIn(r.FieldSchema) != nil }
	of := &s.Relationships
	return slices.ContainsFunc(of.BelongsTo, wrapped) || slices.ContainsFunc(of.HasOne, wrapped) ||
		slices.ContainsFunc(of.HasMany, wrapped) || slices.ContainsFunc(of.Many2Many, wrapped)
}

func wrapperIn(s *schema.Schema) gormkeys.WriteWrapper {
	if s == nil {
		return nil
	}
	for _, c := range s.UpdateClauses {
		if w, ok := c.(gormkeys.WriteWrapper); ok {
			return w
		}
	}
	return nil
}
